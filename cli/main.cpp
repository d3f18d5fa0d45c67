#include <cstdio>
#include <string_view>

#include "tilewise/c.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::printf("tilewise %s\n", tilewise_version());
    return 0;
  }
  std::fprintf(stderr, "tilewise: accepted so far: --version\n");
  return 2;
}

// libFuzzer entry; docs/building.md says how to build and run it.
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/safetensors_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string fault = tilewise::cli::safetensors_fault(reinterpret_cast<const std::byte*>(data), bytes);
  if (!fault.empty()) {
    std::fprintf(stderr, "%s\n", fault.c_str());
    std::abort();
  }
  return 0;
}

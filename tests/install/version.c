/* The smallest program: the header and the library it was linked with are of one version. */
#include <stdio.h>
#include <string.h>
#include <tilewise/c.h>
#include <tilewise/version.h>

int main(void) {
  printf("header %s, library %s\n", TILEWISE_VERSION, tilewise_version());
  return strcmp(TILEWISE_VERSION, tilewise_version()) != 0;
}

#include "tilewise/version.h"

#include "tilewise/c.h"

const char* tilewise_version(void) { return TILEWISE_VERSION; }

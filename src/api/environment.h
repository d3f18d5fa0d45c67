// What TILEWISE_* variables say; environment.cpp is the one place that reads them.
#ifndef TILEWISE_API_ENVIRONMENT_H_
#define TILEWISE_API_ENVIRONMENT_H_

#include <cstdint>
#include <optional>

#include "tilewise/c.h"
#include "tilewise/status.h"

namespace tilewise {

struct NamedDevice {
  int32_t kind = TILEWISE_CPU;
  int32_t index = 0;
};

// TILEWISE_DEVICE; none where it is unset or empty.
Expected<std::optional<NamedDevice>> device_of_environment();

}  // namespace tilewise
#endif  // TILEWISE_API_ENVIRONMENT_H_

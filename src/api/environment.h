// What TILEWISE_* variables say; environment.cpp is the one place that reads them.
#ifndef TILEWISE_API_ENVIRONMENT_H_
#define TILEWISE_API_ENVIRONMENT_H_

#include <optional>

#include "api/check.h"
#include "tilewise/status.h"

namespace tilewise {

// TILEWISE_DEVICE; none where it is unset or empty.
Expected<std::optional<Place>> device_of_environment();

}  // namespace tilewise
#endif  // TILEWISE_API_ENVIRONMENT_H_

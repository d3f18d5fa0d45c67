// Plan: which kernel, tiles, workspace. A value: copy, compare, print, share between threads.
#ifndef TILEWISE_PLAN_H_
#define TILEWISE_PLAN_H_

#include <string>

#include "tilewise/context.h"
#include "tilewise/problem.h"

namespace tilewise {

struct DeviceInfo : tilewise_device_info {
  DeviceInfo() : tilewise_device_info{} { struct_bytes = sizeof(tilewise_device_info); }
  DeviceInfo(const tilewise_device_info& other) : tilewise_device_info(other) {}
  static Expected<DeviceInfo> query(tilewise_device_kind kind = TILEWISE_CPU, int index = 0) {
    DeviceInfo device;
    tilewise_error error;
    if (auto code = tilewise_device_query(kind, index, &device, &error))
      return detail::make_status(code, error);
    return device;
  }
  // Until all its streams are idle; the error is of what ran there. Launches return before that.
  Status wait() const {
    tilewise_error error;
    return detail::make_status(tilewise_device_wait(kind, index, &error), error);
  }
};

struct Limits : tilewise_limits {
  Limits() : tilewise_limits{-1, 0, nullptr} {}
};

struct Plan : tilewise_plan {
  Plan() : tilewise_plan{} {}
  std::string to_string() const {
    std::string text(tilewise_plan_print(this, nullptr, 0), '\0');
    tilewise_plan_print(this, text.data(), text.size() + 1);
    return text;
  }
  friend bool operator==(const Plan& a, const Plan& b) { return tilewise_plan_equal(&a, &b) != 0; }
};

// Pure. Refuses with the reason of every kernel.
inline Expected<Plan> plan(const Problem& problem, const DeviceInfo& device, const Limits& limits = {},
                           const char* tuning_text = nullptr) {
  Plan result;
  tilewise_error error;
  if (auto code = tilewise_plan_make(&problem, &device, &limits, tuning_text, &result, &error))
    return detail::make_status(code, error);
  return result;
}

// For the context's device, threads, forced kernel and tuning.
inline Expected<Plan> plan(const Problem& problem, const Context& context, const Limits& limits = {}) {
  Plan result;
  tilewise_error error;
  if (auto code = tilewise_plan_for_context(context.get(), &problem, &limits, &result, &error))
    return detail::make_status(code, error);
  return result;
}

inline std::string explain(const Problem& problem, const DeviceInfo& device, const Limits& limits = {},
                           const char* tuning_text = nullptr) {
  std::string text(tilewise_plan_explain(&problem, &device, &limits, tuning_text, nullptr, 0), '\0');
  tilewise_plan_explain(&problem, &device, &limits, tuning_text, text.data(), text.size() + 1);
  return text;
}

}  // namespace tilewise
#endif  // TILEWISE_PLAN_H_

#include "context.h"

#include <map>
#include <mutex>
#include <tuple>

namespace tilewise_python {

tilewise_context* context_for(const Setting& setting, int32_t device_kind, int32_t device_index) {
  static std::mutex mutex;
  static auto& contexts = *new std::map<std::tuple<bool, int32_t, int32_t, int32_t>, tilewise_context*>;
  const std::lock_guard lock(mutex);
  tilewise_context*& context = contexts[{setting.cuda, setting.threads, device_kind, device_index}];
  if (!context) {
    tilewise_context_options options;
    tilewise_context_options_init(&options);
    options.threads = setting.threads;
    options.device_kind = device_kind;
    options.device_index = device_index;
    options.check_data = !setting.cuda;  // a device's values are only looked at where TILEWISE_CHECK asks
    tilewise_error error;
    raise_if_refused(tilewise_context_from_environment_over(&options, &context, &error), error);
  }
  return context;
}

}  // namespace tilewise_python

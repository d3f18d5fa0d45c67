// The process's contexts: one for each number of threads that a caller's framework asks for, whose calls look
// at every index on the host, another for calls of a device; and calls in them.
#ifndef TILEWISE_PYTHON_CONTEXT_H_
#define TILEWISE_PYTHON_CONTEXT_H_

#include "call.h"

namespace tilewise_python {

// Made at the first use, from the environment over the setting's threads; lives as long as the process, since
// its threads may be asleep in it. `device` is that of plans.
tilewise_context* context_for(const Setting& setting, int32_t device_kind = TILEWISE_CPU,
                              int32_t device_index = 0);

// Calls the library without the GIL: function(context, error) returns its code; a refusal is raised.
template <typename F>
void launch(const Setting& setting, F&& function) {
  tilewise_context* context = context_for(setting);
  tilewise_error error;
  tilewise_code code;
  {
    const nb::gil_scoped_release release;
    code = function(context, &error);
  }
  raise_if_refused(code, error);
}

}  // namespace tilewise_python
#endif  // TILEWISE_PYTHON_CONTEXT_H_

#include <cstring>

#include "api/border.h"
#include "api/context.h"

namespace tilewise {
namespace {

// What tilewise_plan_make and _explain plan for: no context, so a registry of the built-in rows.
struct Pure {
  Tuning tuning;
  PlanRequest request;

  Pure(const tilewise_problem& problem, const tilewise_device_info& device, const tilewise_limits* limits)
      : request{.registry = Registry::builtin(), .problem = problem, .device = device} {
    if (!limits) return;
    request.max_workspace_bytes = limits->max_workspace_bytes;
    request.threads = limits->threads;
    if (limits->kernel) request.forced = limits->kernel;
  }
  Status read_tuning(const char* text) {
    if (!text) return {};
    auto parsed = parse_tuning(text);
    if (!parsed) return parsed.status();
    tuning = std::move(*parsed);
    request.tuning = &tuning;
    return {};
  }
};

Status check_device(const tilewise_device_info& device) {
  if (device.struct_bytes == sizeof device) return {};
  return {Code::invalid, cat("device.struct_bytes is ", device.struct_bytes, "; accepted: ", sizeof device,
                             " (start from tilewise_device_query of the same library version)")};
}

}  // namespace
}  // namespace tilewise

using namespace tilewise;

tilewise_code tilewise_plan_make(const tilewise_problem* problem, const tilewise_device_info* device,
                                 const tilewise_limits* limits, const char* tuning_text, tilewise_plan* plan,
                                 tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!problem) return null_argument("problem");
    if (!device) return null_argument("device");
    if (!plan) return null_argument("plan");
    if (Status s = check_device(*device); !s.ok()) return s;
    Pure pure(*problem, *device, limits);
    if (Status s = pure.read_tuning(tuning_text); !s.ok()) return s;
    return make_plan(pure.request, plan);
  });
}

tilewise_code tilewise_plan_for_context(const tilewise_context* context, const tilewise_problem* problem,
                                        const tilewise_limits* limits, tilewise_plan* plan,
                                        tilewise_error* error) {
  return guarded(error, [&]() -> Status {
    if (!context) return null_argument("context");
    if (!problem) return null_argument("problem");
    if (!plan) return null_argument("plan");
    return make_plan(context->request(*problem, limits), plan);
  });
}

size_t tilewise_plan_explain(const tilewise_problem* problem, const tilewise_device_info* device,
                             const tilewise_limits* limits, const char* tuning_text, char* text,
                             size_t text_bytes) {
  try {
    if (!problem || !device) return copy_text("problem or device is NULL\n", text, text_bytes);
    if (Status s = check_device(*device); !s.ok()) return copy_text(s.message() + "\n", text, text_bytes);
    Pure pure(*problem, *device, limits);
    if (Status s = pure.read_tuning(tuning_text); !s.ok())
      return copy_text(s.message() + "\n", text, text_bytes);
    return copy_text(explain(pure.request), text, text_bytes);
  } catch (...) {
    return copy_text("out of memory\n", text, text_bytes);
  }
}

size_t tilewise_plan_print(const tilewise_plan* plan, char* text, size_t text_bytes) {
  try {
    return plan ? copy_text(print_plan(*plan), text, text_bytes) : 0;
  } catch (...) {
    return 0;
  }
}

int tilewise_plan_equal(const tilewise_plan* a, const tilewise_plan* b) {
  return a && b ? plan_equal(*a, *b) : a == b;
}

// Context: threads, allocator, log, forced kernel, tuning, plan cache: what a program owns once.
#ifndef TILEWISE_CONTEXT_H_
#define TILEWISE_CONTEXT_H_

#include <memory>

#include "tilewise/status.h"

namespace tilewise {

struct ContextOptions : tilewise_context_options {
  ContextOptions() { tilewise_context_options_init(this); }
};

class Context {
 public:
  static Expected<Context> create(const ContextOptions& options = {}) {
    tilewise_context* raw = nullptr;
    tilewise_error error;
    if (auto code = tilewise_context_create(&options, &raw, &error)) return detail::make_status(code, error);
    return Context(raw);
  }
  // The only reader of TILEWISE_* variables. What none of them sets comes from `defaults`.
  static Expected<Context> from_environment(const ContextOptions& defaults = {}) {
    tilewise_context* raw = nullptr;
    tilewise_error error;
    if (auto code = tilewise_context_from_environment_over(&defaults, &raw, &error))
      return detail::make_status(code, error);
    return Context(raw);
  }
  int threads() const { return tilewise_context_threads(get()); }
  tilewise_context* get() const { return context_.get(); }

 private:
  explicit Context(tilewise_context* context) : context_(context, tilewise_context_destroy) {}
  std::unique_ptr<tilewise_context, void (*)(tilewise_context*)> context_;
};

}  // namespace tilewise
#endif  // TILEWISE_CONTEXT_H_

// The whole API on a page.
//
//   auto context = tilewise::Context::create();
//   tilewise::Tensors t{};
//   t.q = tilewise::Tensor(q, {batch, seqlen_q, heads_q, head_dim});     // float*, row-major
//   t.k = tilewise::Tensor(k, {batch, seqlen_kv, heads_kv, head_dim});
//   t.v = tilewise::Tensor(v, {batch, seqlen_kv, heads_kv, head_dim_v});
//   t.o = tilewise::Tensor(o, {batch, seqlen_q, heads_q, head_dim_v});
//   tilewise::Status status = tilewise::attention(*context, tilewise::Problem().with_causal(), t);
//
// That call plans once for each problem and keeps plan and workspace in the context. An engine does the same
// by hand:
//
//   auto problem = tilewise::problem_from(options, t);     // or fill Problem with upper bounds
//   auto plan = tilewise::plan(*problem, *context);        // says which kernel and how much scratch, or why
//   tilewise::Workspace workspace(*plan);                  // or the engine's own memory
//   tilewise::prepare(*context, *plan);
//   tilewise::forward(*context, *plan, t, workspace);      // only launches; any number of times
//
// Tensor names, shapes and units: tilewise_tensors in c_problem.h. Semantics: docs/conventions.md.
#ifndef TILEWISE_ATTENTION_H_
#define TILEWISE_ATTENTION_H_

#include <memory>
#include <new>

#include "tilewise/plan.h"

namespace tilewise {

// Scratch of a plan's size on the plan's device, aligned, control block zeroed. Move-only; one call at a
// time.
class Workspace {
 public:
  Workspace() = default;
  // Throws std::bad_alloc where there is no memory; make() does not.
  explicit Workspace(const tilewise_plan& plan) {
    auto made = make(plan);
    if (!made) throw std::bad_alloc();
    *this = std::move(*made);
  }
  // Host memory.
  explicit Workspace(int64_t bytes) : Workspace(on_host(bytes)) {}
  static Expected<Workspace> make(const tilewise_plan& plan) {
    tilewise_workspace memory{nullptr, 0};
    tilewise_error error;
    if (auto code = tilewise_workspace_allocate(&plan, &memory, &error))
      return detail::make_status(code, error);
    Workspace workspace;
    workspace.data_ = {memory.data, Free{plan.device_kind, plan.device_index}};
    workspace.bytes_ = memory.bytes;
    return Expected<Workspace>(std::move(workspace));  // said in full: nvcc 13 does not move it by itself
  }
  operator tilewise_workspace() const { return {data_.get(), bytes_}; }

 private:
  static tilewise_plan on_host(int64_t bytes) {
    tilewise_plan plan{};
    plan.device_kind = TILEWISE_CPU;
    plan.workspace_bytes = bytes;
    return plan;
  }
  struct Free {
    Free() : device_kind(TILEWISE_CPU), device_index(0) {}
    Free(int32_t kind, int32_t index) : device_kind(kind), device_index(index) {}
    int32_t device_kind, device_index;
    void operator()(void* data) const {
      tilewise_plan plan{};
      plan.device_kind = device_kind;
      plan.device_index = device_index;
      tilewise_workspace_release(&plan, {data, 0});
    }
  };
  std::unique_ptr<void, Free> data_;
  int64_t bytes_ = 0;
};

inline Status prepare(const Context& context, const Plan& plan) {
  tilewise_error error;
  return detail::make_status(tilewise_prepare(context.get(), &plan, &error), error);
}

// Writes o and, if the plan has it, lse.
inline Status forward(const Context& context, const Plan& plan, const Tensors& tensors,
                      tilewise_workspace workspace, void* stream = nullptr) {
  tilewise_error error;
  return detail::make_status(tilewise_forward(context.get(), &plan, &tensors, workspace, stream, &error),
                             error);
}

// Writes the gradients that the plan wants, from q, k, v, lse, dout and o (or delta).
inline Status backward(const Context& context, const Plan& plan, const Tensors& tensors,
                       tilewise_workspace workspace, void* stream = nullptr) {
  tilewise_error error;
  return detail::make_status(tilewise_backward(context.get(), &plan, &tensors, workspace, stream, &error),
                             error);
}

// One call, either direction (options.direction); sizes and dtypes come from the tensors.
inline Status attention(const Context& context, const Problem& options, const Tensors& tensors,
                        void* stream = nullptr) {
  tilewise_error error;
  return detail::make_status(tilewise_attention(context.get(), &options, &tensors, stream, &error), error);
}

// What attention() derives from options and tensors.
inline Expected<Problem> problem_from(const Problem& options, const Tensors& tensors) {
  Problem problem;
  tilewise_error error;
  if (auto code = tilewise_problem_from_tensors(&options, &tensors, &problem, &error))
    return detail::make_status(code, error);
  return problem;
}

// (o, lse) becomes attention over its own keys and the part's.
inline Status merge(const Context& context, const Tensor& o, const Tensor& lse, const Tensor& o_part,
                    const Tensor& lse_part, void* stream = nullptr) {
  tilewise_error error;
  return detail::make_status(tilewise_merge(context.get(), &o, &lse, &o_part, &lse_part, stream, &error),
                             error);
}

// New rows for a cache of keys: fields in c.h (tilewise_append).
struct Append : tilewise_append {
  Append() { tilewise_append_init(this); }
};

// Writes them where the cache's pages, slots or sequences have their place.
inline Status cache_append(const Context& context, const Append& rows, void* stream = nullptr) {
  tilewise_error error;
  return detail::make_status(tilewise_cache_append(context.get(), &rows, stream, &error), error);
}

// cache_append and forward over the same cache in one call.
inline Status append_forward(const Context& context, const Plan& plan, const Append& rows,
                             const Tensors& tensors, tilewise_workspace workspace, void* stream = nullptr) {
  tilewise_error error;
  return detail::make_status(
      tilewise_append_forward(context.get(), &plan, &rows, &tensors, workspace, stream, &error), error);
}

inline Status append_attention(const Context& context, const Append& rows, const Problem& options,
                               const Tensors& tensors, void* stream = nullptr) {
  tilewise_error error;
  return detail::make_status(
      tilewise_append_attention(context.get(), &rows, &options, &tensors, stream, &error), error);
}

// Exact rows of P, f32 [B, Hq, R, Skv], for the row indices `rows` i32 [R].
inline Status attention_weights(const Context& context, const Problem& options, const Tensors& tensors,
                                const Tensor& rows, const Tensor& weights) {
  tilewise_error error;
  return detail::make_status(
      tilewise_attention_weights(context.get(), &options, &tensors, &rows, &weights, &error), error);
}

}  // namespace tilewise
#endif  // TILEWISE_ATTENTION_H_

// Tensors for a dense problem, owned, filled with random numbers: what is timed, never zeros.
#ifndef TILEWISE_TUNE_PROBLEM_DATA_H_
#define TILEWISE_TUNE_PROBLEM_DATA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/pages.h"
#include "cuda/mirror.h"
#include "tilewise/attention.h"

namespace tilewise::tune {

// A dense problem from the numbers that name it: q [batch, seqlen_q, heads_q, head_dim] and so on, all of one
// dtype.
struct ProblemSize {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  DType cache_dtype = DType::none;  // of k and v: f8e4m3 or i8; none = as the others
  int64_t batch = 1, heads_q = 12, heads_kv = 12, head_dim = 64, head_dim_v = 64;
  int64_t seqlen_q = 1024, seqlen_kv = 1024;
  bool causal = false;
  Position position = Position::bottom_right;
  int64_t window_left = -1, window_right = -1;
  int64_t page_size = 0;  // of the keys: pages in random order; 0 = not paged
};
Problem make_problem(const ProblemSize& size);
// The forward that a backward problem's o and lse come from.
Problem forward_of(const Problem& backward);
// What row-major tensors of these sizes are aligned to, at most a cache line.
int32_t alignment_of(DType dtype, int64_t head_dim, int64_t head_dim_v);

// Row-major tensors of q, k, v, o, lse and, for backward, dout, dq, dk, dv: 64-byte aligned, standard normal
// numbers from `seed`. For backward o and lse are filled by `fill_forward`.
class ProblemData {
 public:
  static int64_t bytes_of(const Problem& problem);
  // On the context's device.
  static Expected<ProblemData> make(const Context& context, const Problem& problem, uint64_t seed);

  const Tensors& tensors() const { return mirror_ ? twins_ : tensors_; }
  // A tensor of tensors() as host memory holds it: copied back from a device.
  Status fetch(tilewise_tensor Tensors::*tensor) const;
  const Tensors& host_tensors() const { return tensors_; }
  // Runs the forward pass on `context`, so that o and lse belong to q, k and v.
  Status fill_forward(const Context& context);

 private:
  ProblemData() = default;
  bool add(tilewise_tensor& tensor, DType dtype, std::initializer_list<int64_t> shape);
  bool add_pages(uint64_t seed);

  Problem problem_;
  Tensors tensors_{};
  std::vector<Pages> memory_;
  std::unique_ptr<cuda::Mirror> mirror_;  // null on the CPU
  Tensors twins_{};
};

// `count` standard normal numbers (a sum of four uniform ones) in storage `dtype`; element i depends on seed
// and i.
void fill_normal(void* data, DType dtype, int64_t count, uint64_t seed);

// Element i of a row-major f32, f16 or bf16 tensor.
double value_at(const tilewise_tensor& tensor, int64_t i);

// A plan for `problem` with its workspace, ready to be run any number of times. Context and tensors outlive
// it.
class PlannedCall {
 public:
  // `kernel` null: the planner's choice. Refusals carry the planner's reasons.
  static Expected<PlannedCall> make(const Context& context, const Problem& problem, const Tensors& tensors,
                                    const char* kernel = nullptr, int threads = 0);
  const Plan& plan() const { return plan_; }
  Status run(void* stream = nullptr) const;  // on a CUDA device: returns when it is enqueued
  // The same on tensors that differ from the call's in where they lie alone.
  Status run_on(const Tensors& tensors, void* stream) const;
  Status wait() const;  // for what was enqueued, and for what failed there

 private:
  PlannedCall(const Context& context, const Plan& plan, const Tensors& tensors, Workspace workspace);
  const Context* context_;
  Plan plan_;
  Tensors tensors_;
  Workspace workspace_;
};

}  // namespace tilewise::tune
#endif  // TILEWISE_TUNE_PROBLEM_DATA_H_

// From a caller's tensors to what kernels receive: everything is checked against the problem that was
// planned.
#ifndef TILEWISE_API_BIND_H_
#define TILEWISE_API_BIND_H_

#include "api/check.h"
#include "core/params.h"

namespace tilewise {

// Sizes of one call. Packed: seqlen is the problem's bound, total the tensor's rows; else total is 0.
struct CallSizes {
  int64_t batch = 0, seqlen_q = 0, seqlen_kv = 0, total_q = 0, total_kv = 0;
  int64_t blocks_kv = 0, block_rows_kv = 0;  // first two dimensions of k and v that are not packed
  int64_t max_pages = 0;                     // entries of page_table a sequence
};

// Ranks, and sizes that q, k and cu_seqlens agree on.
bool read_sizes(TensorChecks& checks, const tilewise_problem& problem, const tilewise_tensors& tensors,
                CallSizes* sizes);

// Scales of k or v, which has `blocks` pages, slots or sequences of `rows` rows.
bool bind_scales(TensorChecks& checks, const char* name, const tilewise_tensor& tensor, int64_t blocks,
                 int64_t rows, int64_t heads, int64_t scale_rows, Access access, CacheScales* scales);

// What the one-call form derives from its options and tensors.
Status problem_from_tensors(const tilewise_problem& options, const tilewise_tensors& tensors,
                            tilewise_problem* problem);

// `place`: the device that every tensor must be on.
struct Place {
  int32_t kind = TILEWISE_CPU, index = 0;
};
Status bind_forward(const tilewise_problem& problem, Place place, const tilewise_tensors& tensors,
                    ForwardParams* params);
Status bind_backward(const tilewise_problem& problem, Place place, const tilewise_tensors& tensors,
                     BackwardParams* params);
// q, k and every mask and score tensor; neither v nor outputs.
Status bind_scores(const tilewise_problem& problem, Place place, const tilewise_tensors& tensors,
                   ForwardParams* params);

// What the values of host lengths must satisfy. Always: no sequence is longer than planned, and a cache's
// indices and a paged one's lengths are in range, as clamping would read another sequence's keys. With
// `all`: everything that kernels would clamp.
Status check_values(const tilewise_problem& problem, const ForwardParams& params, bool all);

}  // namespace tilewise
#endif  // TILEWISE_API_BIND_H_

// From a caller's tensors to what kernels receive: everything is checked against the problem that was
// planned.
#ifndef TILEWISE_API_BIND_H_
#define TILEWISE_API_BIND_H_

#include "api/check.h"
#include "core/params.h"

namespace tilewise {

// Scales of k or v, which has `blocks` pages, slots or sequences of `rows` rows.
bool bind_scales(TensorChecks& checks, const char* name, const tilewise_tensor& tensor, int64_t blocks,
                 int64_t rows, int64_t heads, int64_t scale_rows, Access access, CacheScales* scales);

// What the one-call form derives from its options and tensors.
Status problem_from_tensors(const tilewise_problem& options, const tilewise_tensors& tensors,
                            tilewise_problem* problem);

// `place`: where every tensor must be.
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

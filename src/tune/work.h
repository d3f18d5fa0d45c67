// The floating point operations that every rate and every percentage of a peak is counted with.
#ifndef TILEWISE_TUNE_WORK_H_
#define TILEWISE_TUNE_WORK_H_

#include "tilewise/problem.h"

namespace tilewise::tune {

// Forward 2 (d + d_v) a visible pair; backward 2 (3 d + 2 d_v), which is 2.5 times as much where d_v = d
// (core/cost.h). By the custom of the field a square causal problem without a window counts as half of the
// full one, not as its triangle.
double flops_of(const Problem& problem);

}  // namespace tilewise::tune
#endif  // TILEWISE_TUNE_WORK_H_

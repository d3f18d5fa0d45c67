// What a problem asks for, counted and not measured: the floating point operations of its visible pairs and
// the bytes that any kernel must move. Every rate and every percentage of a peak that Tilewise prints divides
// by these.
#ifndef TILEWISE_TUNE_WORK_H_
#define TILEWISE_TUNE_WORK_H_

#include <cstdint>

#include "tilewise/problem.h"

namespace tilewise::tune {

// (query, key) pairs of one head of one sequence that band and causality leave visible; both lengths at their
// bounds. Dense masks, segments and ranges are data and are not looked at.
int64_t visible_pairs(const Problem& problem);

// Forward 2 (d + d_v) a visible pair; backward 2 (3 d + 2 d_v), which is 2.5 times as much where d_v = d. By
// the custom of the field a square causal problem without a window counts as half of the full one, not as its
// triangle.
double flops_of(const Problem& problem);

// Every input read once and every output written once: q k v o, and backward dout lse dq dk dv too.
double ideal_bytes_of(const Problem& problem);

}  // namespace tilewise::tune
#endif  // TILEWISE_TUNE_WORK_H_

// Bias and dense mask of one row of q over a tile of keys.
#ifndef TILEWISE_CPU_ROW_MASK_H_
#define TILEWISE_CPU_ROW_MASK_H_

#include <cstdint>

#include "core/params.h"

namespace tilewise::cpu {

// What is added to the scores of keys key0 + [from, to), as add[from .. to): -inf where the mask hides the
// pair. False, and nothing written that counts, where that is all 0.
bool load_row_bias_and_mask(float* add, const ForwardParams& p, int64_t b, int64_t head, int64_t row,
                            int64_t key0, int from, int to);

}  // namespace tilewise::cpu
#endif  // TILEWISE_CPU_ROW_MASK_H_

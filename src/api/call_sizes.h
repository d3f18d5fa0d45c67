// What sizes a call has, read off its tensors, and what the dimensions of its rows are called.
#ifndef TILEWISE_API_CALL_SIZES_H_
#define TILEWISE_API_CALL_SIZES_H_

#include "api/check.h"

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

// Tensors whose rows are like those of q, k, v or o.
enum RowKind { kLikeQ, kLikeK, kLikeV, kLikeO };
const char* labels_of(const tilewise_problem& problem, RowKind kind);

}  // namespace tilewise
#endif  // TILEWISE_API_CALL_SIZES_H_

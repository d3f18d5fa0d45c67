// What a launch passes to the three kernels of a backward call, and the scratch that lies between them.
#ifndef TILEWISE_CUDA_SM90_BACKWARD_ARGS_H_
#define TILEWISE_CUDA_SM90_BACKWARD_ARGS_H_

#include "core/mask.h"
#include "core/params.h"
#include "cuda/sm90/forward_args.cuh"

namespace tilewise::sm90 {

// Rows of scratch: whole query tiles for every sequence, one head after the other.
struct ScratchRows {
  int64_t rows = 0;         // of one head
  int32_t of_sequence = 0;  // not packed

  template <int kTileM>
  TILEWISE_HD int64_t begin(const ForwardParams& p, int64_t batch, int64_t q_begin) const {
    if (!p.cu_seqlens_q.data) return batch * of_sequence;
    // Rounded down, with a tile's room for each sequence before: no two meet, whatever their lengths.
    return (q_begin + batch * kTileM) & -kTileM;
  }
};

struct BackwardArgs {
  TileSource q, dout, k, v;
  BackwardParams params;
  tile::Order order;  // of key tiles and key heads
  ScratchRows scratch_rows;
  float* g_dq = nullptr;        // sums of dQ, in fragment order
  float* g_delta = nullptr;     // D - dlse
  uint32_t* g_turns = nullptr;  // deterministic: key tiles that each tile of dQ, of a pair each half, has got
  float scale_log2 = 0.0f;      // scores to exponents of 2
  int32_t queries_per_key_head = 1;
  int32_t tiles_m = 0;  // query tiles of a sequence of the plan's length
  // Pieces of work that begin together, if every other wave is to walk the query tiles down, the first too.
  // Under a causal mask they end one after the other at their first queries, the last one first; the next
  // wave begins as they end, and goes up beside those that still go down.
  uint32_t wave = 0;
  int32_t wide_dq = 0, wide_dk = 0, wide_dv = 0;  // 1: rows can be written 16 bytes at a time
  uint32_t* control = nullptr;  // two zeros, left zero: the next ticket, the blocks that are through
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_BACKWARD_ARGS_H_

// What a launch passes to a forward kernel. Maps that repeat a batch or a head (stride 0) have one of them,
// and a step of 0 for its coordinate.
#ifndef TILEWISE_CUDA_SM90_FORWARD_ARGS_H_
#define TILEWISE_CUDA_SM90_FORWARD_ARGS_H_

#include "core/params.h"
#include "cuda/ptx/tma.cuh"
#include "cuda/tile/pieces.cuh"

namespace tilewise::sm90 {

struct TileSource {
  ptx::TensorMap map;  // [batch, head, row, column], boxes of rows x 64 columns
  int32_t head_step = 1, batch_step = 1;
};

struct ForwardArgs {
  TileSource q, k, v;
  TileSource o;             // boxes of a warp's sixteen rows
  int32_t bulk_stores = 0;  // 1: o can be written through it
  ForwardParams params;
  tile::Order order;
  tile::Pieces pieces;
  int32_t queries_per_key_head = 1;
  tile::FastDivide key_heads;   // query heads to key heads
  float scale_log2 = 0.0f;      // scores to exponents of 2
  int32_t wide_stores = 0;      // 1: rows of o can be written 16 bytes at a time
  uint32_t* control = nullptr;  // two zeros, left zero: the next ticket, the blocks that are through
};

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_FORWARD_ARGS_H_

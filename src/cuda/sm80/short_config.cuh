// Constants and arguments of the kernels for short sequences, and the piece of work that a warp takes.
#ifndef TILEWISE_CUDA_SM80_SHORT_CONFIG_H_
#define TILEWISE_CUDA_SM80_SHORT_CONFIG_H_

#include "core/params.h"
#include "cuda/tile/pieces.cuh"

namespace tilewise::sm80 {

// Warps that hold all keys and values of a head in registers.
template <typename ElementT, int kKeysOf, int kBlocksOf>
struct WarpShort {
  using Element = ElementT;
  static constexpr int kDim = 64, kKeys = kKeysOf;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlocks = kBlocksOf;
  static_assert(kKeys % 16 == 0);
};

struct ShortArgs {
  ForwardParams params;
  tile::Pieces pieces;
  int32_t rows = 16;           // queries of a piece, a multiple of 16
  tile::FastDivide key_heads;  // query heads to key heads
  float scale_log2 = 0.0f;     // scores, shaped or not, to exponents of 2
  int32_t shaped = 0;          // softcap, ALiBi or a scale that is not positive
  int32_t wide_o = 0;
};

// A piece: queries [row, row + rows) of one head and the keys that they see; tiles of keys mean nothing here.
struct ShortWork : tile::Work {
  int32_t kv_head;

  // A packed sequence that is longer than the plan's bound has further pieces, tiles_m apart. begin stands
  // before the first one; next is false after the last.
  __device__ __forceinline__ void begin(const ShortArgs& args, int index) {
    int tile_row;
    args.pieces.find(index, batch, head, tile_row);
    kv_head = args.key_heads.divide(head);
    row = (tile_row - args.pieces.tiles_m) * args.rows;
  }
  __device__ __forceinline__ bool next(const ShortArgs& args) {
    if (!args.pieces.make<64>(*this, args.params, batch, head, row + args.pieces.tiles_m * args.rows,
                              args.rows))
      return false;
    const int last_row = min(row + args.rows, len_q) - 1;
    see_first = max(see_first, 0);
    see_last = last_row < row ? 0 : max(see_last, 0);
    return true;
  }
};

}  // namespace tilewise::sm80
#endif  // TILEWISE_CUDA_SM80_SHORT_CONFIG_H_

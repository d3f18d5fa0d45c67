// How the query heads of a group share tiles where they have few queries: in a tile of kTileM rows lie
// 1 << rows_log2 queries of each of kTileM >> rows_log2 heads. The planner counts with what a launch does.
#ifndef TILEWISE_CUDA_PACKED_HEADS_H_
#define TILEWISE_CUDA_PACKED_HEADS_H_

#include <cstdint>

namespace tilewise::cuda {

struct PackedHeads {
  int rows_log2 = 0;
  int64_t tiles_m = 0;  // that the queries of a head lie in
  int64_t packs = 0;    // parts of a group, of heads that share a tile
};

// The fewest tiles, and of those the fewest heads in one. At least 16 queries, a warp's fragment, are of one
// head.
inline PackedHeads pack_heads(int64_t seqlen_q, int64_t group, int tile_m) {
  PackedHeads best;
  for (int log2 = 4; tile_m >> log2 > 0; ++log2) {
    const int64_t rows = int64_t{1} << log2, heads = tile_m >> log2;
    const PackedHeads next = {log2, (seqlen_q + rows - 1) / rows, (group + heads - 1) / heads};
    if (best.packs == 0 || next.tiles_m * next.packs <= best.tiles_m * best.packs) best = next;
  }
  return best;
}

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_PACKED_HEADS_H_

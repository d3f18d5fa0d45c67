// Sizes of the split forward that its rules (host) and its kernels share.
#ifndef TILEWISE_CUDA_SPLIT_SIZES_H_
#define TILEWISE_CUDA_SPLIT_SIZES_H_

#include <cstdint>

namespace tilewise::cuda {

constexpr int kSplitRows = 16;               // rows of a tile: queries times the heads of their group
constexpr int kWideRows = 64;                // the same of a wide row (sm90/wide.cuh)
constexpr int kSplitGroup = 16;              // keys that a warp takes at a time
constexpr int kSplitBlocks = 240;            // the most of a launch: a counter byte each in the control block
constexpr int64_t kSplitChunk = 1024;        // keys of a part where the cuts are fixed
constexpr int64_t kSplitMostRows = 1 << 30;  // row indices are 32-bit

// Rows of a part: of a problem whose groups of heads have `rows` rows, by tiles of `tile`.
constexpr int64_t split_part_rows(int64_t tile, int64_t rows) {
  const int64_t eights = (rows + 7) / 8 * 8;
  return tile == kSplitRows || eights > tile ? tile : eights;
}

// Floats of a part: O, not divided yet, of each row; then the maxima and the sums of the rows.
constexpr int64_t split_part_floats(int64_t rows, int64_t dim) { return rows * (dim + 2); }

// Bytes of scratch. Two parts a block where cuts follow the blocks, else one for each chunk of each unit.
constexpr int64_t split_scratch_bytes(int64_t part_floats, int64_t units, int64_t chunks) {
  return part_floats * 4 * (chunks ? units * chunks : 2 * kSplitBlocks);
}

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_SPLIT_SIZES_H_

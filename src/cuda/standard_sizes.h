// Scratch of the three-step rows: what planning counts and a launch lays out. A unit is a tile of queries of
// one head with all of its keys; units that the bound holds make a round.
#ifndef TILEWISE_CUDA_STANDARD_SIZES_H_
#define TILEWISE_CUDA_STANDARD_SIZES_H_

#include <algorithm>
#include <cstdint>

namespace tilewise::cuda {

constexpr int64_t kStandardMost = int64_t{4} << 30;  // bytes, unless one unit needs more
constexpr int kStandardRows = 128, kStandardKeys = 128;

struct StandardSizes {
  int64_t tiles, units, pitch, round;  // tiles: of a head's queries; pitch: keys of a row in scratch

  StandardSizes(int64_t batch, int64_t heads_q, int64_t seqlen_q, int64_t seqlen_kv)
      : tiles((seqlen_q + kStandardRows - 1) / kStandardRows),
        units(tiles * heads_q * batch),
        pitch((seqlen_kv + kStandardKeys - 1) / kStandardKeys * kStandardKeys),
        round(std::min(units, std::max<int64_t>(1, kStandardMost / unit_bytes()))) {}

  // Scores in fp32, weights in 16 bits, and of each row its maximum and its sum.
  int64_t score_bytes() const { return kStandardRows * pitch * 4; }
  int64_t weight_bytes() const { return kStandardRows * pitch * 2; }
  int64_t unit_bytes() const { return score_bytes() + weight_bytes() + kStandardRows * 8; }
  int64_t bytes() const { return round * unit_bytes(); }
  int64_t rounds() const { return units == 0 ? 0 : (units + round - 1) / round; }
};

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_STANDARD_SIZES_H_

// Tuning text: measured choices, one a line, sorted, made to be read and diffed.
//
//   # comment
//   device: Intel(R) Xeon(R) Processor
//   library: 0.1.0
//   forward bf16 d128 q4096 kv4096 gqa4 band = forward_avx512_bf16_64x96 812us
//
// Key: direction, storage dtype, head_dim (d192v128 where head_dim_v differs), seqlen_q, seqlen_kv, query
// heads a key head, score class: full (no band) | band (causal or window) | general (bias, mask, segments,
// ranges, dropout). The time is the tuner's own measurement: it orders lines of one key and predicts nothing
// else.
//
// Lookup: direction, dtype, head dims and class must be equal. Among those lines the nearest wins:
// |log2 q/q'| + |log2 kv/kv'| + |log2 gqa/gqa'| is least, each of the three at most 1 (a factor of 2); ties
// go to the smaller time, then to the earlier line. A line whose kernel is unknown here, or refuses the
// problem, gives way to the next nearest. Without a line the cost model decides.
#ifndef TILEWISE_PLAN_TUNING_H_
#define TILEWISE_PLAN_TUNING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/problem.h"

namespace tilewise {

enum class ScoreClass { full, band, general };

struct TuningKey {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  int64_t head_dim = 0, head_dim_v = 0;
  int64_t seqlen_q = 0, seqlen_kv = 0;
  int64_t group = 1;
  ScoreClass score = ScoreClass::full;
};

struct TuningLine {
  TuningKey key;
  std::string kernel;
  double microseconds = 0;
};

struct Tuning {
  std::string device, library;
  std::vector<TuningLine> lines;

  // Indices into `lines`, nearest first; empty where no line is near.
  std::vector<int> nearest(const TuningKey& key) const;
  // Sorted by key: what a file holds.
  std::string to_string() const;
};

TuningKey tuning_key(const tilewise_problem& problem);
std::string to_string(const TuningKey& key);
// A malformed line is an error that gives its number and the form that is accepted.
Expected<Tuning> parse_tuning(std::string_view text);

}  // namespace tilewise
#endif  // TILEWISE_PLAN_TUNING_H_

// Outputs held against double precision, by the numerics rule of design.md.
#ifndef TILEWISE_CLI_ATTEND_VERIFY_H_
#define TILEWISE_CLI_ATTEND_VERIFY_H_

#include <string>
#include <vector>

#include "core/params.h"
#include "reference/tolerance.h"

namespace tilewise::cli {

struct VerifiedOutput {
  std::string name;      // "o", "lse", "dq", ...
  double max_error = 0;  // largest |x - fp64|
  double max_value = 0;  // largest |fp64|
  double share = 0;      // of the allowance that the worst element uses; > 1 = wrong
  std::string worst;     // a sentence about that element
};

struct Verification {
  std::string rows;  // "all 1024 rows" or "256 of 16384 rows, spread over tile edges"
  std::vector<VerifiedOutput> outputs;
  std::vector<std::string> left_out;  // outputs that a selection of rows cannot check
  bool passed() const;
};

// Rows of the check: all where the longest sequence has at most 2048 (or `all`), else some at tile edges.
RowSelection choose_rows(const ForwardParams& p, bool keys, int64_t tile, bool all, int64_t wanted);

// What outputs must be, worked out once; any number of results can be held against it.
class Expected64 {
 public:
  static Expected64 forward(const ForwardParams& p, int64_t tile_m, bool all, int threads);
  static Expected64 backward(const BackwardParams& p, int64_t tile_m, int64_t tile_n, bool all, int threads);

  // Outputs with the strides of the params that this was made from.
  Verification check(const BackwardParams& outputs) const;
  Verification check(const ForwardParams& outputs) const;
  double seconds() const { return seconds_; }

 private:
  std::vector<Expectation> parts_;
  std::string rows_;
  std::vector<std::string> left_out_;
  double seconds_ = 0;
};

// Memory that the check takes at most, roughly.
double verification_bytes(int64_t rows, int64_t keys, int64_t heads_q, int64_t head_dim, int64_t head_dim_v,
                          int threads);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_ATTEND_VERIFY_H_

// The tolerance rule: how far a kernel may be from the oracle.
//
//   |x - ref| <= 2 * max|naive - ref| + u_out * |ref| + 8 * 2^-24 * A        for each (batch, head)
//
// ref   fp64 (oracle.h).
// naive the same formula with every product and sum in fp32 in index order, P and dS rounded to the storage
//       dtype before their products, rounded once to the output's dtype; the maximum runs over the elements
//       of one (batch, head), and for o over both orders: P divided by its sum and then rounded, and rounded
//       with o divided last, as every fused kernel does. Elements where naive is not finite do not count.
// u_out the output dtype's rounding unit (f32 2^-24, f16 2^-11, bf16 2^-8); below the smallest normal number
//       the unit is that number's.
// A     the same formula with every term replaced by its magnitude, and the rounding of a score counted
//       through its weight (magnitude.h). With S = |scale| max(sum_d |q_d k_d|, root of the sum of the
//       squared partial sums of q.k) + |bias| + |slope (p - j)| and E = S + |lse|, which bound what rounding
//       does to a score, it is
//
//       * o      sum_j drop(P) (|v_j| + |v_j - o| S)
//       * lse    |lse| + 1 + sum_j P S
//       * dq     |scale| sum_j |cap'| M |k_j|, where
//                M(i, j) = P (|dout|.|v_j| + |dout|.|o| + |dlse|) + |dS| E
//       * dk     |scale| sum_i |cap'| M |q_i|
//       * dv     sum_i drop(P) |dout_i| (1 + E)
//       * dbias  sum M
//       * dsinks sum_i p_sink (|dlse| + |dout|.|o|) + |p_sink (dlse - D)| (|sink| + |lse|)
//
//       plus what the output held before, where the call accumulates.
// What lies below 2^-112 may be flushed to zero: that much is added to every allowance.
// A head's dk and dv belong to (batch, key head), a dbias element to its own batch and head index, a dsink to
// its head. Non-finite elements of ref, after rounding to the output dtype, must be matched in kind.
#ifndef TILEWISE_REFERENCE_TOLERANCE_H_
#define TILEWISE_REFERENCE_TOLERANCE_H_

#include <string>
#include <vector>

#include "reference/oracle.h"

namespace tilewise {

// One output tensor as it should be.
struct ExpectedOutput {
  std::string name;  // "o", "lse", "dq", ...
  DType dtype = DType::f32;
  std::vector<int64_t> address;           // element offset in the output tensor
  std::vector<int32_t> group;             // which (batch, head) it belongs to
  std::vector<double> ref, naive, terms;  // fp64; fp32 three-step; A
  std::vector<double> naive_error;        // max|naive - ref| of each group
  std::vector<int64_t> extent;            // [rows, heads, dim], or dbias's shape, or [heads_q]
  std::vector<RowId> rows;                // of the first form

  std::string coordinate(size_t element) const;  // "batch 0, row 3, head 1, dim 7"
};

struct Comparison {
  double share = 0.0;  // of the allowance used by the worst element; infinite on a mismatch in kind
  size_t worst = 0;    // element
  double got = 0.0, expected = 0.0, allowed = 0.0;
  std::string text;  // one sentence: output, coordinate, got, expected, allowance
  bool passed() const { return share <= 1.0; }
};

struct Expectation {
  std::vector<ExpectedOutput> outputs;
  const ExpectedOutput* find(const std::string& name) const;
};

// o and lse (without addresses that mean anything where params has no lse). `rows`: only those.
Expectation expect_forward(const ForwardParams& params, const RowSelection& rows = {});
// dq, dk, dv, dbias, dsinks where params has them. With `accumulate` it reads what dq, dk and dv hold: call
// it before the kernel runs.
Expectation expect_backward(const BackwardParams& params, const RowSelection& query_rows = {},
                            const RowSelection& key_rows = {});

// `data` is the output tensor's first element; 16 for `units` where fp32 runs on tensor cores.
Comparison compare(const ExpectedOutput& expected, const void* data, double units = 8.0);

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_TOLERANCE_H_

// Case: one attention problem and its data, in one line of text (grammar: tests/cases/README.md). Tests,
// `tilewise verify` and the property tests all speak it, so a failure is reproduced by pasting its line.
#ifndef TILEWISE_REFERENCE_CASE_H_
#define TILEWISE_REFERENCE_CASE_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/problem.h"

namespace tilewise {

// A right answer that is known without computing: `o@0,3,1=2.5` says that o of batch 0, row 3, head 1 is 2.5
// in every dimension.
struct KnownAnswer {
  std::string output;  // o, lse, dq, dk, dv
  int64_t batch = 0, row = 0, head = 0;
  double value = 0.0;
};

struct Case {
  std::string name;
  std::string text;  // the line it came from
  // Sizes and options; dtypes, features, strides and wants are completed by CaseData.
  Problem problem;
  bool forward = true, backward = true;
  std::vector<DType> dtypes;                              // of q, k, v: run once for each
  DType dtype_o = DType::none, dtype_grad = DType::none;  // none: as q
  DType dtype_kv = DType::none;                           // of a quantised cache; none: as q

  std::vector<int64_t> cu_seqlens_q, cu_seqlens_kv;
  DType cu_dtype = DType::i32;
  std::vector<int64_t> q_lengths, kv_lengths, kv_starts, q_offset;  // one number a sequence; empty = absent
  int64_t q_offset_value = 0;
  uint64_t dropout_seed = 0, dropout_offset = 0;
  std::string pages = "shuffled";        // how the pages of a case with page_size lie
  std::vector<int64_t> cache_batch_idx;  // slots of a contiguous cache; empty = absent

  std::string bias_shape, mask_shape;  // "b1qk": one letter a dimension, 1 = repeated
  std::string bias_values, mask_values;
  DType bias_dtype = DType::f32;
  bool mask_bits = false;
  std::string segments, kv_ranges, alibi, sinks;  // empty = absent
  bool lse = true, dlse = false, delta = false;
  std::string inputs = "random";
  bool poison_unseen = true;                   // NaN in every key and padding row that nobody may see
  std::map<std::string, std::string> layouts;  // by tensor; "" is the default for all
  std::vector<KnownAnswer> answers;
};

// One line; the status names the key that is wrong and what it accepts.
Expected<Case> parse_case(std::string_view line);

// Every case of a file's text: one a line, '#' begins a comment.
Expected<std::vector<Case>> parse_cases(std::string_view text);

// A random valid line: the same for the same seed. `scale` 1 keeps sizes near tile edges (up to about 150
// rows), larger values multiply them.
std::string random_case(uint64_t seed, int scale = 1);

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_CASE_H_

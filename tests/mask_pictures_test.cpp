// Reads the lines of scripts/make_mask_pictures.py --cases and asks both definitions in the code, the
// kernels' and the oracle's, who sees whom: what docs/conventions.md shows is what they compute.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "core/mask.h"
#include "reference/visible.h"

namespace tilewise {
namespace {

std::vector<int32_t> read_list(std::istream& line) {
  size_t count = 0;
  line >> count;
  std::vector<int32_t> values(count);
  for (int32_t& value : values) line >> value;
  return values;
}

// Returns the number of pairs on which the picture and the code disagree, -1 for a line that is not a case.
int check_case(const std::string& text) {
  std::istringstream line(text);
  ForwardParams p;
  int position = 0, causal = 0;
  int32_t q_length = 0, kv_length = 0, kv_start = 0;
  p.batch = p.heads_q = p.heads_kv = 1;
  line >> p.seqlen_q >> p.seqlen_kv >> position >> p.q_offset_value >> causal >> p.window_left >>
      p.window_right;
  line >> q_length >> kv_length >> kv_start;
  const std::vector<int32_t> segments = read_list(line), ranges = read_list(line);
  std::string grid;
  line >> grid;
  if (!line || grid.size() != static_cast<size_t>(p.seqlen_q * p.seqlen_kv)) return -1;

  p.position = static_cast<tilewise_position>(position);
  if (causal) p.window_right = 0;
  if (q_length >= 0) p.q_lengths = {&q_length, DType::i32, 1, 0, 0};
  if (kv_length >= 0) p.kv_lengths = {&kv_length, DType::i32, 1, 0, 0};
  p.kv_starts = {&kv_start, DType::i32, 1, 0, 0};
  if (!segments.empty()) p.segment_ids_q = p.segment_ids_kv = {segments.data(), DType::i32, 0, 1, 0};
  if (!ranges.empty()) p.kv_ranges = {ranges.data(), DType::i32, 0, 2, 1};

  const Sequence sequence = sequence_of(p, 0);
  const SequenceShape shape = shape_of_sequence(p, 0);
  int wrong = 0;
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    const Interval keys = visible_keys(p, sequence, 0, i);
    for (int64_t j = 0; j < p.seqlen_kv; ++j) {
      const bool shown = grid[static_cast<size_t>(i * p.seqlen_kv + j)] == 'x';
      const bool same_segment =
          segments.empty() || segments[static_cast<size_t>(i)] == segments[static_cast<size_t>(j)];
      wrong += shown != (keys.lo <= j && j < keys.hi && same_segment);
      wrong += shown != sees(p, shape, 0, 0, i, j);
    }
  }
  return wrong;
}

}  // namespace
}  // namespace tilewise

int main() {
  int cases = 0, failed = 0;
  for (std::string line; std::getline(std::cin, line); ++cases) {
    const int wrong = tilewise::check_case(line);
    if (wrong == 0) continue;
    ++failed;
    std::fprintf(stderr, "%s: %s\n", wrong < 0 ? "not a case" : "the code sees other pairs", line.c_str());
  }
  std::printf("%d pictured masks, %d differ from the code\n", cases, failed);
  return cases > 0 && failed == 0 ? 0 : 1;
}

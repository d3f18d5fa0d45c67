#include "cli/picture.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "core/mask.h"

namespace tilewise::cli {
namespace {

int64_t segment_q(const ForwardParams& p, const Sequence& s, int64_t b, int64_t i) {
  return read_row_index(p.segment_ids_q, b, s.q_begin, i);
}
int64_t segment_kv(const ForwardParams& p, const Sequence& s, int64_t b, int64_t j) {
  return read_row_index(p.segment_ids_kv, b, s.kv_begin, j);
}
bool has_segments(const ForwardParams& p) { return p.segment_ids_q.data && p.segment_ids_kv.data; }

bool visible(const ForwardParams& p, const Sequence& s, int64_t b, int64_t h, int64_t i, int64_t j) {
  const Interval keys = visible_keys(p, s, b, i);
  if (j < keys.lo || j >= keys.hi) return false;
  if (has_segments(p) && segment_q(p, s, b, i) != segment_kv(p, s, b, j)) return false;
  return mask_allows(p.mask, b, h, i, j);
}

// Keys of [lo, hi) by segment id: positions in ascending order.
using Positions = std::unordered_map<int64_t, std::vector<int64_t>>;

double pairs_of(const ForwardParams& p, const Sequence& s, int64_t b, int64_t h) {
  Positions by_segment;
  if (has_segments(p) && !p.mask.data)
    for (int64_t j = s.kv_first; j < s.kv_last; ++j) by_segment[segment_kv(p, s, b, j)].push_back(j);
  double pairs = 0;
  for (int64_t i = 0; i < s.len_q; ++i) {
    const Interval keys = visible_keys(p, s, b, i);
    if (keys.hi <= keys.lo) continue;
    if (p.mask.data) {
      for (int64_t j = keys.lo; j < keys.hi; ++j) pairs += visible(p, s, b, h, i, j);
    } else if (has_segments(p)) {
      const auto found = by_segment.find(segment_q(p, s, b, i));
      if (found == by_segment.end()) continue;
      const auto& at = found->second;
      pairs += static_cast<double>(std::lower_bound(at.begin(), at.end(), keys.hi) -
                                   std::lower_bound(at.begin(), at.end(), keys.lo));
    } else {
      pairs += static_cast<double>(keys.hi - keys.lo);
    }
  }
  return pairs;
}

}  // namespace

double visible_pairs(const ForwardParams& p) {
  const bool only_causal = p.window_left < 0 && p.window_right == 0 && !p.mask.data && !has_segments(p) &&
                           !p.kv_ranges.data && !p.q_lengths.data && !p.kv_lengths.data && !p.kv_starts.data;
  double pairs = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(p, b);
    const double all = static_cast<double>(s.len_q) * static_cast<double>(s.kv_last - s.kv_first);
    if (only_causal && s.q_offset == 0 && s.len_q == s.kv_last) {
      pairs += all / 2 * static_cast<double>(p.heads_q);
    } else if (p.mask.data && p.mask.head_stride != 0) {
      for (int64_t h = 0; h < p.heads_q; ++h) pairs += pairs_of(p, s, b, h);
    } else {
      pairs += pairs_of(p, s, b, 0) * static_cast<double>(p.heads_q);
    }
  }
  return pairs;
}

int64_t longest_sequence(const ForwardParams& p) {
  int64_t best = 0, rows = -1;
  for (int64_t b = 0; b < p.batch; ++b)
    if (const Sequence s = sequence_of(p, b); s.rows_q > rows) rows = s.rows_q, best = b;
  return best;
}

Json tile_walk(const ForwardParams& p, int64_t b, int64_t tile_m, int64_t tile_n, int64_t heads_in_lanes) {
  constexpr int64_t kMost = 160;  // tiles a side that a picture can show
  if (p.batch == 0 || tile_m <= 1 || tile_n <= 1) return nullptr;
  const Sequence s = sequence_of(p, b);
  const int64_t row_tiles = (s.rows_q * heads_in_lanes + tile_m - 1) / tile_m,
                key_tiles = (s.rows_kv + tile_n - 1) / tile_n;
  const int64_t shown_rows = std::min(row_tiles, kMost), shown_keys = std::min(key_tiles, kMost);
  Json classes = Json::array();
  for (int64_t m = 0; m < shown_rows; ++m) {
    TileBounds bounds;
    SegmentBounds rows;
    const int64_t end = std::min(((m + 1) * tile_m - 1) / heads_in_lanes + 1, s.rows_q);
    for (int64_t i = m * tile_m / heads_in_lanes; i < end; ++i) {
      bounds.add(visible_keys(p, s, b, i));
      if (has_segments(p) && i < s.len_q) rows.add(segment_q(p, s, b, i));
    }
    std::string line;
    for (int64_t n = 0; n < shown_keys; ++n) {
      const int64_t first = n * tile_n, last = std::min((n + 1) * tile_n, s.rows_kv);
      TileClass c = bounds.empty() ? TileClass::skip : bounds.classify(first, last);
      if (has_segments(p) && c != TileClass::skip) {
        SegmentBounds keys;
        for (int64_t j = first; j < last; ++j) keys.add(segment_kv(p, s, b, j));
        c = classify_segments(c, rows, keys);
      }
      if (p.mask.data && c == TileClass::full) c = TileClass::partial;
      line += c == TileClass::skip ? '.' : c == TileClass::full ? 'f' : 'p';
    }
    classes.push_back(line);
  }
  return object({{"sequence", b},
                 {"tile_m", tile_m},
                 {"tile_n", tile_n},
                 {"heads_in_lanes", heads_in_lanes},
                 {"rows", s.rows_q},
                 {"keys", s.rows_kv},
                 {"row_tiles", row_tiles},
                 {"key_tiles", key_tiles},
                 {"cut", shown_rows < row_tiles || shown_keys < key_tiles},
                 {"classes", classes}});
}

Json mask_picture(const ForwardParams& p, int64_t b, int64_t h) {
  constexpr int64_t kSide = 256, kSamples = 4;  // samples a cell and direction
  if (p.batch == 0) return nullptr;
  const Sequence s = sequence_of(p, b);
  const int64_t height = std::min(s.rows_q, kSide), width = std::min(s.rows_kv, kSide);
  if (height == 0 || width == 0) return nullptr;
  std::vector<uint8_t> shares(static_cast<size_t>(height * width));
  const auto sample = [](int64_t cell, int64_t cells, int64_t size, int64_t n, int64_t of) {
    const int64_t first = cell * size / cells, last = std::max((cell + 1) * size / cells, first + 1);
    return first + (last - first) * n / of;
  };
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      const int64_t rows = std::min(kSamples, (s.rows_q + height - 1) / height);
      const int64_t keys = std::min(kSamples, (s.rows_kv + width - 1) / width);
      int64_t seen = 0;
      for (int64_t m = 0; m < rows; ++m)
        for (int64_t n = 0; n < keys; ++n)
          seen +=
              visible(p, s, b, h, sample(y, height, s.rows_q, m, rows), sample(x, width, s.rows_kv, n, keys));
      shares[static_cast<size_t>(y * width + x)] = static_cast<uint8_t>(255 * seen / (rows * keys));
    }
  return object({{"sequence", b},
                 {"head", h},
                 {"width", width},
                 {"height", height},
                 {"rows", s.rows_q},
                 {"keys", s.rows_kv},
                 {"shares", base64(shares)}});
}

std::string base64(const std::vector<uint8_t>& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = word << 8 | (k < n ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) text += k <= n ? kDigits[word >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

}  // namespace tilewise::cli

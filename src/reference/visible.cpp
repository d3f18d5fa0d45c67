#include "reference/visible.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/elements.h"

namespace tilewise {

SequenceShape shape_of_sequence(const ForwardParams& p, int64_t b) {
  SequenceShape s;
  s.q_rows = p.seqlen_q;
  s.kv_rows = p.seqlen_kv;
  if (p.cu_seqlens_q.data != nullptr) {
    s.q_begin = std::clamp<int64_t>(read_integer(p.cu_seqlens_q, b), 0, p.total_q);
    s.q_rows = std::clamp<int64_t>(read_integer(p.cu_seqlens_q, b + 1), s.q_begin, p.total_q) - s.q_begin;
  }
  if (p.cu_seqlens_kv.data != nullptr) {
    s.kv_begin = std::clamp<int64_t>(read_integer(p.cu_seqlens_kv, b), 0, p.total_kv);
    s.kv_rows =
        std::clamp<int64_t>(read_integer(p.cu_seqlens_kv, b + 1), s.kv_begin, p.total_kv) - s.kv_begin;
  }
  s.q_length = s.q_rows;
  s.key_end = s.kv_rows;
  if (p.q_lengths.data != nullptr) {
    s.q_length = std::clamp<int64_t>(read_integer(p.q_lengths, b), 0, s.q_rows);
  }
  if (p.kv_lengths.data != nullptr) {
    s.key_end = std::clamp<int64_t>(read_integer(p.kv_lengths, b), 0, s.kv_rows);
  }
  if (p.kv_starts.data != nullptr) {
    s.key_begin = std::clamp<int64_t>(read_integer(p.kv_starts, b), 0, s.key_end);
  }
  if (p.position == TILEWISE_BOTTOM_RIGHT) {
    s.q_offset = s.key_end - s.q_length;
  } else if (p.position == TILEWISE_GIVEN) {
    s.q_offset = p.q_offset.data != nullptr ? read_integer(p.q_offset, b) : p.q_offset_value;
  }
  return s;
}

bool has_memory(const ForwardParams& p, int64_t b, int64_t j) {
  if (p.page_table.data == nullptr) return true;
  const int64_t page = read_integer(p.page_table, b, j / p.page_size);
  return page >= 0 && page < p.num_pages;
}

int64_t offset_of_key(const ForwardParams& p, const RowTensor& t, const SequenceShape& s, int64_t b,
                      int64_t j, int64_t kv_head) {
  if (p.page_table.data != nullptr) {
    const int64_t page = read_integer(p.page_table, b, j / p.page_size);
    return offset_of(t, page, 0, j % p.page_size, kv_head);
  }
  const int64_t slot = p.cache_batch_idx.data != nullptr ? read_integer(p.cache_batch_idx, b) : b;
  return offset_of(t, slot, s.kv_begin, j, kv_head);
}

int64_t offset_of_scale(const ForwardParams& p, const CacheScales& scales, int64_t b, int64_t j,
                        int64_t kv_head) {
  int64_t block = b, row = j;
  if (p.page_table.data != nullptr) {
    block = read_integer(p.page_table, b, j / p.page_size);
    row = j % p.page_size;
  } else if (p.cache_batch_idx.data != nullptr) {
    block = read_integer(p.cache_batch_idx, b);
  }
  const int64_t group = p.scale_rows > 0 ? row / p.scale_rows : 0;
  return block * scales.block_stride + group * scales.group_stride + kv_head * scales.head_stride;
}

bool sees(const ForwardParams& p, const SequenceShape& s, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (i >= s.q_length) return false;
  if (j < s.key_begin || j >= s.key_end) return false;

  const int64_t position = i + s.q_offset;
  if (p.window_left >= 0 && position - j > p.window_left) return false;
  if (p.window_right >= 0 && j - position > p.window_right) return false;

  if (p.kv_ranges.data != nullptr) {
    if (j < read_integer(p.kv_ranges, b, s.q_begin + i, 0)) return false;
    if (j >= read_integer(p.kv_ranges, b, s.q_begin + i, 1)) return false;
  }
  if (p.segment_ids_q.data != nullptr) {
    if (read_integer(p.segment_ids_q, b, s.q_begin + i) !=
        read_integer(p.segment_ids_kv, b, s.kv_begin + j)) {
      return false;
    }
  }
  if (p.mask.data != nullptr) {
    const int64_t at = offset_of(p.mask, b, h, i, j);
    const auto* bytes = static_cast<const uint8_t*>(p.mask.data);
    const bool open = p.mask.dtype == DType::bit ? ((bytes[at / 8] >> (at % 8)) & 1) != 0 : bytes[at] != 0;
    if (!open) return false;
  }
  if (p.bias.data != nullptr) {
    const double bias = read_element(p.bias.data, p.bias.dtype, offset_of(p.bias, b, h, i, j));
    if (bias == -std::numeric_limits<double>::infinity()) return false;
  }
  return true;
}

std::vector<RowId> all_query_rows(const ForwardParams& p) {
  std::vector<RowId> rows;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t i = 0; i < shape_of_sequence(p, b).q_rows; ++i) rows.push_back({b, i});
  }
  return rows;
}

std::vector<RowId> all_key_rows(const ForwardParams& p) {
  std::vector<RowId> rows;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t j = 0; j < shape_of_sequence(p, b).kv_rows; ++j) rows.push_back({b, j});
  }
  return rows;
}

}  // namespace tilewise

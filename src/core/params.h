// ForwardParams and BackwardParams: what every kernel receives. Filled by api/ after the tensors have been
// checked against the plan; pointers are valid, dtypes and optional tensors are the plan's, lengths are raw
// data. All strides count elements (bits for a TILEWISE_BIT mask) and are 64-bit; the innermost stride of q k
// v o and their gradients is 1. Packed tensors have batch_stride 0 and begin at cu_seqlens[b].
#ifndef TILEWISE_CORE_PARAMS_H_
#define TILEWISE_CORE_PARAMS_H_

#include <cstdint>

#include "core/hd.h"
#include "tilewise/dtype.h"

namespace tilewise {

// A [batch, row, head, dim] tensor (packed: [row, head, dim]); null data = absent.
struct RowTensor {
  void* data = nullptr;
  DType dtype = DType::none;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;

  // The element that a row begins with.
  TILEWISE_HD int64_t at(int64_t b, int64_t row, int64_t head) const {
    return b * batch_stride + row * row_stride + head * head_stride;
  }
};

// An fp32 [batch, head, row] tensor (packed: [head, row]): lse, dlse, delta.
struct RowStats {
  float* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;

  TILEWISE_HD float& at(int64_t b, int64_t row, int64_t head) const {
    return data[b * batch_stride + row * row_stride + head * head_stride];
  }
};

// A tensor broadcast to [batch, head, row, key]; a repeated dimension has stride 0. Rows and keys count
// within a sequence. innermost stride may be anything.
struct ScoreTensor {
  void* data = nullptr;
  DType dtype = DType::none;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0, key_stride = 0;
};

// A small integer tensor [batch] or [batch, row] ([row] packed), int32 unless said.
struct IndexTensor {
  const void* data = nullptr;
  DType dtype = DType::none;
  int64_t batch_stride = 0, row_stride = 0, inner_stride = 0;
};

// fp32 [block, group of rows, head]: what stored elements of a quantised k or v are multiplied by.
struct CacheScales {
  const float* data = nullptr;
  int64_t block_stride = 0, group_stride = 0, head_stride = 0;

  // 1 where the call has none. core/cache.h says which block and group a key belongs to.
  TILEWISE_HD float at(int64_t block, int64_t group, int64_t head) const {
    return data ? data[block * block_stride + group * group_stride + head * head_stride] : 1.0f;
  }
};

struct ForwardParams {
  int64_t batch = 0, heads_q = 0, heads_kv = 0;
  int64_t seqlen_q = 0, seqlen_kv = 0;  // rows per sequence; packed: the plan's bound
  int64_t total_q = 0, total_kv = 0;    // packed: rows of the tensors, else 0
  int64_t head_dim = 0, head_dim_v = 0;

  RowTensor q, k, v, o;
  RowStats lse;  // forward: written where present; backward: read
  ScoreTensor bias, mask;
  IndexTensor q_lengths, kv_lengths, kv_starts, q_offset;
  IndexTensor cu_seqlens_q, cu_seqlens_kv;  // int32 or int64
  IndexTensor segment_ids_q, segment_ids_kv;
  IndexTensor kv_ranges;  // inner_stride between first and last
  // A cache of keys (core/cache.h says where a row of it lies). Paged: k and v have batch_stride between
  // pages and row_stride within one; page_table's row_stride is that between its entries.
  IndexTensor page_table, cache_batch_idx;
  int64_t page_size = 0, num_pages = 0, cache_slots = 0;
  CacheScales k_scales, v_scales;       // of k and v in f8e4m3 or i8
  int64_t scale_rows = 0;               // rows of a block that share a scale; 0 = all
  const float* alibi_slopes = nullptr;  // [batch, heads_q] by the strides; batch stride 0 for [heads_q]
  int64_t alibi_batch_stride = 0, alibi_head_stride = 0;
  const float* sinks = nullptr;  // [heads_q]
  int64_t sinks_stride = 1;

  float scale = 1.0f;  // already 1/sqrt(head_dim) where the problem left it open
  float softcap = 0.0f;
  int64_t window_left = -1, window_right = -1;  // causal already folded in: window_right = 0
  tilewise_position position = TILEWISE_BOTTOM_RIGHT;
  int64_t q_offset_value = 0;

  uint32_t dropout_threshold = 0;  // of 65536; 0 = none (core/dropout.h)
  uint64_t dropout_seed = 0, dropout_offset = 0;
  // Where seed and offset live on the kernel's device: read there instead of the two above; null = by value.
  const uint64_t* dropout_state = nullptr;
  int64_t dropout_state_stride = 1;

  TILEWISE_HD int64_t group() const { return heads_q / heads_kv; }
  TILEWISE_HD float alibi_slope(int64_t b, int64_t head) const {
    return alibi_slopes ? alibi_slopes[b * alibi_batch_stride + head * alibi_head_stride] : 0.0f;
  }
};

struct BackwardParams : ForwardParams {
  RowTensor dout;
  RowStats dlse, delta;  // delta: given instead of o
  RowTensor dq, dk, dv;  // null data = not wanted
  ScoreTensor dbias;     // strides of its own; 0 exactly where bias repeats
  int64_t bias_shape[4] = {1, 1, 1, 1};
  float* dsinks = nullptr;
  int64_t dsinks_stride = 1;
  bool accumulate = false;
  bool deterministic = false;
};

}  // namespace tilewise
#endif  // TILEWISE_CORE_PARAMS_H_

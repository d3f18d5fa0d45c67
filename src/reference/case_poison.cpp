// NaN wherever no row may look: that must change no bit.
#include <cmath>
#include <limits>
#include <unordered_set>

#include "reference/case_cache.h"
#include "reference/case_data.h"
#include "reference/elements.h"

namespace tilewise {
namespace {

constexpr double kPoison = std::numeric_limits<double>::quiet_NaN();

void poison_row(CaseTensor* tensor, int64_t offset, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) write_element(tensor->data(), tensor->dtype(), offset + d, kPoison);
}

}  // namespace

void poison_what_nobody_sees(CaseData* data) {
  const BackwardParams p = data->params(Direction::backward);
  const bool has_bias = data->bias.present();
  std::vector<uint8_t> bias_seen;
  const auto bias_flat = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t index[4] = {b, h, i, j};
    int64_t flat = 0;
    for (int n = 0; n < 4; ++n) {
      const int64_t size = data->bias.view().shape[n];
      flat = flat * size + (size == 1 ? 0 : index[n]);
    }
    return static_cast<size_t>(flat);
  };
  if (has_bias) {
    const Tensor& view = data->bias.view();
    bias_seen.assign(static_cast<size_t>(view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3]), 0);
  }
  const bool is_cache = p.page_size > 0 || p.cache_slots > 0;
  const bool expanded_k = p.k.batch_stride == 0 && p.batch > 1 && p.cu_seqlens_kv.data == nullptr;
  const bool expanded_v = p.v.batch_stride == 0 && p.batch > 1 && p.cu_seqlens_kv.data == nullptr;
  const bool shared_k = expanded_k || (p.k.head_stride == 0 && p.heads_kv > 1);
  const bool shared_v = expanded_v || (p.v.head_stride == 0 && p.heads_kv > 1);
  struct Key {
    int64_t b, kv_head, j;
  };
  std::vector<Key> unseen;
  std::unordered_set<int64_t> seen_at;  // offsets in k: sequences may share a page or a slot
  std::unordered_set<int64_t> k_scales_seen, v_scales_seen;
  for (int64_t b = 0; b < p.batch; ++b) {
    const SequenceShape s = shape_of_sequence(p, b);
    for (int64_t kv_head = 0; kv_head < p.heads_kv; ++kv_head) {
      for (int64_t j = 0; j < s.kv_rows; ++j) {
        if (!has_memory(p, b, j)) continue;
        bool seen = false;
        for (int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
          for (int64_t i = 0; i < s.q_length; ++i) {
            if (!sees(p, s, b, h, i, j)) continue;
            seen = true;
            if (has_bias) bias_seen[bias_flat(b, h, i, j)] = 1;
            if (!has_bias) break;
          }
          if (seen && !has_bias) break;
        }
        if (seen) {
          seen_at.insert(offset_of_key(p, p.k, s, b, j, kv_head));
          if (p.k_scales.data) {
            k_scales_seen.insert(offset_of_scale(p, p.k_scales, b, j, kv_head));
            v_scales_seen.insert(offset_of_scale(p, p.v_scales, b, j, kv_head));
          }
        } else {
          unseen.push_back({b, kv_head, j});
        }
      }
    }
    const bool shared_q = p.q.batch_stride == 0 && p.batch > 1 && p.cu_seqlens_q.data == nullptr;
    const bool shared_dout = p.dout.batch_stride == 0 && p.batch > 1 && p.cu_seqlens_q.data == nullptr;
    for (int64_t i = s.q_length; i < s.q_rows; ++i) {
      for (int64_t h = 0; h < p.heads_q; ++h) {
        if (!shared_q) poison_row(&data->q, offset_of(p.q, b, s.q_begin, i, h), p.head_dim);
        if (!shared_dout) poison_row(&data->dout, offset_of(p.dout, b, s.q_begin, i, h), p.head_dim_v);
      }
    }
  }
  for (const auto& [scales, seen] :
       {std::pair(&data->k_scales, &k_scales_seen), std::pair(&data->v_scales, &v_scales_seen)}) {
    if (!scales->present()) continue;
    for_each_element(scales->view(), [to = static_cast<float*>(scales->data()), own = seen](
                                         const std::vector<int64_t>&, int64_t at, int64_t) {
      if (!own->contains(at)) to[at] = static_cast<float>(kPoison);
    });
  }
  for (const Key& key : unseen) {
    const SequenceShape s = shape_of_sequence(p, key.b);
    const int64_t at = offset_of_key(p, p.k, s, key.b, key.j, key.kv_head);
    if (is_cache && seen_at.contains(at)) continue;
    if (!shared_k) poison_row(&data->k, at, p.head_dim);
    if (!shared_v) poison_row(&data->v, offset_of_key(p, p.v, s, key.b, key.j, key.kv_head), p.head_dim_v);
  }
  if (!has_bias) return;
  for_each_element(data->bias.view(), [&](const std::vector<int64_t>&, int64_t at, int64_t flat) {
    const double value = read_element(data->bias.data(), data->bias.dtype(), at);
    if (bias_seen[static_cast<size_t>(flat)] == 0 && std::isfinite(value)) {
      write_element(data->bias.data(), data->bias.dtype(), at, kPoison);
    }
  });
}

}  // namespace tilewise

// Where a tile of keys lies for the forward with keys in the lanes: a pointer for each key, and the scales of
// quantised ones, whatever pages, slots or groups of rows they come from.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Keys [first + from, first + to), a pointer each to the row of one key head, the task's first.
struct KeyPointers {
  // Keys up to `to`, from where the run before ends: their scales for that head.
  struct ScaleRun {
    int to;
    const float *k, *v;
  };

  int64_t first = 0;
  int from = 0, to = 0;
  int scale_runs = 0;  // 0 where the call has no scales
  const char *k[kMaxRowKeys], *v[kMaxRowKeys];
  ScaleRun scales[kMaxRowKeys];

  // The keys of [lo, hi) among the `count` from key0 on.
  void locate(const ForwardParams& p, const Sequence& s, int64_t b, int64_t head, int64_t key0, int64_t lo,
              int64_t hi, int count) {
    first = key0;
    from = static_cast<int>(std::max(lo - first, int64_t{0}));
    to = static_cast<int>(std::min<int64_t>(hi - first, count));
    scale_runs = 0;
    const int64_t k_bytes = bits_of(p.k.dtype) / 8, v_bytes = bits_of(p.v.dtype) / 8;
    for (int j = from; j < to;) {
      const KeyRun run = key_run(p, s, b, first + j, to - j);
      const char* k_row = static_cast<const char*>(p.k.data) + k_bytes * p.k.at(run.block, run.row, head);
      const char* v_row = static_cast<const char*>(p.v.data) + v_bytes * p.v.at(run.block, run.row, head);
      if (p.k_scales.data) locate_scales(p, s, head, run, j);
      for (int64_t i = 0; i < run.count; ++i, ++j) {
        k[j] = k_row + i * k_bytes * p.k.row_stride;
        v[j] = v_row + i * v_bytes * p.v.row_stride;
      }
    }
  }

  // One for each key, of the head `heads` behind the first; null where the call has none.
  const float* load_scales(const float* ScaleRun::*of, const CacheScales& t, int64_t heads,
                           float* HWY_RESTRICT buffer) const {
    if (scale_runs == 0) return nullptr;
    std::fill_n(buffer, from, 1.0f);
    int j = from;
    for (int n = 0; n < scale_runs; ++n) {
      std::fill_n(buffer + j, scales[n].to - j, (scales[n].*of)[heads * t.head_stride]);
      j = scales[n].to;
    }
    std::fill_n(buffer + j, kMaxRowKeys - j, 1.0f);
    return buffer;
  }

 private:
  // Of a run of keys from the tile's key j on, cut where its scales change.
  void locate_scales(const ForwardParams& p, const Sequence& s, int64_t head, KeyRun run, int j) {
    const auto at = [&](const CacheScales& t, int64_t group) {
      return t.data + run.block * t.block_stride + group * t.group_stride + head * t.head_stride;
    };
    const int end = j + static_cast<int>(run.count);
    while (j < end) {
      const int64_t group = scale_group(p, s, run);
      const int64_t same =
          p.scale_rows ? (group + 1) * p.scale_rows - (run.row - s.kv_begin) : int64_t{end - j};
      j = static_cast<int>(std::min<int64_t>(j + same, end));
      scales[scale_runs++] = {j, at(p.k_scales, group), at(p.v_scales, group)};
      run.row += same;
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu

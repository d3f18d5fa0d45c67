// A task of form rows: which rows of q share their reads of the keys, and the keys that they see together.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// `count` rows of q of each of `heads` key heads, head by head, and what they see together.
struct RowTask {
  explicit RowTask(RowOfTask* memory) : rows(memory) {}

  int64_t b, head_kv, heads, part;
  Sequence s;
  int count = 0;
  int64_t lo = INT64_MAX, hi = 0;
  RowOfTask* rows;

  int all() const { return count * static_cast<int>(heads); }
  int64_t first_chunk() const { return lo < hi ? lo / kSplitKeys : 0; }
  int64_t end_chunk() const { return lo < hi ? (hi - 1) / kSplitKeys + 1 : 0; }

  // Rows of part `part_of_rows` of up to `most_heads` key heads from `first_head` on; false where there are
  // none.
  bool begin(const ForwardParams& p, const RowForwardSizes& sizes, bool general, int64_t sequence,
             int64_t first_head, int64_t most_heads, int64_t part_of_rows) {
    const int64_t group = p.group(), first = part_of_rows * sizes.tile_m;
    b = sequence;
    head_kv = first_head;
    heads = std::min(most_heads, p.heads_kv - head_kv);
    part = part_of_rows;
    s = sequence_of(p, b);
    count = static_cast<int>(std::min<int64_t>(sizes.tile_m, s.rows_q * group - first));
    if (count <= 0) return false;
    for (int i = 0; i < all(); ++i) {
      RowOfTask& row = rows[i];
      const int64_t r = first + i % count;
      row.query = r / group;
      row.head = (head_kv + i / count) * group + r % group;
      row.keys = visible_keys(p, s, b, row.query);
      row.all = RowState();
      if (general) row.place = place_of_row(p, s, b, row.head, row.query);
      if (row.keys.hi <= row.keys.lo) continue;
      lo = std::min(lo, row.keys.lo);
      hi = std::max(hi, row.keys.hi);
    }
    return true;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu

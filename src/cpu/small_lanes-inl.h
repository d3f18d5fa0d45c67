// The rows of q of a task as lanes of one tile, and which pairs of it are computed: where a causal mask or a
// window hides much, scores are made in strips of lanes, each with the keys that its rows see, and the other
// products in tiles of a few rows or keys, each over what it is seen by.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// One a lane, head by head, and the keys that any of them sees.
struct SmallLanes {
  // Lanes of a strip, to multiples of which its keys are rounded too: tiles that end where strips end find
  // every pair computed, hidden or not.
  static constexpr int kStrip = kSmallStrip;
  static constexpr int kTile = 6;  // rows or keys of a tile within a strip: 6, 6 and 4
  static constexpr int kStrips = kSmallRows / kStrip, kTiles = kStrips * 3;
  static_assert(kSmallRows % kStrip == 0 && kSmallKeys == kSmallRows && kStrip % kLanes == 0);

  int64_t b;
  Sequence sequence;
  int64_t head_kv;  // the first of the task
  int heads;        // key heads
  int rows;         // of each
  int count;        // heads * rows
  int width;        // whole vectors
  int whole;        // lanes whose scores are made from a transpose; dots make the others
  int64_t lo, hi;   // keys of the tile
  bool partial;     // some row does not see all of them
  bool dead;        // some row sees none
  int32_t query[kSmallRows], head[kSmallRows];
  // Keys that a lane sees, from the tile's first on.
  alignas(64) int32_t first[kSmallRows];
  alignas(64) int32_t last[kSmallRows];

  // Keys [first, last) for lanes [begin, end).
  Piece strips[kStrips];    // by lanes: all that is computed
  Piece pieces[kStrips];    // the same by keys, of `whole` lanes
  Piece rows_keys[kTiles];  // rows of a head, and the keys that they see
  Piece keys_rows[kTiles];  // keys, and the rows of a head that see them
  int strip_count, piece_count, rows_count, keys_count;
  bool is_cut;

  int keys() const { return static_cast<int>(hi - lo); }

  // Keys that must be computed for rows [begin, end) of a head.
  Piece needed_by(int begin, int end) const {
    return is_cut ? seen_by(begin, end) : Piece{0, keys(), begin, end};
  }

  // Cuts what is computed; where `cut`, what is hidden is left out.
  void cut_tiles(bool cut) {
    strip_count = rows_count = keys_count = 1;
    strips[0] = {0, keys(), 0, width};
    rows_keys[0] = keys_rows[0] = {0, keys(), 0, rows};
    is_cut = cut && partial && ascending();
    if (!is_cut) return;
    cut_strips();
    cut_rows();
    cut_keys();
  }

  // The strips by keys, of the lanes up to `whole`.
  void cut_pieces() {
    piece_count = 0;
    for (int j = 0; j < keys(); j += kStrip) {
      Piece piece{j, std::min(j + kStrip, keys()), width, 0};
      for (int i = 0; i < strip_count; ++i) {
        if (strips[i].last <= j || strips[i].first >= piece.last) continue;
        piece.begin = std::min(piece.begin, strips[i].begin);
        piece.end = std::min(strips[i].end, whole);
      }
      if (piece.begin >= piece.end) continue;
      Piece* before = piece_count > 0 ? &pieces[piece_count - 1] : nullptr;
      if (before && before->last == j && before->begin == piece.begin && before->end == piece.end)
        before->last = piece.last;
      else
        pieces[piece_count++] = piece;
    }
  }

 private:
  // Neither end of an interval moves back from row to row: rows that see a key are neighbours.
  bool ascending() const {
    for (int r = 1; r < count; ++r)
      if (first[r] < first[r - 1] || last[r] < last[r - 1]) return false;
    return true;
  }
  // What rows [begin, end) see; a backward may have hidden some since the tiles were cut.
  Piece seen_by(int begin, int end) const {
    Piece seen{0, 0, begin, end};
    for (int r = begin; r < end; ++r) {
      if (first[r] >= last[r]) continue;
      seen.first = seen.last > 0 ? std::min(seen.first, first[r]) : first[r];
      seen.last = std::max(seen.last, last[r]);
    }
    return seen;
  }
  void cut_strips() {
    strip_count = 0;
    for (int x = 0; x < width; x += kStrip) {
      Piece& strip = strips[strip_count++] = seen_by(x, std::min(x + kStrip, count));
      strip.end = std::min(x + kStrip, width);
      strip.first = strip.first / kStrip * kStrip;
      strip.last = std::min(static_cast<int>(multiple_of(kStrip, strip.last)), keys());
    }
  }
  template <class Body>
  static void each_tile(int n, const Body& body) {
    for (int strip = 0; strip < n; strip += kStrip)
      for (int at = strip; at < std::min(strip + kStrip, n); at += kTile)
        body(at, std::min({at + kTile, strip + kStrip, n}));
  }
  void cut_rows() {
    rows_count = 0;
    each_tile(rows, [this](int begin, int end) { rows_keys[rows_count++] = seen_by(begin, end); });
  }
  void cut_keys() {
    keys_count = 0;
    int begin = 0, end = 0;
    each_tile(keys(), [this, &begin, &end](int j, int j_end) {
      while (begin < rows && last[begin] <= j) ++begin;
      while (end < rows && first[end] < j_end) ++end;
      keys_rows[keys_count++] = {j, j_end, begin, std::max(begin, end)};
    });
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu

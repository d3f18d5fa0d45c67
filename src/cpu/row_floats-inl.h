// The products of form rows by fp32 multiply-adds (row_product-inl.h), however k and v are stored.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Where the rows of one key head of a tile begin: `offset` bytes behind the pointers.
struct TileRows {
  const char* const* rows;
  int64_t offset;
};

class RowFloats {
 public:
  // Rows of q whose scores are made together, where that says how they are added up.
  static constexpr int kTogether = 1;
  static constexpr bool kRounded = false;  // weights, before they are multiplied

  RowFloats(const ForwardParams& p, const RowForwardSizes& sizes)
      : p_(p),
        sizes_(sizes),
        reads_k_(reading_of(p.k, p.head_dim)),
        reads_v_(reading_of(p.v, p.head_dim_v)),
        dim_k_(static_cast<int>(multiple_of(kStep, p.head_dim))),
        dim_v_(static_cast<int>(multiple_of(kStep, p.head_dim_v))) {}

  // The task's rows of key head h, times `sign`, to `to`.
  void load_queries(const RowTask& t, int64_t h, float sign, const RowForwardScratch& w, float* to) const {
    const bool dealt = reads_k_ == Reading::brains;
    for (int i = 0; i < t.count; ++i, to += sizes_.pitch_qk) {
      const RowOfTask& row = t.rows[h * t.count + i];
      if (row.keys.hi <= row.keys.lo) {
        std::fill_n(to, sizes_.pitch_qk, 0.0f);
        continue;
      }
      const int64_t at = p_.q.at(t.b, t.s.q_begin + row.query, row.head);
      float* as_read = dealt ? w.k_tile : to;  // no key is converted into the tile where rows are dealt
      ConvertPaddedRow(as_read, p_.q, at, p_.head_dim, sizes_.pitch_qk);
      if (dealt) DealRow(as_read, to, sizes_.pitch_qk, false);
      if (sign == 1.0f) continue;
      for (int64_t c = 0; c < p_.head_dim; ++c) to[c] *= sign;
    }
  }

  // Upcoming::step()s of a tile for `count` rows.
  int64_t score_steps(int) const { return sizes_.tile_n / kKeysAtOnce * (dim_k_ / kStep); }
  int64_t output_steps(int) const { return sizes_.tile_n * ((dim_v_ + 2 * kStep - 1) / (2 * kStep)); }

  // Scores of rows [r0, r0 + count) of a head's `of_head`, whose first is at q; to w.s.
  void scores(const KeyPointers& tile, int64_t h, const float* q, int r0, int count, int /*of_head*/,
              const RowForwardScratch& w, const Upcoming& upcoming) const {
    const char* converted[kMaxRowKeys];
    const TileRows k =
        rows_of(tile, tile.k, h, p_.k, reads_k_, p_.head_dim, sizes_.pitch_qk, w.k_tile, converted);
    const int n = tile.to - tile.from;
    with_rows(reads_k_, [&](auto rows) {
      ForSharingRows(count, [&](auto sharing, int r) {
        RowScores<decltype(rows), sharing.value>(
            q + (r0 + r) * sizes_.pitch_qk, sizes_.pitch_qk, k.rows + tile.from, k.offset, dim_k_, n,
            w.s + r * sizes_.pitch_s + tile.from, sizes_.pitch_s, r == 0 ? upcoming : Upcoming());
      });
    });
  }

  // Adds the values under the weights at s to the rows at o; `exact`: to one row, without what weighs -0.
  void outputs(const KeyPointers& tile, int64_t h, float* s, int count, float* o, bool exact,
               const RowForwardScratch& w, const Upcoming& upcoming) const {
    const char* converted[kMaxRowKeys];
    const TileRows v =
        rows_of(tile, tile.v, h, p_.v, reads_v_, p_.head_dim_v, sizes_.pitch_v, w.v_tile, converted);
    const int n = tile.to - tile.from;
    with_rows(reads_v_, [&](auto rows) {
      using Rows = decltype(rows);
      if (exact) return SeenRowOutput<Rows>(s + tile.from, v.rows + tile.from, v.offset, dim_v_, n, o);
      ForSharingRows(count, [&](auto sharing, int r) {
        RowOutput<Rows, sharing.value>(s + r * sizes_.pitch_s + tile.from, sizes_.pitch_s, v.rows + tile.from,
                                       v.offset, dim_v_, n, o + r * sizes_.pitch_v, sizes_.pitch_v,
                                       r == 0 ? upcoming : Upcoming());
      });
    });
  }

  // A row that outputs() made, by its columns: itself, or in `buffer`.
  const float* in_order(const float* o, float* buffer) const {
    if (reads_v_ != Reading::brains) return o;
    DealRow(o, buffer, p_.head_dim_v, true);
    return buffer;
  }

 private:
  // In the caller's storage, or converted to fp32 where a row is no whole steps.
  enum class Reading { floats, halves, brains, bytes, converted };

  static Reading reading_of(const RowTensor& t, int64_t dim) {
    if (dim % kStep != 0 || t.dtype == DType::f8e4m3) return Reading::converted;
    if (t.dtype == DType::f32) return Reading::floats;
#if HWY_TARGET == HWY_SCALAR
    return Reading::converted;
#else
    return t.dtype == DType::bf16 ? Reading::brains : t.dtype == DType::i8 ? Reading::bytes : Reading::halves;
#endif
  }

  // Of k or v, `from` the tile's pointers: as they are stored, or brought to fp32 where that is no whole
  // steps.
  TileRows rows_of(const KeyPointers& tile, const char* const* from, int64_t h, const RowTensor& t,
                   Reading reading, int64_t dim, int64_t pitch, float* buffer, const char** converted) const {
    const int64_t bytes = bits_of(t.dtype) / 8, offset = h * bytes * t.head_stride;
    if (reading != Reading::converted) return {from, offset};
    for (int j = tile.from; j < tile.to; ++j) {
      float* to = buffer + j * pitch;
      const int64_t at = (from[j] + offset - static_cast<const char*>(t.data)) / bytes;
      ConvertPaddedRow(to, t, at, dim, pitch);
      converted[j] = reinterpret_cast<const char*>(to);
    }
    return {converted, 0};
  }

  // Calls body(Rows) for how k or v is read.
  template <typename F>
  static void with_rows(Reading reading, F&& body) {
    switch (reading) {
#if HWY_TARGET != HWY_SCALAR
      case Reading::halves:
        return body(StoredHalves());
      case Reading::brains:
        return body(StoredBrains());
      case Reading::bytes:
        return body(StoredBytes());
#endif
      default:
        return body(StoredFloats());
    }
  }

  const ForwardParams& p_;
  const RowForwardSizes& sizes_;
  const Reading reads_k_, reads_v_;
  const int dim_k_, dim_v_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu

// What the forward multiplies: fp32 elements. Other products (pair_products-inl.h) have the same members.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

struct Fp32Products {
  using Element = float;
  static constexpr int kUnit = 1;          // dims, or keys, that an element stands for
  static constexpr bool kRounded = false;  // weights, before they are multiplied by V

  static void Pack(const ForwardBlock& block, const ForwardParams& p, float factor, const ForwardScratch& w,
                   const ForwardSizes& sizes) {
    PackQueries(block, p, factor, w.rows, sizes.pitch_qk);
  }

  // Keys [j0, j0 + n), one a row; and their values, kUnit keys a row, counted from the sequence's first.
  static const float* Keys(const ForwardParams& p, const Sequence& s, int64_t b, int64_t head, int64_t j0,
                           int n, const ForwardScratch& w, const ForwardSizes& sizes, bool shared,
                           int64_t* stride) {
    return KeysAsFloat(p, p.k, s, b, head, j0, n, p.head_dim, sizes.pitch_qk, w.k_tile, shared, stride);
  }
  static const float* Values(const ForwardParams& p, const Sequence& s, int64_t b, int64_t head, int64_t j0,
                             int n, const ForwardScratch& w, const ForwardSizes& sizes, bool shared,
                             int64_t* stride) {
    return KeysAsFloat(p, p.v, s, b, head, j0, n, p.head_dim_v, sizes.pitch_v, w.v_tile, shared, stride);
  }

  // P^T of keys [j0, j0 + n) as the product takes it, in place; with dropout.
  static void Weights(const ForwardScratch& w, const ForwardBlock& block, const ForwardParams& p, int64_t j0,
                      int n) {
    if (!p.dropout_threshold) return;
    LoadDropout(w.keep, block.width, p, *block.lanes, j0, n);
    Multiply(w.s, w.keep, static_cast<int64_t>(n) * block.width);
  }
  // O^T += V^T P^T of what each lane sees.
  static void Seen(int dim, int n, const float* v, int64_t v_stride, const float* p, int64_t ld, float* o,
                   int width) {
    SeenProduct(dim, n, v, v_stride, p, ld, o, width);
  }
  // After the last key.
  static void Finish(const ForwardBlock&, const ForwardParams&) {}
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu

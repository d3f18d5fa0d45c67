// What the forward multiplies: fp32 elements. Other products (pair_products-inl.h) have the same members.

namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// Scratch is laid out in floats; other elements are as wide.
template <class Element>
HWY_INLINE const Element* ElementsOf(const float* scratch) {
  static_assert(sizeof(Element) == sizeof(float));
  return reinterpret_cast<const Element*>(scratch);
}

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

  // P^T of n keys from j0 on as the product takes it, in place.
  static void Weights(float*, int, int64_t, int) {}
  // O^T += V^T P^T of what each lane sees.
  static void Seen(int dim, int n, const float* v, int64_t v_stride, const float* p, int64_t ld, float* o,
                   int width) {
    SeenProduct(dim, n, v, v_stride, p, ld, o, width);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu

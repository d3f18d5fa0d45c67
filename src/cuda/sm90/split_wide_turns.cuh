// The two multiplying warpgroups of a wide block take steps in turns. S and the weights of a step are one's,
// of the next step the other's; both multiply them with half of the values' columns each. A thread hands its
// weights to its counterpart, which has the same rows and keys, in registers as it has them itself; the pairs
// of warps that so belong together wait for each other alone.
//
// Scores of a step are begun when the values of the one before are done: a stage is given back to the copies
// as soon as it can be, which counts where two stages are all that shared memory holds. kEager: they are
// begun before these values, and run while the other warpgroup makes its weights.
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_TURNS_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_TURNS_H_

#include "cuda/sm90/split_wide_end.cuh"
#include "cuda/sm90/split_wide_product.cuh"

namespace tilewise::sm90 {

template <typename C>
struct TurnProducts : WideProducts<C> {
  using Base = WideProducts<C>;
  using T = typename C::Element;
  using Base::kScores, Base::r_s, Base::r_o, Base::top, Base::sum, Base::group;

  // Begins S of a step, whose keys are there.
  __device__ __forceinline__ void start_scores(WideShared<C>& shared, const StageRing<C>& ring) {
    const uint32_t q = C::QTile::k_major(shared.q), k = C::KTile::k_major(shared.stage[ring.stage]);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < C::kDim / 16; ++i)
      ptx::Wgmma<C::kKeys, T>::ss(r_s, tile::descriptor(q + C::QTile::k_major_step(i)),
                                  tile::descriptor(k + C::KTile::k_major_step(i)), i != 0);
    ptx::wgmma_commit();
  }

  // The counterpart's slot is read before it is written again: it belongs to two threads, in turns.
  __device__ __forceinline__ void hand_over(WideShared<C>& shared, const uint32_t (&r_p)[kScores / 2],
                                            int turn) const {
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < kScores / 8; ++i)
      shared.exchange.weights[i][thread] =
          make_uint4(r_p[4 * i], r_p[4 * i + 1], r_p[4 * i + 2], r_p[4 * i + 3]);
    shared.exchange.tops[thread] = make_float2(top[0], top[1]);
    ptx::barrier_arrive(handed(turn), 64);
  }
  __device__ __forceinline__ void take_over(const WideShared<C>& shared, uint32_t (&r_p)[kScores / 2],
                                            int turn) {
    ptx::barrier_sync(handed(turn), 64);
    const int thread = threadIdx.x % 128;
    const float2 tops = shared.exchange.tops[thread];
#pragma unroll
    for (int i = 0; i < kScores / 8; ++i) {
      const uint4 words = shared.exchange.weights[i][thread];
      r_p[4 * i] = words.x, r_p[4 * i + 1] = words.y, r_p[4 * i + 2] = words.z, r_p[4 * i + 3] = words.w;
    }
    if (!__any_sync(~0u, tops.x != top[0] || tops.y != top[1])) return;
    const float risen[2] = {tops.x, tops.y};
    float fall[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      fall[r] = risen[r] == top[r] ? 1.0f : ptx::exp2_approx(top[r] - risen[r]);
      top[r] = risen[r];
      sum[r] *= fall[r];
    }
#pragma unroll
    for (int i = 0; i < C::kHalf / 2; ++i) r_o[i] *= fall[i / 2 % 2];
  }

  // Sums of whole rows, the same bits in both warpgroups.
  __device__ __forceinline__ void finish(WideShared<C>& shared) {
    Base::finish();
    meet_workers<C>();  // weights have been read, where sums are put
    const int thread = threadIdx.x % 128;
    shared.exchange.sums[group][thread] = make_float2(sum[0], sum[1]);
    meet_workers<C>();
    const float2 even = shared.exchange.sums[0][thread], odd = shared.exchange.sums[1][thread];
    sum[0] = even.x + odd.x;
    sum[1] = even.y + odd.y;
  }

 private:
  // Of a warp and its counterpart.
  static __device__ __forceinline__ int handed(int turn) {
    return 3 + 4 * turn + static_cast<int>(threadIdx.x) % 128 / 32;
  }
};

template <typename C>
__device__ __forceinline__ void multiply_in_turns(const WideArgs& args, WideShared<C>& shared) {
  TurnProducts<C> products;
  StageRing<C> ring;
  int turn = 0;
  bool scored = false;  // S of this warpgroup's next step has been made
  wait_for_first_piece<C>();
#pragma unroll 1
  for (int number = 0;; number = number + 1 == WideShared<C>::kPieces ? 0 : number + 1) {
    const sm80::Piece& piece = shared.pieces[number];
    const int count = __shfl_sync(~0u, piece.count, 0);
    if (count == 0) return;
    int key0 = (piece.span.first + piece.at) * C::kKeys;
    products.begin(args, shared, sm80::Unit(piece.span, piece.head, C::kRows));
    ptx::fence_async_shared();
    meet_workers<C>();
#pragma unroll 1
    for (int left = count; left > 0; --left) {
      uint32_t r_p[C::kKeys / 4];
      ptx::mbarrier_wait(&shared.full[ring.stage], ring.parity);
      ptx::fence_async_shared();  // cp.async has written by way of ordinary memory accesses
      const uint32_t v = C::VTile::mn_major(shared.stage[ring.stage] + C::kValuesAt);
      if (products.group == turn) {
        if (!C::kEager || !scored) {
          products.start_scores(shared, ring);
          ptx::wgmma_wait<0>();
          ptx::pin(products.r_s);
        }
        products.weigh(args, shared, key0, r_p);
        products.hand_over(shared, r_p, turn);
        products.issue_values(r_p, v);
        ptx::wgmma_wait<0>();
      } else if (scored = C::kEager && left > 1; scored) {
        const StageRing<C> next = ring.next();
        ptx::mbarrier_wait(&shared.full[next.stage], next.parity);
        ptx::fence_async_shared();
        products.start_scores(shared, next);
        products.take_over(shared, r_p, turn);
        products.issue_values(r_p, v);
        ptx::wgmma_wait<0>();
        ptx::pin(products.r_s);
      } else {
        products.take_over(shared, r_p, turn);
        products.issue_values(r_p, v);
        ptx::wgmma_wait<0>();
      }
      ptx::pin(products.r_o);
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&shared.empty[ring.stage]);
      ring = ring.next();
      turn = 1 - turn;
      key0 += C::kKeys;
    }
    products.finish(shared);
    finish_wide_unit(args, shared, piece, products);
    meet_workers<C>();  // Q and what is known of rows have been read
  }
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_TURNS_H_

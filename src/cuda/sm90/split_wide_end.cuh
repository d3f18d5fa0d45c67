// The end of a unit of a wide block: rows are written from registers, or left as a part in scratch.
#ifndef TILEWISE_CUDA_SM90_SPLIT_WIDE_END_H_
#define TILEWISE_CUDA_SM90_SPLIT_WIDE_END_H_

#include "cuda/sm90/split_wide_join.cuh"
#include "cuda/tile/store.cuh"

namespace tilewise::sm90 {

// Divides by the sums, takes in the sink, writes this warpgroup's columns of O and, the first one, the LSE.
// Rows whose O is not finite are redone.
template <typename C>
__device__ __forceinline__ void write_wide_rows(const sm80::SplitArgs& args, const sm80::Unit& u,
                                                WideProducts<C>& products) {
  using T = typename C::Element;
  const ForwardParams& p = args.params;
  const int lane = threadIdx.x % 32, column0 = products.group * C::kHalf;
  float factor[2];
  int columns[2];
  bool spoiled[2];
  int64_t at[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = products.row() + 8 * r, query = u.query(args, row), head = u.head(args, row);
    const bool written = row < u.rows, real = written && query < u.w.len_q;
    float probe = products.sum[r] * 0.0f;
#pragma unroll
    for (int i = 0; i < C::kHalf / 2; ++i)
      if (i / 2 % 2 == r) probe += products.r_o[i] * 0.0f;
    probe = tile::row_sum(probe);
    spoiled[r] = real && probe != 0.0f;
    const bool sees = real && products.sum[r] != 0.0f;
    const float sink = p.sinks && real ? p.sinks[head * p.sinks_stride] : kNegativeInfinity;
    const sm80::SplitEnd end(products.top[r], products.sum[r], sink);
    factor[r] = sees ? end.factor() : 0.0f;
    columns[r] = written && !spoiled[r] ? static_cast<int>(p.head_dim_v) - column0 : 0;
    at[r] = p.o.at(u.w.batch, u.w.q_begin + query, head) + column0;
    if (p.lse.data && written && !spoiled[r] && products.group == 0 && lane % 4 == 0)
      p.lse.at(u.w.batch, u.w.q_begin + query, head) = sees ? end.lse() : sink;
#pragma unroll
    for (int i = 0; i < C::kHalf / 2; ++i)
      if (i / 2 % 2 == r && !sees) products.r_o[i] = 0.0f;
  }
  if (p.o.dtype == DType::f32)
    tile::store_narrow(products.r_o, factor, static_cast<float*>(p.o.data) + at[0], at[1] - at[0], columns,
                       lane);
  else if (args.wide_stores)
    tile::store_wide<false>(products.r_o, factor, static_cast<T*>(p.o.data) + at[0], at[1] - at[0], columns,
                            lane);
  else
    tile::store_narrow(products.r_o, factor, static_cast<T*>(p.o.data) + at[0], at[1] - at[0], columns, lane);
  if (!__any_sync(~0u, spoiled[0] || spoiled[1])) return;
  const uint32_t first = __ballot_sync(~0u, spoiled[0]), second = __ballot_sync(~0u, spoiled[1]);
#pragma unroll 1
  for (int i = 0; i < 16; ++i) {
    if (!((i < 8 ? first : second) >> i % 8 * 4 & 1)) continue;
    const int row = products.row() - lane / 4 + i;
    sm80::exact_row<T, T>(p, u.w.batch, u.head(args, row), u.kv_head, u.query(args, row), column0,
                          min(column0 + C::kHalf, static_cast<int>(p.head_dim_v)));
  }
}

// By all that multiply, when the sums of rows are whole.
template <typename C>
__device__ __forceinline__ void finish_wide_unit(const WideArgs& args, WideShared<C>& shared,
                                                 const sm80::Piece& piece, WideProducts<C>& products) {
  const sm80::Span& s = piece.span;
  const sm80::Unit u(s, piece.head, C::kRows);
  const bool begun = piece.at > 0, cut = begun || piece.count < s.groups;
  if (!cut && !args.chunks) {
    if (args.cuts && worker<C>() == 0) args.cuts[sm80::unit_of(args, s, piece.head)] = {0, 0};
    return write_wide_rows(args, u, products);
  }

  int64_t index = 2 * static_cast<int64_t>(blockIdx.x) + (begun ? 0 : 1);
  if (args.chunks) index = sm80::unit_of(args, s, piece.head) * args.chunks + s.chunk;
  write_wide_part(sm80::Part<C>(args, index), u, products);
  if (args.chunks) return;

  const int share = sm80::share_of<C>(args, shared.found.total), place = piece.start / share;
  const int first = place * static_cast<int>(args.team.divisor) + sm80::first_head<C>(args);
  const uint32_t blocks = (piece.start + s.groups - 1) / share - place + 1, shift = first % 4 * 8;
  if (args.cuts) {  // joined by the next launch
    if (!begun && worker<C>() == 0)
      args.cuts[sm80::unit_of(args, s, piece.head)] = {first, static_cast<int>(blocks)};
    return;
  }
  meet_workers<C>();  // all of the part is written
  if (worker<C>() == 0) {
    shared.first_block = first;
    shared.blocks = static_cast<int32_t>(blocks);
    __threadfence();
    uint32_t* word = args.counters + first / 4;
    shared.last = (atomicAdd(word, 1u << shift) >> shift & 255u) == blocks - 1;
    if (shared.last) atomicSub(word, blocks << shift);
    __threadfence();
  }
  meet_workers<C>();
  if (!shared.last) return;
  join_wide_rows<C>(args, shared, u, shared.blocks, PartsOfBlocks<C>{args, shared.first_block});
}

}  // namespace tilewise::sm90
#endif  // TILEWISE_CUDA_SM90_SPLIT_WIDE_END_H_

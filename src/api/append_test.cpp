// Appending to a cache against an oracle in double precision, into pages, slots and plain caches; what is not
// the call's stays; what cannot be written is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/half.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

constexpr int64_t kBatch = 3, kRows = 3, kHeads = 2, kDim = 10, kDimV = 6, kPositions = 40, kRotary = 8;
constexpr int64_t kPages = 9, kPageSize = 4, kMaxPages = 5, kCapacity = kMaxPages * kPageSize;

// Numbers in any storage type.
struct Numbers {
  DType dtype;
  std::vector<float> f32;
  std::vector<uint16_t> bits;

  Numbers(DType type, int64_t count, uint64_t seed) : dtype(type) {
    uint64_t state = seed;
    for (int64_t i = 0; i < count; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const float value = static_cast<float>(static_cast<int64_t>(state >> 33) % 4001 - 2000) / 1000.0f;
      if (type == DType::f32) f32.push_back(value);
      if (type == DType::f16) bits.push_back(f16_of_float(value));
      if (type == DType::bf16) bits.push_back(bf16_of_float(value));
    }
  }
  void* data() { return dtype == DType::f32 ? static_cast<void*>(f32.data()) : bits.data(); }
  float at(int64_t i) const {
    const auto n = static_cast<size_t>(i);
    if (dtype == DType::f32) return f32[n];
    return dtype == DType::f16 ? float_of_f16(bits[n]) : float_of_bf16(bits[n]);
  }
};

enum class Place { own, slots, pages };

struct Call {
  Place place;
  Numbers k_new, v_new, cos, sin, k, v;
  std::vector<int32_t> starts{0, 7, 16}, lengths{3, 2, 0}, table, slots{3, 0, 2};
  Append a;

  Call(Place where, DType rows, DType cache)
      : place(where),
        k_new(rows, kBatch * kRows * kHeads * kDim, 1),
        v_new(rows, kBatch * kRows * kHeads * kDimV, 2),
        cos(DType::f32, kPositions * kRotary / 2, 3),
        sin(DType::f32, kPositions * kRotary / 2, 4),
        k(cache, kPages * kCapacity * kHeads * kDim, 5),
        v(cache, kPages * kCapacity * kHeads * kDimV, 6),
        table{8, 0, -1, -1, -1, 1, 5, 2, -1, -1, 3, 4, 6, 7, -1} {
    for (int64_t p = 0; p < kPositions * kRotary / 2; ++p) {
      const double angle = 0.37 * static_cast<double>(p % 23);
      cos.f32[static_cast<size_t>(p)] = static_cast<float>(std::cos(angle));
      sin.f32[static_cast<size_t>(p)] = static_cast<float>(std::sin(angle));
    }
    const int64_t blocks = place == Place::own ? kBatch : place == Place::slots ? 4 : kPages;
    const int64_t rows_of_block = place == Place::pages ? kPageSize : kCapacity;
    a.k_new = Tensor(k_new.data(), rows, {kBatch, kRows, kHeads, kDim});
    a.v_new = Tensor(v_new.data(), rows, {kBatch, kRows, kHeads, kDimV});
    a.starts = Tensor(starts.data(), {kBatch});
    a.lengths = Tensor(lengths.data(), {kBatch});
    a.k = Tensor(k.data(), cache, {blocks, rows_of_block, kHeads, kDim});
    a.v = Tensor(v.data(), cache, {blocks, rows_of_block, kHeads, kDimV});
    if (place == Place::pages) a.page_table = Tensor(table.data(), {kBatch, kMaxPages});
    if (place == Place::slots) a.cache_batch_idx = Tensor(slots.data(), {kBatch});
  }
  void rotate(bool interleaved) {
    a.rotary_cos = Tensor(cos.f32.data(), {kPositions, kRotary / 2});
    a.rotary_sin = Tensor(sin.f32.data(), {kPositions, kRotary / 2});
    a.rotary_interleaved = interleaved ? 1 : 0;
  }
  // Row of the cache, counted over all blocks, that key j of sequence b is.
  int64_t row(int64_t b, int64_t j) const {
    if (place == Place::own) return b * kCapacity + j;
    if (place == Place::slots) return slots[static_cast<size_t>(b)] * kCapacity + j;
    return table[static_cast<size_t>(b * kMaxPages + j / kPageSize)] * kPageSize + j % kPageSize;
  }
};

double turned(const Call& c, int64_t new_at, int64_t d, int64_t position, bool interleaved) {
  const auto k = [&](int64_t i) { return static_cast<double>(c.k_new.at(new_at + i)); };
  if (d >= kRotary) return k(d);
  const int64_t pair = interleaved ? d / 2 : d % (kRotary / 2);
  const bool second = interleaved ? d % 2 == 1 : d >= kRotary / 2;
  const int64_t x = interleaved ? 2 * pair : pair, y = interleaved ? 2 * pair + 1 : pair + kRotary / 2;
  const double cosine = static_cast<double>(c.cos.at(position * kRotary / 2 + pair)),
               sine = static_cast<double>(c.sin.at(position * kRotary / 2 + pair));
  return second ? k(x) * sine + k(y) * cosine : k(x) * cosine - k(y) * sine;
}

TEST(Append, AgreesWithTheOracle) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  const DType types[] = {DType::f32, DType::f16, DType::bf16};
  for (const Place place : {Place::own, Place::slots, Place::pages}) {
    for (const DType rows : types) {
      for (const DType cache : types) {
        for (const int rotary : {0, 1, 2}) {  // none, half-split, interleaved
          Call c(place, rows, cache);
          const Numbers k_before = c.k, v_before = c.v;
          if (rotary) c.rotate(rotary == 2);
          const Status status = cache_append(*context, c.a);
          ASSERT_TRUE(status.ok()) << status.message();
          std::vector<uint8_t> written(static_cast<size_t>(kPages * kCapacity), 0);
          const double unit = cache == DType::f32 ? 0x1p-22 : cache == DType::f16 ? 0x1p-10 : 0x1p-7;
          for (int64_t b = 0; b < kBatch; ++b) {
            for (int64_t i = 0; i < c.lengths[static_cast<size_t>(b)]; ++i) {
              const int64_t position = c.starts[static_cast<size_t>(b)] + i, row = c.row(b, position);
              written[static_cast<size_t>(row)] = 1;
              for (int64_t h = 0; h < kHeads; ++h) {
                const int64_t at = (b * kRows + i) * kHeads + h;
                for (int64_t d = 0; d < kDim; ++d) {
                  const double right = rotary ? turned(c, at * kDim, d, position, rotary == 2)
                                              : static_cast<double>(c.k_new.at(at * kDim + d));
                  EXPECT_NEAR(static_cast<double>(c.k.at((row * kHeads + h) * kDim + d)), right, 3 * unit);
                }
                for (int64_t d = 0; d < kDimV; ++d)
                  EXPECT_NEAR(c.v.at((row * kHeads + h) * kDimV + d), c.v_new.at(at * kDimV + d), 2 * unit);
              }
            }
          }
          for (int64_t row = 0; row < kPages * kCapacity; ++row) {
            if (written[static_cast<size_t>(row)]) continue;
            for (int64_t d = 0; d < kHeads * kDim; ++d)
              ASSERT_EQ(c.k.at(row * kHeads * kDim + d), k_before.at(row * kHeads * kDim + d))
                  << "row " << row;
            for (int64_t d = 0; d < kHeads * kDimV; ++d)
              ASSERT_EQ(c.v.at(row * kHeads * kDimV + d), v_before.at(row * kHeads * kDimV + d))
                  << "row " << row;
          }
        }
      }
    }
  }
}

// N05: rows appended one at a time, two at a time or at once leave the same cache.
TEST(Append, OneByOneIsAllAtOnce) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  Call whole(Place::pages, DType::f32, DType::bf16), single(Place::pages, DType::f32, DType::bf16);
  whole.rotate(false);
  single.rotate(false);
  whole.lengths = {3, 3, 3};
  whole.starts[2] = single.starts[2] = 12;  // where the third sequence has pages
  ASSERT_TRUE(cache_append(*context, whole.a).ok());
  for (int64_t i = 0; i < kRows; ++i) {
    Append one = single.a;
    one.k_new.shape[1] = one.v_new.shape[1] = 1;
    one.k_new.data = single.k_new.f32.data() + i * kHeads * kDim;
    one.v_new.data = single.v_new.f32.data() + i * kHeads * kDimV;
    one.lengths = Tensor();
    ASSERT_TRUE(cache_append(*context, one).ok());
    for (int32_t& start : single.starts) ++start;
  }
  EXPECT_EQ(single.k.bits, whole.k.bits);
  EXPECT_EQ(single.v.bits, whole.v.bits);
}

TEST(Append, RefusesAndLeavesTheCacheAlone) {
  const auto context = Context::create();
  ASSERT_TRUE(context.ok());
  const struct {
    Place place;
    void (*bend)(Call&);
    const char* says;
  } bad[] = {
      {Place::pages, [](Call& c) { c.table[6] = 9; },
       "page_table of sequence 1 entry 1 is 9; accepted: 0 to 8"},
      {Place::pages, [](Call& c) { c.starts[0] = 18; }, "starts[0] is 18; accepted: 0 to 17"},
      {Place::pages, [](Call& c) { c.lengths[1] = 4; },
       "lengths[1] is 4; accepted: 0 to 3, the rows of k_new"},
      {Place::pages, [](Call& c) { c.lengths[1] = -1; }, "lengths[1] is -1"},
      {Place::pages,
       [](Call& c) {
         c.table[5 + 1] = 8;
         c.starts[1] = 5;
       },
       "sequences 0 and 1 both write row 1 of page 8"},
      {Place::slots,
       [](Call& c) {
         c.slots[1] = 3;
         c.starts[1] = 2;
       },
       "sequences 0 and 1 both write row 2 of slot 3"},
      {Place::slots, [](Call& c) { c.slots[2] = 4; },
       "cache_batch_idx[2] is 4; accepted: 0 to 3, the slots of k"},
      {Place::own, [](Call& c) { c.starts[2] = -1; }, "starts[2] is -1"},
      {Place::own, [](Call& c) { c.a.v = Tensor(); }, "v is missing"},
      {Place::own, [](Call& c) { c.a.k.dtype = TILEWISE_I32; }, "k is i32; accepted: f32 or f16 or bf16"},
      {Place::own, [](Call& c) { c.a.k_new.data = c.k.data(); }, "overlaps"},
      {Place::own, [](Call& c) { c.a.rotary_interleaved = 1; }, "rotary_interleaved is 1 without rotary_cos"},
      {Place::own,
       [](Call& c) {
         c.rotate(false);
         c.a.rotary_cos.shape[0] = c.a.rotary_sin.shape[0] = 8;
       },
       "rotary_cos has 8 positions; accepted: 9 or more, as sequence 1 reaches there"},
      {Place::own,
       [](Call& c) {
         c.a.rotary_cos = c.a.rotary_sin = Tensor(c.cos.f32.data(), {8, 6});
       },
       "rotary_dim / 2 = 6; accepted: up to head_dim / 2 = 5"},
      {Place::own,
       [](Call& c) {
         c.a.rotary_cos = c.a.rotary_sin = Tensor(c.cos.f32.data(), {8, 4});
         c.a.rotary_cos.shape[1] = c.a.rotary_sin.shape[1] = -1;
       },
       "rotary_cos has shape [8, -1]; accepted: sizes of 0 and more"},
      {Place::own, [](Call& c) { c.a.k_new.shape[0] = c.a.k_new.shape[1] = -1; },
       "k_new has shape [-1, -1, 2, 10]; accepted: sizes of 0 and more"},
      {Place::own, [](Call& c) { c.a.struct_bytes = 0; }, "append.struct_bytes is 0"},
  };
  for (const auto& b : bad) {
    Call c(b.place, DType::f32, DType::f32);
    const std::vector<float> k_before = c.k.f32, v_before = c.v.f32;
    b.bend(c);
    const Status status = cache_append(*context, c.a);
    EXPECT_EQ(status.code(), Code::invalid) << b.says;
    EXPECT_NE(status.message().find(b.says), std::string::npos) << status.message();
    EXPECT_EQ(c.k.f32, k_before);
    EXPECT_EQ(c.v.f32, v_before);
  }
}

}  // namespace
}  // namespace tilewise

// New keys into caches on a device: the same elements in the same places as on the host.
#include <cstdlib>

#include "core/element.h"
#include "core/text.h"
#include "tests/support/device_call.h"

namespace tilewise {
namespace {

using namespace testing_support;

class CudaAppend : public CudaTest {};

// Rows appended on the device are those appended on the host, element by element but for the last rounding,
// and what a sequence has no place for is not written.
TEST_F(CudaAppend, AppendsWhatTheHostAppends) {
  constexpr int64_t kBatch = 3, kRows = 4, kHeads = 3, kDim = 40, kDimV = 24, kRotary = 16, kPositions = 60;
  constexpr int64_t kPages = 12, kPageSize = 8, kMaxPages = 4;
  const auto noise = [](size_t n, uint64_t seed) {
    std::vector<float> x(n);
    for (float& v : x) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      v = static_cast<float>(static_cast<int64_t>(seed >> 33) % 4001 - 2000) / 1000.0f;
    }
    return x;
  };
  for (const bool paged : {true, false}) {
    for (const int rotary : {0, 1, 2}) {
      std::vector<float> k_new = noise(kBatch * kRows * kHeads * kDim, 1),
                         cos = noise(kPositions * kRotary / 2, 3), sin = noise(kPositions * kRotary / 2, 4),
                         v_new = noise(kBatch * kRows * kHeads * kDimV, 2);
      const int64_t blocks = paged ? kPages : kBatch, rows = paged ? kPageSize : kPageSize * kMaxPages;
      std::vector<uint16_t> k(static_cast<size_t>(blocks * rows * kHeads * kDim), 0x7fc0),
          v(static_cast<size_t>(blocks * rows * kHeads * kDimV), 0x7fc0);
      std::vector<int32_t> starts{0, 7, 25}, lengths{4, 3, 0}, table{8, 0, 9, 10, 1, 5, 2, 11, 3, 4, 6, 7};
      Append host;
      host.k_new = Tensor(k_new.data(), {kBatch, kRows, kHeads, kDim});
      host.v_new = Tensor(v_new.data(), {kBatch, kRows, kHeads, kDimV});
      host.k = Tensor(k.data(), DType::bf16, {blocks, rows, kHeads, kDim});
      host.v = Tensor(v.data(), DType::bf16, {blocks, rows, kHeads, kDimV});
      host.starts = Tensor(starts.data(), {kBatch});
      host.lengths = Tensor(lengths.data(), {kBatch});
      if (paged) host.page_table = Tensor(table.data(), {kBatch, kMaxPages});
      if (rotary) {
        host.rotary_cos = Tensor(cos.data(), {kPositions, kRotary / 2});
        host.rotary_sin = Tensor(sin.data(), {kPositions, kRotary / 2});
        host.rotary_interleaved = rotary == 2;
      }
      cuda::Mirror mirror(0);
      tilewise_tensor* const all[] = {&host.k_new,   &host.v_new,      &host.starts,
                                      &host.lengths, &host.rotary_cos, &host.rotary_sin,
                                      &host.k,       &host.v,          &host.page_table};
      for (const tilewise_tensor* t : all)
        if (t->dtype != TILEWISE_NONE) mirror.add(*t);
      ASSERT_EQ(mirror.upload().message(), "");
      Append device = host;
      tilewise_tensor* const twins[] = {&device.k_new,   &device.v_new,      &device.starts,
                                        &device.lengths, &device.rotary_cos, &device.rotary_sin,
                                        &device.k,       &device.v,          &device.page_table};
      for (tilewise_tensor* t : twins)
        if (t->dtype != TILEWISE_NONE) *t = mirror.twin(*t);
      ASSERT_EQ(cache_append(shared_context().context(), device).message(), "");
      ASSERT_EQ(cache_append(shared_context().context(), host).message(), "");
      const std::vector<uint16_t> k_host = k, v_host = v;
      ASSERT_EQ(cuda::synchronize(0).message(), "");
      ASSERT_EQ(mirror.download(host.k).message(), "");
      ASSERT_EQ(mirror.download(host.v).message(), "");
      EXPECT_EQ(v, v_host);
      for (size_t i = 0; i < k.size(); ++i)
        ASSERT_LE(std::abs(static_cast<int>(k[i]) - static_cast<int>(k_host[i])), rotary ? 1 : 0) << i;
    }
  }
}

// Clamped, a page or slot that is not there would be another sequence's, and its keys be lost: such rows are
// left out, and the others written.
TEST_F(CudaAppend, LeavesOutRowsWithoutAPlace) {
  constexpr int64_t kBatch = 3, kRows = 2, kBlocks = 4, kBlockRows = 2, kDim = 16;
  for (const bool paged : {true, false}) {
    for (const DType dtype : {DType::bf16, DType::i8}) {
      SCOPED_TRACE(cat(name_of(dtype), paged ? " in pages" : " in slots"));
      std::vector<float> k_new(kBatch * kRows * kDim, 1.0f), scales(kBlocks, 0.5f);
      std::vector<uint8_t> k(static_cast<size_t>(kBlocks * kBlockRows * kDim * element_bytes(dtype)), 0x11);
      std::vector<uint8_t> v = k;
      const std::vector<uint8_t> before = k;
      std::vector<int32_t> starts{0, 0, 0}, blocks{-1, kBlocks, 2};
      Append host;
      host.k_new = host.v_new = Tensor(k_new.data(), {kBatch, kRows, 1, kDim});
      host.starts = Tensor(starts.data(), {kBatch});
      host.k = Tensor(k.data(), dtype, {kBlocks, kBlockRows, 1, kDim});
      host.v = Tensor(v.data(), dtype, {kBlocks, kBlockRows, 1, kDim});
      if (paged)
        host.page_table = Tensor(blocks.data(), {kBatch, 1});
      else
        host.cache_batch_idx = Tensor(blocks.data(), {kBatch});
      if (dtype == DType::i8) host.k_scales = host.v_scales = Tensor(scales.data(), {kBlocks, 1});
      EXPECT_NE(cache_append(shared_context().context(), host).message(), "");
      cuda::Mirror mirror(0);
      Append device = host;
      tilewise_tensor* const all[] = {
          &device.k_new,      &device.v_new,           &device.starts,   &device.k,       &device.v,
          &device.page_table, &device.cache_batch_idx, &device.k_scales, &device.v_scales};
      for (const tilewise_tensor* t : all)
        if (t->dtype != TILEWISE_NONE) mirror.add(*t);
      ASSERT_EQ(mirror.upload().message(), "");
      for (tilewise_tensor* t : all)
        if (t->dtype != TILEWISE_NONE) *t = mirror.twin(*t);
      ASSERT_EQ(cache_append(shared_context().context(), device).message(), "");
      ASSERT_EQ(cuda::synchronize(0).message(), "");
      ASSERT_EQ(mirror.download(host.k).message(), "");
      ASSERT_EQ(mirror.download(host.v).message(), "");
      std::vector<uint8_t> right = before;
      for (int64_t i = 0; i < kBlockRows * kDim; ++i)
        store_element(right.data(), dtype, 2 * kBlockRows * kDim + i, dtype == DType::i8 ? 2.0f : 1.0f);
      EXPECT_EQ(k, right);
      EXPECT_EQ(v, right);
    }
  }
}

// The same of quantised caches: with a scale a page, which is read, and with one a row, which is written.
TEST_F(CudaAppend, AppendsInEightBitsWhatTheHostAppends) {
  constexpr int64_t kBatch = 2, kRows = 5, kHeads = 3, kDim = 72, kPages = 9, kPageSize = 4, kMaxPages = 4;
  for (const DType dtype : {DType::i8, DType::f8e4m3}) {
    for (const bool writes : {false, true}) {
      SCOPED_TRACE(cat(name_of(dtype), writes ? " with scales of its own" : ""));
      std::vector<float> k_new(kBatch * kRows * kHeads * kDim), v_new(k_new.size());
      uint64_t state = 11;
      for (auto* x : {&k_new, &v_new})
        for (float& v : *x) {
          state = state * 6364136223846793005ull + 1442695040888963407ull;
          v = static_cast<float>(static_cast<int64_t>(state >> 33) % 4001 - 2000) / 500.0f;
        }
      std::vector<uint8_t> k(kPages * kPageSize * kHeads * kDim, 0x5a), v(k.size(), 0x5a);
      std::vector<float> k_scales(kPages * (writes ? kPageSize : 1) * kHeads, 0.04f),
          v_scales(k_scales.size(), 0.05f);
      std::vector<int32_t> starts{3, 9}, table{8, 0, 3, 7, 1, 5, 2, 4};
      Append host;
      host.k_new = Tensor(k_new.data(), {kBatch, kRows, kHeads, kDim});
      host.v_new = Tensor(v_new.data(), {kBatch, kRows, kHeads, kDim});
      host.starts = Tensor(starts.data(), {kBatch});
      host.page_table = Tensor(table.data(), {kBatch, kMaxPages});
      host.k = Tensor(k.data(), dtype, {kPages, kPageSize, kHeads, kDim});
      host.v = Tensor(v.data(), dtype, {kPages, kPageSize, kHeads, kDim});
      host.k_scales = writes ? Tensor(k_scales.data(), {kPages, kPageSize, kHeads})
                             : Tensor(k_scales.data(), {kPages, kHeads});
      host.v_scales = host.k_scales;
      host.v_scales.data = v_scales.data();
      host.scale_rows = host.write_scales = writes ? 1 : 0;
      cuda::Mirror mirror(0);
      Append device = host;
      tilewise_tensor* const all[] = {&device.k_new, &device.v_new, &device.starts,   &device.page_table,
                                      &device.k,     &device.v,     &device.k_scales, &device.v_scales};
      for (tilewise_tensor* t : all) mirror.add(*t);
      ASSERT_EQ(mirror.upload().message(), "");
      for (tilewise_tensor* t : all) *t = mirror.twin(*t);
      ASSERT_EQ(cache_append(shared_context().context(), device).message(), "");
      ASSERT_EQ(cache_append(shared_context().context(), host).message(), "");
      const auto k_host = k, v_host = v;
      const auto k_scales_host = k_scales, v_scales_host = v_scales;
      ASSERT_EQ(cuda::synchronize(0).message(), "");
      for (const tilewise_tensor* t : {&host.k, &host.v, &host.k_scales, &host.v_scales})
        ASSERT_EQ(mirror.download(*t).message(), "");
      EXPECT_EQ(k, k_host);
      EXPECT_EQ(v, v_host);
      EXPECT_EQ(k_scales, k_scales_host);
      EXPECT_EQ(v_scales, v_scales_host);
    }
  }
}

}  // namespace
}  // namespace tilewise

// `batch_invariant` on a CUDA device, on every row of both directions: the bits of a sequence alone are those
// it has among others, whatever their number and lengths, dense and packed. Skipped with the reason where
// there is no device.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <utility>

#include "core/text.h"
#include "tests/support/device_call.h"
#include "tests/support/kernel_run.h"

namespace tilewise {
namespace {

using namespace testing_support;

constexpr int64_t kRowsQ = 300, kRowsKv = 420;  // of the sequence: some key tiles add to each row of dq

// Where the sequence lies in a problem: its number, the first of its rows in packed tensors.
struct Place {
  std::string words;
  int64_t batch = 0, first_q = 0, first_kv = 0;
};

// q, o, dout, dq; k, v, dk, dv; lse: the sequence's rows of one head after the other.
struct Rows {
  CaseTensor* tensor;
  bool of_keys, is_lse;
};
std::vector<Rows> inputs_of(CaseData& data) {
  return {
      {&data.q, false, false}, {&data.dout, false, false}, {&data.k, true, false}, {&data.v, true, false}};
}
std::vector<Rows> outputs_of(CaseData& data, Direction direction) {
  if (direction == Direction::forward) return {{&data.o, false, false}, {&data.lse, false, true}};
  return {{&data.dq, false, false}, {&data.dk, true, false}, {&data.dv, true, false}};
}

// visit(first byte, bytes) for every row of the sequence.
template <typename Visit>
void for_each_row(const Rows& rows, const Place& place, const Visit& visit) {
  const Tensor& t = rows.tensor->view();
  const bool packed = place.words.find("cu_seqlens") != std::string::npos;
  const int64_t first = !packed ? 0 : rows.of_keys ? place.first_kv : place.first_q;
  const int64_t count = rows.of_keys ? kRowsKv : kRowsQ, size = element_bytes(t.type());
  const int row_at = rows.is_lse ? t.rank - 1 : packed ? 0 : 1, head_at = t.rank - 2;
  const int64_t width = rows.is_lse ? 1 : t.shape[t.rank - 1];
  for (int64_t head = 0; head < t.shape[head_at]; ++head) {
    for (int64_t row = first; row < first + count; ++row) {
      const int64_t at =
          (packed ? 0 : place.batch * t.stride[0]) + row * t.stride[row_at] + head * t.stride[head_at];
      visit(static_cast<std::byte*>(rows.tensor->data()) + at * size, static_cast<size_t>(width * size));
    }
  }
}

std::vector<std::byte> bytes_of(const std::vector<Rows>& all, const Place& place) {
  std::vector<std::byte> bytes;
  for (const Rows& rows : all)
    for_each_row(rows, place,
                 [&](const std::byte* row, size_t count) { bytes.insert(bytes.end(), row, row + count); });
  return bytes;
}

void set_bytes(const std::vector<Rows>& all, const Place& place, const std::vector<std::byte>& bytes) {
  const std::byte* from = bytes.data();
  for (const Rows& rows : all)
    for_each_row(rows, place, [&](std::byte* row, size_t count) {
      std::memcpy(row, from, count);
      from += count;
    });
}

// 300 and 420 rows; among few long ones, among many short ones and among its likes.
std::vector<Place> places(bool packed) {
  if (!packed)
    return {{"seqlen_q=300 seqlen_kv=420"},
            {"batch=3 seqlen_q=900 seqlen_kv=1000 q_lengths=900,300,7 kv_lengths=1000,420,900", 1},
            {"batch=20 seqlen_q=300 seqlen_kv=420", 13}};
  std::string short_q = "0", short_kv = "0";
  int64_t q = 0, kv = 0;
  Place among_short;
  for (int n = 0; n < 60; ++n) {
    if (n == 41) among_short.batch = n, among_short.first_q = q, among_short.first_kv = kv;
    short_q += cat(",", q += n == 41 ? kRowsQ : 1 + n % 40);
    short_kv += cat(",", kv += n == 41 ? kRowsKv : 3 + n % 70);
  }
  among_short.words = cat("cu_seqlens_q=", short_q, " cu_seqlens_kv=", short_kv);
  return {{"cu_seqlens_q=0,300 cu_seqlens_kv=0,420"},
          {"cu_seqlens_q=0,33,333,334,1334 cu_seqlens_kv=0,1000,1420,1421,1500", 1, 33, 1000},
          among_short};
}

struct Width {
  int64_t dim, dim_v;
  DType dtype;
  bool packed;
};

std::vector<Width> widths() {
  std::vector<Width> all;
  for (const bool packed : {false, true}) {
    for (const auto& [dim, dim_v] : {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}})
      all.push_back({dim, dim_v, DType::bf16, packed});
    for (const auto& [dim, dtype] : {std::pair{64, DType::f16}, {64, DType::f32}, {128, DType::f32}})
      all.push_back({dim, dim, dtype, packed});
  }
  return all;
}

class CudaInvariance : public CudaTest, public testing::WithParamInterface<Width> {};
INSTANTIATE_TEST_SUITE_P(Widths, CudaInvariance, testing::ValuesIn(widths()), [](const auto& width) {
  return cat("d", width.param.dim, "_", width.param.dim_v, "_", name_of(width.param.dtype),
             width.param.packed ? "_packed" : "_dense");
});

// Q05 of cases/faults.txt.
TEST_P(CudaInvariance, ASequenceDoesNotDependOnItsNeighbours) {
  const auto& [dim, dim_v, dtype, packed] = GetParam();
  const RunOptions on_device{1, Poison::nan, &*cuda_device()};
  for (const char* words : {"", " causal=bottom-right", " window=100,20 softcap=9 alibi=h"}) {
    const auto make = [&](const Place& place, uint64_t seed) {
      return CaseData(parsed(cat("name=i ", place.words,
                                 " heads_q=4 heads_kv=2 batch_invariant=1 poison_unseen=0 head_dim=", dim,
                                 " head_dim_v=", dim_v, words)),
                      dtype, seed);
    };
    const std::vector<Place> where = places(packed);
    CaseData alone = make(where[0], 5);
    const auto given = bytes_of(inputs_of(alone), where[0]);
    std::map<std::string, std::vector<std::byte>> bits;
    for (size_t n = 0; n < where.size(); ++n) {
      CaseData data = make(where[n], 5 + n);
      set_bytes(inputs_of(data), where[n], given);
      if (alone.alibi_slopes.present())
        std::memcpy(data.alibi_slopes.data(), alone.alibi_slopes.data(), 4 * sizeof(float));
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        std::vector<const char*> names;
        for (const Kernel* kernel : kernels_of(direction, true)) names.push_back(kernel->name);
        names.push_back(nullptr);  // last the planner's choice, whose o and lse the backward gets
        int ran = 0;
        for (const char* name : names) {
          SCOPED_TRACE(cat(name ? name : "the planner's choice", " on ", data.source.text));
          const RunResult result = run_kernel(shared_context(), name, data, direction, on_device);
          ASSERT_EQ(result.failure, "");
          if (!result.ran) continue;
          ++ran;
          const auto now = bytes_of(outputs_of(data, direction), where[n]);
          auto& before =
              bits[cat(direction == Direction::forward ? "forward " : "backward ", name ? name : "")];
          if (n == 0) before = now;
          EXPECT_TRUE(now == before) << "other bits than alone";
        }
        EXPECT_GE(ran, 2);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise

// Strides that 32 bits do not hold, in every CPU row. What lies far apart lies in sparse memory, and the
// answer is that of the same numbers close together, bit for bit; numbers are the records' of the guides.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "core/text.h"
#include "tests/support/far_tensors.h"

namespace tilewise {
namespace {

using namespace testing_support;

// K10's own number. Twice it is 2^32: cut to 32 bits, slice 1 lies below its tensor and slice 2 on slice 0.
constexpr int64_t kStride = 0x80000000, kMostSlices = 8;

// Every dimension of every tensor in turn.
void spread_each(const SparseMemory& memory, const Kernel& kernel, const std::string& line,
                 std::set<std::string>* beyond_32_bits) {
  const Direction direction = kernel.op == Op::forward ? Direction::forward : Direction::backward;
  CaseData data = data_for(kernel, line);
  const RunResult plain = run_kernel(shared_context(), kernel.name, data, direction, {2, Poison::nan});
  ASSERT_EQ(plain.failure, "");
  if (!plain.ran) return;
  const Problem problem = data.problem(direction);
  const auto right = output_bits_of(data, direction);
  for (const Place& place : kPlaces) {
    data.poison_outputs(direction, Poison::nan);
    const Tensors close = data.tensors(direction);
    const Tensor own = close.*place.tensor;
    if (!own.present()) continue;
    for (int spread = 0; spread < own.rank - (place.is_rows ? 1 : 0); ++spread) {
      if (own.shape[spread] < 2) continue;
      SCOPED_TRACE(cat("dimension ", spread, " of ", place.name, " spread"));
      ASSERT_LE(own.shape[spread], kMostSlices);
      for (int64_t n = 0; n < own.shape[spread]; ++n) {
        ASSERT_TRUE(memory.clear(n * kStride * bits_of(own.type()) / 8, 1 << 16));
      }
      data.poison_outputs(direction, Poison::nan);
      Tensors tensors = close;
      Tensor far = own;
      far.data = memory.data();
      far.stride[spread] = kStride;
      copy_elements(own, far, stay);
      tensors.*place.tensor = far;
      ASSERT_EQ(run_on(kernel, problem, tensors).message(), "");
      if (own.shape[spread] > 2) beyond_32_bits->insert(place.name);
      size_t n = 0;
      for (const auto& [name, output] : data.outputs(direction)) {
        const bool moved = name == place.name;
        ASSERT_EQ(moved_bits(output->view(), moved ? far : output->view(), stay), right[n++]) << name;
      }
    }
  }
}

TEST(Far, K10_EveryDimensionOfEveryTensorPasses32Bits) {
  struct Line {
    const char* text;
    const char* expected;  // places of at least three slices, so past 2^32
  };
  const Line lines[] = {
      {"name=plain batch=3 heads_q=3 seqlen_q=3 head_dim=8", "q k v o lse dout dq dk dv"},
      {"name=scores batch=3 heads_q=3 seqlen_q=3 head_dim=8 mask=bhqk:random:0.7 bias=bhqk:random alibi=bh "
       "sinks=random dlse=1",
       "q k v o lse bias mask alibi_slopes sinks dout dlse dq dk dv dbias dsinks"},
      {"name=bits batch=3 heads_q=3 heads_kv=1 seqlen_q=3 head_dim=8 mask_bits=bhqk:random:0.7 delta=1 "
       "segments=list:1,1,2 kv_ranges=list:0,3,0,2,1,3",
       "q k v o lse mask segment_ids_q segment_ids_kv kv_ranges dout delta dq dk dv"},
      {"name=lengths batch=3 heads_q=3 seqlen_q=3 head_dim=8 q_lengths=3,1,2 kv_lengths=3,2,1 "
       "kv_starts=0,1,0 q_offset=0,1,2 causal=bottom-right",
       "q k v o lse q_lengths kv_lengths kv_starts q_offset dout dq dk dv"},
      {"name=packed heads_q=3 heads_kv=1 head_dim=8 cu_seqlens_q=0,1,3 cu_seqlens_kv=0,2,3 dlse=1 "
       "segments=list:1,1,1 kv_ranges=list:0,2,0,1,0,1",
       "q k v o lse cu_seqlens_q cu_seqlens_kv segment_ids_q segment_ids_kv kv_ranges dout dlse dq dk dv"},
      {"name=pages batch=2 heads_q=3 seqlen_q=2 seqlen_kv=5 head_dim=8 page_size=2",
       "q k v o lse page_table k_scales v_scales"},
      {"name=slots batch=3 heads_q=3 seqlen_q=1 seqlen_kv=3 head_dim=8 cache_batch_idx=1,0,3",
       "q k v o lse cache_batch_idx k_scales v_scales"},
      {"name=scale_rows batch=3 heads_q=3 seqlen_q=1 seqlen_kv=3 head_dim=8 dtype_kv=i8 scale_rows=1",
       "q k v o lse k_scales v_scales"}};
  const SparseMemory memory(kMostSlices * kStride * 4 + (1 << 16));
  if (memory.data() == nullptr) GTEST_SKIP() << "no address space for " << memory.bytes() << " bytes";
  for (const auto& [line, expected] : lines) {
    const Case c = parsed(line);
    const bool says_kv = c.dtype_kv != DType::none;
    std::set<std::string> beyond_32_bits;
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      if (direction == Direction::backward && !c.backward) continue;
      for (const Kernel* kernel : kernels_of(direction)) {
        if (says_kv && kernel->dtype_kv != DType::none) continue;  // the line names one
        SCOPED_TRACE(cat(kernel->name, " on ", line));
        spread_each(memory, *kernel, line, &beyond_32_bits);
        if (HasFatalFailure()) return;
      }
    }
    std::istringstream names(expected);
    for (std::string name; names >> name;) EXPECT_EQ(beyond_32_bits.count(name), 1u) << name << ": " << line;
  }
}

// Keys stored [24000, 700, 128], of which a call sees one of the 700.
TEST(Far, K05_RowsOfKeysFarApart) {
#ifdef TILEWISE_EMULATED
  GTEST_SKIP() << "an emulator takes minutes over it; K10 runs under it";
#endif
  constexpr int64_t kKeys = 24000, kRow = 700 * 128;
  const Case c = parsed("name=keys seqlen_q=3 seqlen_kv=24000 head_dim=128 poison_unseen=0");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const SparseMemory memory(kKeys * kRow * element_bytes(dtype));
    if (memory.data() == nullptr) GTEST_SKIP() << "no address space for " << memory.bytes() << " bytes";
    CaseData data(c, dtype, 5);
    data.set_forward_result(expect_forward(data.params(Direction::forward)));
    int64_t part = 0;  // of a stored row's 700: all four share a page of memory
    const auto far_rows = [&](const CaseTensor& close) {
      Tensor far = close.view();
      far.data = memory.data() + 128 * part++ * element_bytes(dtype);
      far.stride[1] = kRow;
      return far;
    };
    const Tensor k = far_rows(data.k), v = far_rows(data.v), dk = far_rows(data.dk), dv = far_rows(data.dv);
    copy_elements(data.k.view(), k, stay);
    copy_elements(data.v.view(), v, stay);
    int ran = 0;
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      for (const Kernel* kernel : kernels_of(direction)) {
        if (kernel->target == Target::reference) continue;  // slow
        SCOPED_TRACE(cat(kernel->name, " ", name_of(dtype)));
        const RunResult close = run_kernel(shared_context(), kernel->name, data, direction, {2, Poison::nan});
        ASSERT_EQ(close.failure, "");
        if (!close.ran) continue;
        ++ran;
        const auto right = output_bits_of(data, direction);
        Tensors tensors = data.tensors(direction);
        tensors.k = k;
        tensors.v = v;
        const bool back = direction == Direction::backward;
        if (back) {
          tensors.dk = dk;
          tensors.dv = dv;
          data.poison_outputs(direction, Poison::nan);
          copy_elements(data.dk.view(), dk, stay);
          copy_elements(data.dv.view(), dv, stay);
        }
        ASSERT_EQ(run_on(*kernel, data.problem(direction), tensors).message(), "");
        EXPECT_TRUE(moved_bits(back ? data.dq.view() : data.o.view(), back ? data.dq.view() : data.o.view(),
                               stay) == right[0]);
        if (!back) continue;
        EXPECT_TRUE(moved_bits(data.dk.view(), dk, stay) == right[1]);
        EXPECT_TRUE(moved_bits(data.dv.view(), dv, stay) == right[2]);
      }
    }
    EXPECT_GT(ran, 4);
  }
}

}  // namespace
}  // namespace tilewise

// Counts that 32 bits do not hold, or that once did not fit: a mask's elements, pages, sequences, tokens. In
// every CPU row, on sparse memory; numbers are the records' of the guides.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/text.h"
#include "tests/support/far_tensors.h"
#include "tests/support/long_mask.h"

namespace tilewise {
namespace {

using namespace testing_support;

void check_long_mask(const SparseMemory& memory, DType mask_dtype, DType dtype) {
  SCOPED_TRACE(cat(name_of(mask_dtype), " mask, ", name_of(dtype)));
  ASSERT_TRUE(memory.clear(0, memory.bytes()));
  LongMask mask(memory, mask_dtype, dtype);
  int ran = 0;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const Expectation answer = mask.answer(direction);  // backward: on o and lse of the last forward
    for (const Kernel* kernel : kernels_of(direction)) {
      if (!LongMask::is_for(*kernel)) continue;
      SCOPED_TRACE(kernel->name);
      mask.data.poison_outputs(direction, Poison::nan);
      Tensors tensors = mask.data.tensors(direction);
      tensors.mask = mask.mask;
      const Status status = run_on(*kernel, mask.problem(direction), tensors);
      if (status.code() == Code::unsupported) continue;
      ASSERT_EQ(status.message(), "");
      ++ran;
      const Comparison worst = compare_outputs(mask.data, direction, answer);
      EXPECT_TRUE(worst.passed()) << worst.text;
    }
  }
  EXPECT_GT(ran, 2);
}

TEST(Far, K03_K04_AMaskOf46342RowsAndKeys) {
#if defined(TILEWISE_EMULATED) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "an emulator or AddressSanitizer takes minutes over it; K10 runs under both";
#endif
  const SparseMemory memory(LongMask::kElements);
  if (memory.data() == nullptr) GTEST_SKIP() << "no address space for " << memory.bytes() << " bytes";
  for (const DType mask : {DType::boolean, DType::bit}) {
    for (const DType dtype : {DType::f32, DType::bf16}) check_long_mask(memory, mask, dtype);
  }
}

// 8300 sequences of the same numbers: each gets what the one alone gets.
TEST(Far, K06_ABatchOf8300) {
#if defined(TILEWISE_EMULATED) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "an emulator or AddressSanitizer takes minutes over it; K10 runs under both";
#endif
  constexpr int64_t kBatch = 8300, kRoom = int64_t{1} << 28;
  const std::string line = "name=batch heads_q=16 seqlen_q=1 head_dim=128 sinks=random wants=dq,dk,dv";
  const SparseMemory memory(3 * kRoom);
  if (memory.data() == nullptr) GTEST_SKIP() << "no address space for " << memory.bytes() << " bytes";
  int ran = 0;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Kernel* kernel : kernels_of(direction)) {
      if (kernel->dtype != DType::bf16 || kernel->target == Target::reference) continue;
      SCOPED_TRACE(kernel->name);
      CaseData data = data_for(*kernel, line);
      const RunResult alone = run_kernel(shared_context(), kernel->name, data, direction, {2, Poison::nan});
      ASSERT_EQ(alone.failure, "");
      if (!alone.ran) continue;
      ++ran;
      ASSERT_TRUE(memory.clear(0, memory.bytes()));
      Tensors tensors = data.tensors(direction);
      for (const Place& place : kPlaces) {
        tilewise_tensor& t = tensors.*place.tensor;
        if (t.dtype == TILEWISE_NONE || t.rank < 3) continue;
        t.shape[0] = kBatch;
        t.stride[0] = 0;
      }
      std::vector<Tensor> many;
      for (const auto& [name, output] : data.outputs(direction)) {
        Tensor out(memory.data() + static_cast<int64_t>(many.size()) * kRoom, output->dtype(), {});
        out.rank = output->view().rank;
        int64_t stride = 1;
        for (int n = out.rank - 1; n >= 0; --n) {
          out.shape[n] = n == 0 ? kBatch : output->view().shape[n];
          out.stride[n] = stride;
          stride *= out.shape[n];
        }
        for (const Place& place : kPlaces) {
          if (name == place.name) tensors.*place.tensor = out;
        }
        many.push_back(out);
      }
      Problem problem = data.problem(direction);
      problem.batch = kBatch;
      ASSERT_EQ(run_on(*kernel, problem, tensors).message(), "");
      size_t n = 0;
      for (const auto& [name, output] : data.outputs(direction)) {
        const Tensor& out = many[n++];
        const auto bytes = static_cast<size_t>(out.stride[0] * element_bytes(out.type()));
        const auto* right = static_cast<const std::byte*>(output->data());
        EXPECT_TRUE(std::any_of(right, right + bytes, [](std::byte b) { return b != std::byte{0}; })) << name;
        for (int64_t b = 0; b < kBatch; ++b) {
          const auto* got = static_cast<const std::byte*>(out.data) + static_cast<size_t>(b) * bytes;
          ASSERT_EQ(std::memcmp(got, right, bytes), 0) << name << " of sequence " << b;
        }
      }
    }
  }
  EXPECT_GT(ran, 2);
}

// The pages of a few keys are the last of 8.5 million.
TEST(Far, K09_MoreThan8MillionPages) {
  constexpr int64_t kPages = 8'500'000, kRoom = kPages * 16 * 2 * 16 * 4;
  const SparseMemory memory(4 * kRoom);
  if (memory.data() == nullptr) GTEST_SKIP() << "no address space for " << memory.bytes() << " bytes";
  for (const Kernel* kernel : kernels_of(Direction::forward)) {
    SCOPED_TRACE(kernel->name);
    CaseData data =
        data_for(*kernel, "name=pages batch=2 heads_q=2 seqlen_q=1 seqlen_kv=40 head_dim=16 page_size=16");
    const RunResult close =
        run_kernel(shared_context(), kernel->name, data, Direction::forward, {2, Poison::nan});
    ASSERT_EQ(close.failure, "");
    if (!close.ran) continue;
    const auto right = output_bits_of(data, Direction::forward);
    data.poison_outputs(Direction::forward, Poison::nan);
    Tensors tensors = data.tensors(Direction::forward);
    int part = 0;
    for (tilewise_tensor* own : {&tensors.k, &tensors.v, &tensors.k_scales, &tensors.v_scales}) {
      Tensor far = *own;
      if (!far.present()) continue;
      far.data = memory.data() + part++ * kRoom;
      far.shape[0] = kPages;
      copy_elements(*own, far, [](Index* index) { (*index)[0] = kPages - 1 - (*index)[0]; });
      *own = far;
    }
    std::vector<int32_t> table;
    for_each_element(data.page_table.view(), [&](const Index&, int64_t at, int64_t) {
      const int32_t page = static_cast<const int32_t*>(data.page_table.data())[at];
      table.push_back(page < 0 ? page : static_cast<int32_t>(kPages - 1 - page));
    });
    tensors.page_table = Tensor(table.data(), {2, 3});
    Problem problem = data.problem(Direction::forward);
    problem.num_pages = kPages;
    ASSERT_EQ(run_on(*kernel, problem, tensors).message(), "");
    EXPECT_TRUE(output_bits_of(data, Direction::forward) == right);
  }
}

// 513 packed sequences of 512 tokens with 32 heads of 256, of which the call sees a part of the last head.
// All but the first sequence and the last have no rows; what these two get is what they get beside one empty
// sequence.
TEST(Far, K12_TokensTimesHeadsTimesDim) {
  constexpr int64_t kSequences = 513, kTokens = 512, kTotal = kSequences * kTokens, kRow = 32 * 256;
  constexpr int64_t kRoom = kTotal * kRow * 4;
  const std::string line =
      "name=tokens head_dim=8 cu_seqlens_q=0,512,1024,1536 cu_seqlens_kv=0,512,1024,1536 q_lengths=5,0,7 "
      "kv_lengths=9,0,6";
  const auto move_token = [](int dimension) {
    return [dimension](Index* index) {
      int64_t& token = (*index)[static_cast<size_t>(dimension)];
      if (token >= kTokens) token += (kSequences - 3) * kTokens;
    };
  };
  std::vector<int32_t> cu_seqlens, q_lengths(kSequences, 0), kv_lengths(kSequences, 0);
  for (int64_t n = 0; n <= kSequences; ++n) cu_seqlens.push_back(static_cast<int32_t>(n * kTokens));
  q_lengths.front() = 5;
  q_lengths.back() = 7;
  kv_lengths.front() = 9;
  kv_lengths.back() = 6;
  const SparseMemory memory(9 * kRoom);
  if (memory.data() == nullptr) GTEST_SKIP() << "no address space for " << memory.bytes() << " bytes";
  int ran = 0;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Kernel* kernel : kernels_of(direction)) {
      if (kernel->dtype_kv != DType::none) continue;  // its scales belong to sequences, not to tokens
      SCOPED_TRACE(kernel->name);
      CaseData data = data_for(*kernel, line);
      const RunResult close = run_kernel(shared_context(), kernel->name, data, direction, {2, Poison::nan});
      ASSERT_EQ(close.failure, "");
      if (!close.ran) continue;
      ++ran;
      const auto right = output_bits_of(data, direction);
      const auto outputs = data.outputs(direction);
      Tensors tensors = data.tensors(direction);
      int64_t part = 0;
      std::vector<Tensor> far_outputs(outputs.size());
      for (const Place& place : kPlaces) {
        const Tensor own = tensors.*place.tensor;
        const int dimension = place.is_rows ? 0 : 1;
        if (!own.present() || own.rank != (place.is_rows ? 3 : 2)) continue;
        Tensor far = own;
        far.data = memory.data() + part++ * kRoom;
        far.shape[dimension] = kTotal;
        const bool is_input = (own.flags & TILEWISE_READ_ONLY) != 0;
        if (place.is_rows && is_input) {
          far.data = static_cast<std::byte*>(far.data) + 31 * 256 * element_bytes(far.type());
          far.stride[0] = kRow;
        }
        if (!place.is_rows) far.stride[0] = kTotal;
        if (is_input)
          copy_elements(own, far, move_token(dimension));
        else
          ASSERT_TRUE(memory.clear((part - 1) * kRoom, kTotal * 8 * 4));
        for (size_t n = 0; n < outputs.size(); ++n) {
          if (outputs[n].first == place.name) far_outputs[n] = far;
        }
        tensors.*place.tensor = far;
      }
      tensors.cu_seqlens_q = tensors.cu_seqlens_kv = Tensor(cu_seqlens.data(), {kSequences + 1});
      tensors.q_lengths = Tensor(q_lengths.data(), {kSequences});
      tensors.kv_lengths = Tensor(kv_lengths.data(), {kSequences});
      Problem problem = data.problem(direction);
      problem.batch = kSequences;
      problem.total_q = problem.total_kv = kTotal;
      ASSERT_EQ(run_on(*kernel, problem, tensors).message(), "");
      for (size_t n = 0; n < outputs.size(); ++n) {
        const int dimension = outputs[n].first == "lse" ? 1 : 0;
        EXPECT_TRUE(moved_bits(outputs[n].second->view(), far_outputs[n], move_token(dimension)) == right[n])
            << outputs[n].first;
      }
    }
  }
  EXPECT_GT(ran, 4);
}

}  // namespace
}  // namespace tilewise

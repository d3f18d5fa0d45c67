// Sizes that 32 bits do not hold, in every CUDA row: each tensor of rows reaches past 2^31 elements, by its
// batches, its rows or its heads, each of scores past 2^32; and more sequences and heads than a grid has
// blocks in y. What begins with K and a number is that record of the guides.

#include <gtest/gtest.h>

#include <cstring>

#include "core/text.h"
#include "tests/support/device_call.h"
#include "tests/support/long_mask.h"

namespace tilewise {
namespace {

using namespace testing_support;

class CudaFar : public CudaTest {};

int64_t bytes_of(const tilewise_tensor& tensor) { return element_bytes(static_cast<DType>(tensor.dtype)); }

// Tensors of 4 dimensions in one block: slice i of dimension `far` of each begins i * kStep elements behind
// its first, all else densely. most_bytes: of an element of any of them.
class Spread {
 public:
  Spread(int far, int64_t most_bytes, int64_t slices = 2) : far_(far), most_bytes_(most_bytes) {
    const int64_t elements = (slices - 1) * kStep + kRoom * kMost;
    EXPECT_EQ(cuda::allocate(0, elements * most_bytes, &block_).message(), "");
  }
  ~Spread() { cuda::release(0, block_); }
  Spread(const Spread&) = delete;
  Spread& operator=(const Spread&) = delete;

  bool ok() const { return block_ != nullptr; }
  // Copies the host's tensor; what stands for it on the device.
  tilewise_tensor upload(const tilewise_tensor& host, int place) {
    tilewise_tensor there = host;
    there.device_kind = TILEWISE_CUDA;
    there.data = static_cast<std::byte*>(block_) + place * kRoom * most_bytes_;
    int64_t stride = 1;
    for (int i = 3; i >= 0; --i) {
      there.stride[i] = i == far_ ? kStep : stride;
      if (i != far_) stride *= host.shape[i];
    }
    EXPECT_LE(stride, kRoom);
    each_slice(host, there, [&](std::byte* dense, std::byte* far, int64_t bytes) {
      gather(host, dense, true);
      return cuda::copy(0, far, dense, bytes);
    });
    return there;
  }
  void download(const tilewise_tensor& host, const tilewise_tensor& there) {
    each_slice(host, there, [&](std::byte* dense, std::byte* far, int64_t bytes) {
      const Status status = cuda::copy(0, dense, far, bytes);
      gather(host, dense, false);
      return status;
    });
  }

  static constexpr int64_t kStep = (int64_t{1} << 31) + 64, kRoom = int64_t{1} << 16, kMost = 8;

 private:
  template <typename Copy>
  void each_slice(const tilewise_tensor& host, const tilewise_tensor& there, Copy copy) {
    int64_t bytes = bytes_of(host);
    for (int i = 0; i < 4; ++i) bytes *= i == far_ ? 1 : host.shape[i];
    std::vector<std::byte> dense(static_cast<size_t>(bytes));
    for (slice_ = 0; slice_ < host.shape[far_]; ++slice_) {
      auto* far = static_cast<std::byte*>(there.data) + slice_ * kStep * bytes_of(host);
      EXPECT_EQ(copy(dense.data(), far, bytes).message(), "");
    }
  }
  void gather(const tilewise_tensor& host, std::byte* dense, bool from_host) const {
    const int64_t element = bytes_of(host);
    int64_t first[4] = {0, 0, 0, 0}, end[4];
    std::copy(host.shape, host.shape + 4, end);
    first[far_] = slice_;
    end[far_] = slice_ + 1;
    for (int64_t a = first[0]; a < end[0]; ++a)
      for (int64_t b = first[1]; b < end[1]; ++b)
        for (int64_t c = first[2]; c < end[2]; ++c, dense += host.shape[3] * element) {
          auto* row = static_cast<std::byte*>(host.data) +
                      (a * host.stride[0] + b * host.stride[1] + c * host.stride[2]) * element;
          const auto bytes = static_cast<size_t>(host.shape[3] * element);
          from_host ? std::memcpy(dense, row, bytes) : std::memcpy(row, dense, bytes);
        }
  }

  int far_;
  int64_t most_bytes_, slice_ = 0;
  void* block_ = nullptr;
};

constexpr tilewise_tensor tilewise_tensors::*kInputs[] = {&tilewise_tensors::q, &tilewise_tensors::k,
                                                          &tilewise_tensors::v, &tilewise_tensors::o,
                                                          &tilewise_tensors::dout};
constexpr tilewise_tensor tilewise_tensors::*kGradients[] = {&tilewise_tensors::dq, &tilewise_tensors::dk,
                                                             &tilewise_tensors::dv};

// Runs `kernel` on the call's data once `place`, which gets the outputs poisoned, has said where its tensors
// lie; `back` brings the outputs from there. False where the kernel refuses.
template <typename Place, typename Back>
bool run_row(const Kernel& kernel, Direction direction, DeviceCall& call, const Expectation& expected,
             Place place, Back back) {
  Limits limits;
  limits.kernel = kernel.name;
  const auto made = plan(call.data.problem(direction), *cuda_device(), limits);
  if (!made) return false;
  const Context& context = shared_context().context();
  EXPECT_EQ(prepare(context, *made).message(), "");
  call.data.poison_outputs(direction, Poison::nan);
  EXPECT_EQ(call.mirror.upload().message(), "");
  const Tensors tensors = place();
  auto memory = Workspace::make(*made);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  const tilewise_workspace workspace = *memory;
  constexpr int kNan = 0xff;
  EXPECT_EQ(cuda::fill(0, static_cast<std::byte*>(workspace.data) + TILEWISE_CONTROL_BYTES, kNan,
                       workspace.bytes - TILEWISE_CONTROL_BYTES)
                .message(),
            "");
  const Status status = direction == Direction::forward ? forward(context, *made, tensors, workspace)
                                                        : backward(context, *made, tensors, workspace);
  EXPECT_EQ(status.message(), "");
  call.download(kernel.name);
  back(tensors);
  const Comparison worst = compare_outputs(call.data, direction, expected);
  EXPECT_TRUE(worst.passed()) << worst.text;
  EXPECT_EQ(call.data.damage(direction, expected), "");
  return true;
}

using Places = std::vector<tilewise_tensor tilewise_tensors::*>;

Places rows_of(Direction direction) {
  Places rows(std::begin(kInputs), std::end(kInputs));
  if (direction == Direction::backward)
    rows.insert(rows.end(), std::begin(kGradients), std::end(kGradients));
  else
    rows.pop_back();
  return rows;
}

// With these tensors spread.
bool run_far(const Kernel& kernel, Direction direction, DeviceCall& call, Spread& spread,
             const Expectation& expected, const Places& places) {
  const Tensors host = call.data.tensors(direction);
  return run_row(
      kernel, direction, call, expected,
      [&] {
        Tensors far = call.tensors;
        int place = 0;
        for (const auto tensor : places) far.*tensor = spread.upload(host.*tensor, place++);
        return far;
      },
      [&](const Tensors& far) {
        for (const auto tensor : places) spread.download(host.*tensor, far.*tensor);
      });
}

constexpr const char* kDims[] = {"head_dim=64", "head_dim=96", "head_dim=128", "head_dim=192 head_dim_v=128",
                                 "head_dim=256"};

TEST_F(CudaFar, EveryRowTakesTensorsPast2To31Elements) {
  if (cuda_device()->memory_bytes < int64_t{12} << 30) GTEST_SKIP() << "the device has too little memory";
  const struct {
    int far;
    const char* line;
  } cases[] = {{0, "name=batch batch=2 heads_q=2 seqlen_q=20 seqlen_kv=30 "},
               {1, "name=rows heads_q=2 seqlen_q=2 seqlen_kv=2 "},
               {2, "name=heads heads_q=2 seqlen_q=20 seqlen_kv=30 causal=bottom-right "}};
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const auto& [far, line] : cases) {
      Spread spread(far, bits_of(dtype) / 8);
      ASSERT_TRUE(spread.ok());
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        std::vector<const Kernel*> left = kernels_of(direction, true);
        std::erase_if(left, [&](const Kernel* row) {  // quantised caches have a test of their own
          return row->dtype_kv != DType::none || (row->dtype != dtype && row->dtype != DType::none) ||
                 (row->target == Target::sm90 && cuda_device()->isa != 90);
        });
        for (const char* dims : kDims) {
          DeviceCall call(cat(line, dims), dtype, direction);
          const Expectation expected = call.expectation();
          std::erase_if(left, [&](const Kernel* row) {
            SCOPED_TRACE(cat(row->name, ": ", call.source.text));
            return run_far(*row, direction, call, spread, expected, rows_of(direction));
          });
        }
        for (const Kernel* row : left) ADD_FAILURE() << row->name << " ran no case: " << line;
      }
    }
  }
}

// Twice the step is past 2^32: cut to 32 bits, slice 2 lies beside slice 0.
TEST_F(CudaFar, K10_MasksAndBiasesWhoseSlicesLie2To31ElementsApart) {
  if (cuda_device()->memory_bytes < int64_t{20} << 30) GTEST_SKIP() << "the device has too little memory";
  for (const int far : {0, 1}) {
    Spread spread(far, 4, 3);
    ASSERT_TRUE(spread.ok());
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      Places places = {&tilewise_tensors::mask, &tilewise_tensors::bias};
      if (direction == Direction::backward) places.push_back(&tilewise_tensors::dbias);
      int ran = 0;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        DeviceCall call(
            "name=scores batch=3 heads_q=3 seqlen_q=20 seqlen_kv=30 head_dim=64 mask=bhqk:random:0.7 "
            "bias=bhqk:random",
            dtype, direction);
        const Expectation expected = call.expectation();
        for (const Kernel* kernel : kernels_of(direction, true)) {
          if (kernel->dtype_kv != DType::none) continue;
          SCOPED_TRACE(cat(kernel->name, " ", name_of(dtype), ", dimension ", far));
          ran += run_far(*kernel, direction, call, spread, expected, places);
        }
      }
      EXPECT_GE(ran, 2);
    }
  }
}

// Device memory, of the first device.
class Block {
 public:
  explicit Block(int64_t bytes) { EXPECT_EQ(cuda::allocate(0, bytes, &data_).message(), ""); }
  ~Block() { cuda::release(0, data_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// The mask on the device: of its rows the first and the last, where alone it holds anything.
tilewise_tensor upload_ends(const Tensor& mask, const Block& block) {
  const int64_t bits = bits_of(mask.type()), bytes = (LongMask::kElements * bits + 7) / 8;
  const int64_t end = LongMask::kSeeing * LongMask::kLength * bits / 8 + 1;
  EXPECT_EQ(cuda::fill(0, block.data(), 0, bytes).message(), "");
  for (const int64_t at : {int64_t{0}, bytes - end}) {
    const auto* host = static_cast<const std::byte*>(mask.data) + at;
    EXPECT_EQ(cuda::copy(0, block.data() + at, host, end).message(), "");
  }
  tilewise_tensor there = mask;
  there.device_kind = TILEWISE_CUDA;
  there.data = block.data();
  return there;
}

TEST_F(CudaFar, K03_K04_AMaskOf46342RowsAndKeys) {
  const SparseMemory bytes(LongMask::kElements), bits(LongMask::kElements / 8 + 1);
  if (!bytes.data() || !bits.data()) GTEST_SKIP() << "no address space for " << bytes.bytes() << " bytes";
  LongMask masks[] = {{bytes, DType::boolean, DType::bf16}, {bits, DType::bit, DType::bf16}};
  const Block blocks[] = {Block(bytes.bytes()), Block(bits.bytes())};
  ASSERT_TRUE(blocks[0].data() && blocks[1].data());
  const tilewise_tensor there[] = {upload_ends(masks[0].mask, blocks[0]),
                                   upload_ends(masks[1].mask, blocks[1])};
  CaseData& data = masks[0].data;  // both have the same
  cuda::Mirror mirror(0);
  data.for_each_tensor([&](const char*, CaseTensor& t) { mirror.add(t.memory(), t.memory_bytes()); });
  int ran = 0;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const Expectation answer = masks[0].answer(direction);  // backward: on o and lse of the last forward
    for (const Kernel* kernel : kernels_of(direction, true)) {
      if (!LongMask::is_for(*kernel)) continue;
      for (const int of : {0, 1}) {
        SCOPED_TRACE(cat(kernel->name, ", ", name_of(masks[of].mask.type())));
        Limits limits;
        limits.kernel = kernel->name;
        const auto made = plan(masks[of].problem(direction), *cuda_device(), limits);
        if (!made) continue;
        ASSERT_EQ(prepare(context(), *made).message(), "");
        data.poison_outputs(direction, Poison::nan);
        ASSERT_EQ(mirror.upload().message(), "");
        Tensors tensors = mirror.twins(data.tensors(direction));
        tensors.mask = there[of];
        auto scratch = Workspace::make(*made);
        ASSERT_TRUE(scratch.ok()) << scratch.status().message();
        const Status status = direction == Direction::forward ? forward(context(), *made, tensors, *scratch)
                                                              : backward(context(), *made, tensors, *scratch);
        ASSERT_EQ(status.message(), "");
        ASSERT_EQ(cuda::synchronize(0).message(), "");
        for (const auto& [name, output] : data.outputs(direction))
          ASSERT_EQ(mirror.download(output->memory(), output->memory_bytes()).message(), "") << name;
        const Comparison worst = compare_outputs(data, direction, answer);
        EXPECT_TRUE(worst.passed()) << worst.text;
        ++ran;
      }
    }
  }
  EXPECT_GE(ran, 4);
}

// 8300 sequences that are four, over and over; answers from the first four to the last, about the 8192nd too.
TEST_F(CudaFar, K06_ABatchOf8300) {
  constexpr int64_t kBatch = 8300, kOwn = 4, kRoom = int64_t{1} << 26;
  const Block block(10 * kRoom);
  ASSERT_NE(block.data(), nullptr);
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    DeviceCall call("name=batch batch=4 heads_q=16 seqlen_q=1 head_dim=128 sinks=random wants=dq,dk,dv",
                    DType::bf16, direction);
    const Expectation expected = call.expectation();
    const Tensors own = call.data.tensors(direction);
    Tensors tensors = call.tensors;
    int places = 0;
    for (const Place& place : kPlaces) {
      const tilewise_tensor& four = own.*place.tensor;
      if (four.dtype == TILEWISE_NONE || four.rank < 3) continue;
      const int64_t bytes = kOwn * four.stride[0] * bytes_of(four);
      std::vector<std::byte> all(static_cast<size_t>(bytes * (kBatch / kOwn)));
      for (int64_t n = 0; n < kBatch / kOwn; ++n)
        std::memcpy(all.data() + n * bytes, four.data, static_cast<size_t>(bytes));
      tilewise_tensor& many = tensors.*place.tensor;
      many.data = block.data() + kRoom * places++;
      many.shape[0] = kBatch;
      ASSERT_LE(static_cast<int64_t>(all.size()), kRoom);
      ASSERT_EQ(cuda::copy(0, many.data, all.data(), static_cast<int64_t>(all.size())).message(), "");
    }
    Problem problem = call.data.problem(direction);
    problem.batch = kBatch;
    int ran = 0;
    for (const Kernel* kernel : kernels_of(direction, true)) {
      SCOPED_TRACE(kernel->name);
      Limits limits;
      limits.kernel = kernel->name;
      const auto made = plan(problem, *cuda_device(), limits);
      if (!made) continue;
      ASSERT_EQ(prepare(context(), *made).message(), "");
      auto scratch = Workspace::make(*made);
      ASSERT_TRUE(scratch.ok()) << scratch.status().message();
      for (const Place& place : kPlaces) {
        const tilewise_tensor& out = tensors.*place.tensor;
        if (expected.find(place.name) == nullptr || out.dtype == TILEWISE_NONE) continue;
        ASSERT_EQ(cuda::fill(0, out.data, 0xff, kBatch * out.stride[0] * bytes_of(out)).message(), "");
      }
      const Status status = direction == Direction::forward ? forward(context(), *made, tensors, *scratch)
                                                            : backward(context(), *made, tensors, *scratch);
      ASSERT_EQ(status.message(), "");
      ASSERT_EQ(cuda::synchronize(0).message(), "");
      ++ran;
      for (const Place& place : kPlaces) {
        const tilewise_tensor& out = tensors.*place.tensor;
        const ExpectedOutput* right = expected.find(place.name);
        if (right == nullptr || out.dtype == TILEWISE_NONE) continue;
        const int64_t bytes = kOwn * out.stride[0] * bytes_of(out);
        std::vector<std::byte> got(static_cast<size_t>(bytes));
        for (const int64_t first : {int64_t{0}, int64_t{4096}, int64_t{8188}, int64_t{8192}, kBatch - kOwn}) {
          const auto* from = static_cast<const std::byte*>(out.data) + first / kOwn * bytes;
          ASSERT_EQ(cuda::copy(0, got.data(), from, bytes).message(), "");
          const Comparison worst = compare(*right, got.data());
          EXPECT_TRUE(worst.passed()) << place.name << " from sequence " << first << ": " << worst.text;
        }
      }
    }
    EXPECT_GE(ran, 2);
  }
}

TEST_F(CudaFar, MoreSequencesTimesHeadsThanAGridHasBlocksInY) {
  for (const char* line :
       {"name=batch batch=66000 heads_q=1 seqlen_q=1 seqlen_kv=2 head_dim=16",
        "name=heads batch=2 heads_q=33000 heads_kv=11000 seqlen_q=2 seqlen_kv=1 head_dim=16"}) {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      DeviceCall call(line, DType::bf16, direction);
      const Expectation expected = call.expectation();
      int ran = 0;
      for (const Kernel* kernel : kernels_of(direction, true)) {
        if (kernel->target == Target::sm90 && cuda_device()->isa != 90) continue;
        SCOPED_TRACE(cat(kernel->name, ": ", line));
        ran += run_row(
            *kernel, direction, call, expected, [&] { return call.tensors; }, [](const Tensors&) {});
      }
      EXPECT_GE(ran, 2) << line;
    }
  }
}

}  // namespace
}  // namespace tilewise

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

// The first rows of the mask and the last, which is where it holds anything.
Status upload_ends(const LongMask& mask, void* device) {
  const int64_t bits = bits_of(mask.mask.type()), bytes = (LongMask::kElements * bits + 7) / 8;
  const int64_t end = LongMask::kSeeing * LongMask::kLength * bits / 8 + 1;
  Status status = cuda::fill(0, device, 0, bytes);
  for (const int64_t at : {int64_t{0}, bytes - end})
    if (status.ok())
      status = cuda::copy(0, static_cast<std::byte*>(device) + at,
                          static_cast<const std::byte*>(mask.mask.data) + at, end);
  return status;
}

TEST_F(CudaFar, K03_K04_AMaskOf46342RowsAndKeys) {
  const SparseMemory memory(LongMask::kElements);
  if (memory.data() == nullptr) GTEST_SKIP() << "no address space for " << memory.bytes() << " bytes";
  void* device = nullptr;
  ASSERT_EQ(cuda::allocate(0, LongMask::kElements, &device).message(), "");
  for (const DType mask_dtype : {DType::boolean, DType::bit}) {
    ASSERT_TRUE(memory.clear(0, memory.bytes()));
    LongMask mask(memory, mask_dtype, DType::bf16);
    ASSERT_EQ(upload_ends(mask, device).message(), "");
    cuda::Mirror mirror(0);
    mask.data.for_each_tensor([&](const char*, CaseTensor& t) { mirror.add(t.memory(), t.memory_bytes()); });
    int ran = 0;
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      const Expectation answer = mask.answer(direction);  // backward: on o and lse of the last forward
      for (const Kernel* kernel : kernels_of(direction, true)) {
        if (!LongMask::is_for(*kernel)) continue;
        SCOPED_TRACE(cat(kernel->name, ", ", name_of(mask_dtype)));
        Limits limits;
        limits.kernel = kernel->name;
        const auto made = plan(mask.problem(direction), *cuda_device(), limits);
        if (!made) continue;
        ASSERT_EQ(prepare(context(), *made).message(), "");
        mask.data.poison_outputs(direction, Poison::nan);
        ASSERT_EQ(mirror.upload().message(), "");
        Tensors tensors = mirror.twins(mask.data.tensors(direction));
        tensors.mask = mask.mask;
        tensors.mask.device_kind = TILEWISE_CUDA;
        tensors.mask.data = device;
        auto memory_of_call = Workspace::make(*made);
        ASSERT_TRUE(memory_of_call.ok()) << memory_of_call.status().message();
        const Status status = direction == Direction::forward
                                  ? forward(context(), *made, tensors, *memory_of_call)
                                  : backward(context(), *made, tensors, *memory_of_call);
        ASSERT_EQ(status.message(), "");
        ASSERT_EQ(cuda::synchronize(0).message(), "");
        for (const auto& [name, output] : mask.data.outputs(direction))
          ASSERT_EQ(mirror.download(output->memory(), output->memory_bytes()).message(), "") << name;
        const Comparison worst = compare_outputs(mask.data, direction, answer);
        EXPECT_TRUE(worst.passed()) << worst.text;
        ++ran;
      }
    }
    EXPECT_GE(ran, 2);
  }
  cuda::release(0, device);
}

// Held against the oracle around the first sequence, the last and the 8192nd.
TEST_F(CudaFar, K06_ABatchOf8300) {
  std::vector<RowId> chosen;
  for (const int64_t sequence : {0, 1, 4095, 4096, 8190, 8191, 8192, 8193, 8299})
    chosen.push_back({sequence, 0});
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    DeviceCall call("name=batch batch=8300 heads_q=16 seqlen_q=1 head_dim=128 sinks=random wants=dq,dk,dv",
                    DType::bf16, direction);
    const BackwardParams params = call.data.params(direction);
    const Expectation expected = direction == Direction::forward ? expect_forward(params, chosen)
                                                                 : expect_backward(params, chosen, chosen);
    int ran = 0;
    for (const Kernel* kernel : kernels_of(direction, true)) {
      SCOPED_TRACE(kernel->name);
      ran += run_row(
          *kernel, direction, call, expected, [&] { return call.tensors; }, [](const Tensors&) {});
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

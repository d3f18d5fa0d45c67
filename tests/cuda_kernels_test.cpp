// Every CUDA row of the table on every case that it does not refuse, forced by name, against the oracle; and
// the calls that only a device has: streams, graphs, device-side lengths, the one-call form. Without a
// device, one test says so and is skipped.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <sstream>
#include <string>
#include <thread>

#include "core/text.h"
#include "cuda/runtime.h"
#include "tests/support/device_call.h"
#include "tests/support/kernel_run.h"

namespace tilewise {
namespace {

using namespace testing_support;

// TILEWISE_TEST_CASES: names, comma-separated, for a run that costs much a case (a sanitizer's).
std::vector<Subject> subjects() {
  std::vector<Subject> all;
  if (!cuda_device()) return all;
  const char* given = std::getenv("TILEWISE_TEST_CASES");
  const std::string wanted = given ? cat(",", given, ",") : std::string();
  for (const Case& c : file_cases()) {
    if (given && wanted.find(cat(",", c.name, ",")) == std::string::npos) continue;
    for (const DType dtype : c.dtypes) all.push_back({&c, dtype});
  }
  return all;
}

// TILEWISE_TEST_KERNELS: parts of the names of the rows to test, comma-separated, for a run after a change of
// few.
const char* wanted_kernels() { return std::getenv("TILEWISE_TEST_KERNELS"); }

std::vector<const Kernel*> cuda_rows(Direction direction) {
  std::vector<const Kernel*> rows = kernels_of(direction, true);
  if (!wanted_kernels()) return rows;
  std::vector<std::string> parts;
  std::istringstream list(wanted_kernels());
  for (std::string part; std::getline(list, part, ',');) parts.push_back(part);
  std::erase_if(rows, [&](const Kernel* row) {
    return std::none_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return std::string_view(row->name).find(part) != std::string_view::npos;
    });
  });
  return rows;
}

// A case's tensors, and where bits must not differ the same with NaN where nobody may look and without.
struct Data {
  CaseData any, poisoned, finite;  // of a backward case, the last two ask for `deterministic`
};

Data make_data(const Case& c, DType dtype, uint64_t seed) {
  Case exact = c, finite = c;
  if (c.backward) exact.problem.deterministic = finite.problem.deterministic = 1;
  finite.poison_unseen = false;
  return {CaseData(c, dtype, seed), CaseData(exact, dtype, seed), CaseData(finite, dtype, seed)};
}

void check_kernel(const Kernel& kernel, Data& data, Direction direction, const Expectation& expectation,
                  int* ran) {
  SCOPED_TRACE(kernel.name);
  const auto run = [&](CaseData& of, Poison poison) {
    return run_kernel(shared_context(), kernel.name, of, direction, {1, poison, &*cuda_device()});
  };
  const RunResult first = run(data.any, Poison::nan);
  ASSERT_EQ(first.failure, "");
  if (!first.ran) return;
  ++*ran;
  const Comparison worst = compare_outputs(data.any, direction, expectation);
  EXPECT_TRUE(worst.passed()) << worst.text;
  EXPECT_EQ(data.any.damage(direction, expectation), "");
  EXPECT_EQ(missed_answer(data.any, direction, expectation), "");
  CaseData* before = &data.any;
  if (direction == Direction::backward) {
    const RunResult again = run(data.poisoned, Poison::nan);
    ASSERT_EQ(again.failure, "");
    if (!again.ran) return;  // a row that cannot be deterministic here
    const Comparison exact = compare_outputs(data.poisoned, direction, expectation);
    EXPECT_TRUE(exact.passed()) << exact.text;
    before = &data.poisoned;
  }
  const std::vector<std::byte> bits = output_bits(*before, direction, expectation);
  ASSERT_EQ(run(data.finite, Poison::large).failure, "");
  EXPECT_EQ(first_difference(data.finite, direction, expectation, bits), "")
      << "finite values where nobody may look and scratch of 3e38, instead of NaN in both";
}

void check_case(const Case& c, DType dtype, uint64_t seed) {
  SCOPED_TRACE(cat(c.text, " dtype=", name_of(dtype), " seed ", seed));
  Data data = make_data(c, dtype, seed);
  Expectation expectation = expect_forward(data.any.params(Direction::forward));
  const bool cache = c.problem.page_size > 0 || c.problem.cache_slots > 0;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    if (direction == Direction::forward ? !c.forward : !c.backward) continue;
    if (direction == Direction::backward) {
      for (CaseData* one : {&data.any, &data.poisoned, &data.finite}) one->set_forward_result(expectation);
      data.any.poison_outputs(direction, Poison::nan);
      expectation = expect_backward(data.any.params(direction));
    }
    int ran = 0;
    for (const Kernel* kernel : cuda_rows(direction))
      check_kernel(*kernel, data, direction, expectation, &ran);
    if (!wanted_kernels() && (!cache || direction == Direction::forward)) {
      EXPECT_GT(ran, 0) << "every CUDA row refused";
    }
  }
}

class CudaKernels : public testing::TestWithParam<Subject> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaKernels);

TEST_P(CudaKernels, AgreeWithTheOracle) { check_case(*GetParam().source, GetParam().dtype, run_seed()); }

INSTANTIATE_TEST_SUITE_P(Cases, CudaKernels, testing::ValuesIn(subjects()),
                         [](const auto& subject) { return subject.param.name(); });

class CudaRandom : public testing::TestWithParam<int> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaRandom);

TEST_P(CudaRandom, AgreeWithTheOracle) {
  const uint64_t seed = run_seed() * 1000 + static_cast<uint64_t>(GetParam());
  const auto c = parse_case(random_case(seed));
  ASSERT_TRUE(c.ok()) << c.status().message();
  constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
  check_case(*c, kDTypes[seed % 3], seed);
}

INSTANTIATE_TEST_SUITE_P(Properties, CudaRandom,
                         testing::Range(0, cuda_device() && !std::getenv("TILEWISE_TEST_CASES") ? 150 : 0));

// What follows needs a device and is skipped with the reason where there is none.
class Cuda : public CudaTest {};

TEST_F(Cuda, EachRowRunsAPlainProblem) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const Kernel* kernel : cuda_rows(direction)) {
      if (kernel->target == Target::sm90 && cuda_device()->isa != 90) continue;
      bool ran = false;
      std::string refusals;
      for (int dim : {64, 128, 192, 256}) {
        const auto c = parse_case(cat("name=plain heads_q=2 seqlen_q=40 head_dim=", dim, words_for(*kernel)));
        CaseData data(*c, dtype_for(*kernel), 1);
        data.set_forward_result(expect_forward(data.params(Direction::forward)));
        const RunResult result =
            run_kernel(shared_context(), kernel->name, data, direction, {1, Poison::nan, &*cuda_device()});
        EXPECT_EQ(result.failure, "") << kernel->name;
        ran = ran || result.ran;
        refusals += result.refusal + "\n";
      }
      EXPECT_TRUE(ran) << kernel->name << ": " << refusals;
    }
  }
}

TEST_F(Cuda, OneCallFormOnDeviceTensors) {
  for (const char* line :
       {"name=a batch=2 heads_q=4 heads_kv=2 seqlen_q=70 seqlen_kv=90 head_dim=64 causal=bottom-right",
        "name=b heads_q=2 head_dim=32 cu_seqlens_q=0,40,90 cu_seqlens_kv=0,10,200"}) {
    DeviceCall call(line, DType::bf16);
    EXPECT_EQ(
        attention(shared_context().context(), call.data.problem(Direction::forward), call.tensors).message(),
        "");
    call.check(line);
  }
}

TEST_F(Cuda, MixedDevicesAreRefusedBySentence) {
  DeviceCall call("name=a heads_q=2 seqlen_q=8 head_dim=16");
  Tensors mixed = call.tensors;
  mixed.k = call.data.tensors(Direction::forward).k;
  const Status status = attention(shared_context().context(), call.data.problem(Direction::forward), mixed);
  EXPECT_NE(status.message().find("k is on the CPU; accepted: CUDA device 0"), std::string::npos)
      << status.message();
}

TEST_F(Cuda, WeightsOfDeviceTensorsAreTheHosts) {
  DeviceCall call(
      "name=a heads_q=4 heads_kv=2 seqlen_q=9 seqlen_kv=20 head_dim=16 causal=bottom-right sinks=random");
  int32_t chosen[] = {0, 3, 8};
  std::vector<float> host(4 * 3 * 20), device(host.size(), -1.0f);
  const Tensor rows(chosen, DType::i32, {3}), weights(device.data(), DType::f32, {1, 4, 3, 20});
  const auto bytes = static_cast<int64_t>(device.size() * sizeof(float));
  cuda::Mirror more(0);
  more.add(chosen, sizeof chosen);
  more.add(device.data(), bytes);
  ASSERT_EQ(more.upload().message(), "");
  const Context& context = shared_context().context();
  const Problem problem = call.data.problem(Direction::forward);
  EXPECT_EQ(attention_weights(context, problem, call.tensors, more.twin(rows), more.twin(weights)).message(),
            "");
  ASSERT_EQ(more.download(device.data(), bytes).message(), "");
  EXPECT_EQ(attention_weights(context, problem, call.data.tensors(Direction::forward), rows,
                              Tensor(host.data(), DType::f32, {1, 4, 3, 20}))
                .message(),
            "");
  EXPECT_EQ(device, host);
  const Status mixed = attention_weights(context, problem, call.tensors, rows, more.twin(weights));
  EXPECT_NE(mixed.message().find("rows is on the CPU; accepted: CUDA device 0"), std::string::npos)
      << mixed.message();
}

// A block that draws work with keys, then some without, then the end: more pieces than multiprocessors.
TEST_F(Cuda, PiecesWithAndWithoutKeysFollowEachOther) {
  for (const char* line :
       {"name=a batch=6 heads_q=32 seqlen_q=300 seqlen_kv=300 head_dim=64 kv_lengths=300,0,300,0,1,0",
        "name=b batch=6 heads_q=32 seqlen_q=300 seqlen_kv=40 head_dim=128 causal=bottom-right sinks=random",
        "name=c batch=6 heads_q=32 seqlen_q=300 head_dim=64 q_lengths=300,0,3,200,0,300 softcap=9"}) {
    DeviceCall call(line, DType::bf16);
    for (int again = 0; again < 3; ++again)  // the control block is zero again after each
      EXPECT_EQ(attention(shared_context().context(), call.data.problem(Direction::forward), call.tensors)
                    .message(),
                "")
          << line;
    call.check(line);
  }
}

class CudaCall : public Cuda, public testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, CudaCall, testing::Values(DType::f32, DType::bf16),
                         [](const auto& made) { return std::string(name_of(made.param)); });

// The lengths change on the device between replays: nothing of them was decided on the host.
TEST_P(CudaCall, AGraphReplaysWithOtherLengths) {
  DeviceCall call(
      "name=a batch=2 heads_q=2 seqlen_q=70 seqlen_kv=130 head_dim=64 kv_lengths=130,20 causal=bottom-right",
      GetParam());
  const Context& context = shared_context().context();
  const auto made = plan(call.data.problem(Direction::forward), *cuda_device());
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_EQ(prepare(context, *made).message(), "");
  auto workspace = Workspace::make(*made);
  ASSERT_TRUE(workspace.ok());
  auto graph = cuda::GraphTimer::capture(
      0, 3, [&](void* stream) { return forward(context, *made, call.tensors, *workspace, stream); });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  for (const int32_t length : {20, 1, 0, 130}) {
    auto* lengths = static_cast<int32_t*>(call.data.kv_lengths.data());
    lengths[1] = length;
    call.data.kv_lengths.remember();
    ASSERT_EQ(cuda::copy(0, call.tensors.kv_lengths.data, lengths, 2 * sizeof(int32_t)).message(), "");
    const auto ms = graph->milliseconds();
    ASSERT_TRUE(ms.ok()) << ms.status().message();
    call.check(cat("length ", length));
  }
}

TEST_P(CudaCall, TheOneCallFormCanBeCaptured) {
  DeviceCall call("name=a heads_q=2 seqlen_q=70 head_dim=64", GetParam());
  const Context& context = shared_context().context();
  ASSERT_EQ(attention(context, call.data.problem(Direction::forward), call.tensors).message(),
            "");  // plans, and loads the kernel
  auto graph = cuda::GraphTimer::capture(0, 2, [&](void* stream) {
    return attention(context, call.data.problem(Direction::forward), call.tensors, stream);
  });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  ASSERT_TRUE(graph->milliseconds().ok());
  call.check("captured");
}

// Two key sets, attended apart and merged, are attention over both; a part without keys changes no bit.
TEST_F(Cuda, MergeUnitesTwoParts) {
  DeviceCall whole("name=a batch=2 heads_q=2 seqlen_q=40 seqlen_kv=90 head_dim=32 dtype_o=f32");
  DeviceCall part("name=a batch=2 heads_q=2 seqlen_q=40 seqlen_kv=90 head_dim=32 dtype_o=f32");
  const Context& context = shared_context().context();
  const auto of_keys = [](Tensors t, int64_t first, int64_t last) {
    for (tilewise_tensor* x : {&t.k, &t.v}) {
      x->data = static_cast<float*>(x->data) + first * x->stride[1];
      x->shape[1] = last - first;
    }
    return t;
  };
  Problem options;
  options.softmax_scale = whole.source.problem.softmax_scale;
  ASSERT_EQ(attention(context, options, of_keys(whole.tensors, 0, 50)).message(), "");
  const auto merge_keys = [&](int64_t first, int64_t last, const char* what) {
    Tensors some = of_keys(whole.tensors, first, last);
    some.o = part.tensors.o;
    some.lse = part.tensors.lse;
    ASSERT_EQ(attention(context, options, some).message(), "");
    EXPECT_EQ(merge(context, whole.tensors.o, whole.tensors.lse, some.o, some.lse).message(), "");
    whole.check(what);
  };
  merge_keys(50, 90, "merged");
  merge_keys(0, 0, "merged with nothing");
}

TEST_F(Cuda, DropoutStateIsReadOnTheDevice) {
  DeviceCall call("name=a heads_q=2 seqlen_q=70 head_dim=32 dropout=0.4 dropout_seed=6");
  const uint64_t state[2] = {6, call.source.dropout_offset};
  void* memory = nullptr;
  ASSERT_EQ(cuda::allocate(0, sizeof state, &memory).message(), "");
  ASSERT_EQ(cuda::copy(0, memory, state, sizeof state).message(), "");
  call.tensors.dropout_seed = 99;
  Tensor on_device(static_cast<uint64_t*>(memory), {2});
  on_device.device_kind = TILEWISE_CUDA;
  call.tensors.dropout_state = on_device;
  EXPECT_EQ(
      attention(shared_context().context(), call.data.problem(Direction::forward), call.tensors).message(),
      "");
  call.check("dropout_state");
  cuda::release(0, memory);
}

// A key tensor whose second sequence lies past 2^31 elements: the same bits as next to the first one.
TEST_F(Cuda, OffsetsAre64Bit) {
  constexpr int64_t kFar = (int64_t{1} << 31) + 64;
  DeviceCall call("name=a batch=2 heads_q=2 seqlen_q=20 seqlen_kv=30 head_dim=32", DType::bf16);
  const int64_t far_bytes = (kFar + 30 * 2 * 32) * 2;
  if (cuda_device()->memory_bytes < far_bytes + (int64_t{1} << 30))
    GTEST_SKIP() << "the device has too little memory";
  void* block = nullptr;
  ASSERT_EQ(cuda::allocate(0, far_bytes, &block).message(), "");
  const tilewise_tensor k = call.data.tensors(Direction::forward).k;
  const int64_t bytes = 2 * k.shape[1] * k.shape[2] * k.shape[3];
  for (int64_t b : {0, 1}) {
    const auto* from = static_cast<const std::byte*>(k.data) + 2 * b * k.stride[0];
    ASSERT_EQ(cuda::copy(0, static_cast<std::byte*>(block) + 2 * b * kFar, from, bytes).message(), "");
  }
  call.tensors.k.data = block;
  call.tensors.k.stride[0] = kFar;
  EXPECT_EQ(
      attention(shared_context().context(), call.data.problem(Direction::forward), call.tensors).message(),
      "");
  call.check("keys past 2^31 elements");
  cuda::release(0, block);
}

// Callers on threads of their own share a context and a plan; each has its outputs.
TEST_F(Cuda, ManyHostThreads) {
  constexpr int kCallers = 6;
  std::deque<DeviceCall> calls;
  for (int n = 0; n < kCallers; ++n)
    calls.emplace_back("name=a batch=2 heads_q=2 seqlen_q=70 seqlen_kv=90 head_dim=64 causal=bottom-right");
  auto own = Context::create({});  // the shared one's log is for one thread
  ASSERT_TRUE(own.ok());
  const Context& context = *own;
  const auto made = plan(calls[0].data.problem(Direction::forward), *cuda_device());
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(prepare(context, *made).message(), "");
  std::atomic<int> failures{0};
  std::vector<std::thread> callers;
  for (DeviceCall& call : calls) {
    callers.emplace_back([&] {
      auto workspace = Workspace::make(*made);
      for (int repeat = 0; repeat < 20; ++repeat)
        if (!workspace || !forward(context, *made, call.tensors, *workspace)) ++failures;
      if (!cuda::synchronize(0)) ++failures;  // before the workspace goes
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
  for (DeviceCall& call : calls) call.check("one of many callers");
}

TEST_F(Cuda, OutOfMemoryIsAStatusAndTheNextCallWorks) {
  void* memory = nullptr;
  const Status status = cuda::allocate(0, int64_t{1} << 46, &memory);
  EXPECT_EQ(status.code(), Code::out_of_memory) << status.message();
  EXPECT_EQ(memory, nullptr);
  DeviceCall call("name=a heads_q=2 seqlen_q=9 head_dim=16");
  EXPECT_EQ(
      attention(shared_context().context(), call.data.problem(Direction::forward), call.tensors).message(),
      "");
  call.check("after it");
}

}  // namespace
}  // namespace tilewise

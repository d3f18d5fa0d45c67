// Caches of keys on a device: where keys lie, which neighbours a sequence has and how the line of work is cut
// change no more than they may, whatever the lengths are when a graph is replayed.
#include <algorithm>
#include <fstream>
#include <map>

#include "core/text.h"
#include "tests/support/device_call.h"

namespace tilewise {
namespace {

using namespace testing_support;
constexpr Direction kForward = Direction::forward;

class CudaCache : public CudaTest {};

std::vector<const Kernel*> rows_for(DType dtype) {
  std::vector<const Kernel*> rows;
  for (const Kernel* kernel : kernels_of(kForward, true))
    if (kernel->dtype == dtype || kernel->dtype == DType::none) rows.push_back(kernel);
  return rows;
}

std::vector<std::byte> run_bits(const Kernel& kernel, CaseData& data, const Expectation& answer) {
  const RunResult result =
      run_kernel(shared_context(), kernel.name, data, kForward, {1, Poison::nan, &*cuda_device()});
  EXPECT_EQ(result.failure, "") << kernel.name;
  if (!result.ran) return {};
  const Comparison worst = compare_outputs(data, kForward, answer);
  EXPECT_TRUE(worst.passed()) << kernel.name << ": " << worst.text;
  return output_bits(data, kForward, answer);
}

// Contiguous, paged and in slots: the same bits of the same row.
TEST_F(CudaCache, PlacesChangeNoBit) {
  for (const std::string line :
       {"name=gqa batch=2 heads_q=8 heads_kv=2 seqlen_q=1 seqlen_kv=700 head_dim=64 kv_lengths=700,131",
        "name=few batch=2 heads_q=4 heads_kv=4 seqlen_q=3 seqlen_kv=290 head_dim=80 causal=bottom-right",
        "name=one batch=1 heads_q=32 heads_kv=8 seqlen_q=1 seqlen_kv=1000 head_dim=128 kv_lengths=990",
        "name=decode batch=2 heads_q=20 heads_kv=5 seqlen_q=1 seqlen_kv=1500 head_dim=128 kv_lengths=1500,37 "
        "sinks=random",
        "name=prefill batch=2 heads_q=8 heads_kv=2 seqlen_q=40 seqlen_kv=330 head_dim=128 "
        "causal=bottom-right",
        "name=wide batch=2 heads_q=4 heads_kv=1 seqlen_q=2 seqlen_kv=1500 head_dim=112 softcap=8 "
        "sinks=random",
        "name=latent batch=2 heads_q=20 heads_kv=1 seqlen_q=2 seqlen_kv=300 head_dim=576 head_dim_v=512 "
        "kv_lengths=300,77"}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      CaseData plain(*parse_case(line), dtype, 3);
      const Expectation answer = expect_forward(plain.params(kForward));
      std::map<std::string, std::vector<std::byte>> bits;
      for (const Kernel* kernel : rows_for(dtype)) bits[kernel->name] = run_bits(*kernel, plain, answer);
      for (const char* place :
           {" page_size=1", " page_size=3 pages=reversed", " page_size=16", " page_size=64",
            " page_size=1000",
            plain.source.problem.batch == 1 ? " cache_batch_idx=3" : " cache_batch_idx=3,1"}) {
        CaseData cache(*parse_case(line + place), dtype, 3);
        int ran = 0;
        for (const Kernel* kernel : rows_for(dtype)) {
          const auto other = run_bits(*kernel, cache, answer);
          if (!other.empty()) ++ran;
          EXPECT_TRUE(other.empty() || other == bits[kernel->name])
              << kernel->name << " on " << line << place;
        }
        EXPECT_GE(ran, dtype == DType::f32 ? 1 : 2) << line << place;
      }
    }
  }
}

Plan split_plan(const DeviceCall& call, bool invariant = false) {
  Problem p = call.data.problem(kForward);
  p.batch_invariant = invariant ? 1 : 0;
  Limits limits;
  std::string names;
  for (const Kernel* kernel : kernels_of(kForward, true))
    if (kernel->form == Form::split) names += cat(names.empty() ? "" : ",", kernel->name);
  limits.kernel = names.c_str();
  const auto made = plan(p, *cuda_device(), limits);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

// Most blocks share the first sequence, while each of the others has a few of its own.
std::string many_parts() {
  std::string q = "0", kv = "0";
  for (int b = 0; b < 45; ++b) q += cat(",", b + 1), kv += cat(",", 20000 + 250 * b);
  return cat("name=parts heads_q=40 heads_kv=1 head_dim=128 cu_seqlens_q=", q, " cu_seqlens_kv=", kv);
}

// One long sequence among short ones and empty ones, each cut somewhere, by few and by many rows; again and
// again with one workspace, whose counters are zero after each call.
TEST_F(CudaCache, SkewedBatches) {
  for (const std::string& line : std::vector<std::string>{
           "name=long batch=9 heads_q=4 heads_kv=2 seqlen_q=1 seqlen_kv=5000 head_dim=128 "
           "kv_lengths=40,1,0,5000,77,128,129,300,16",
           "name=mha batch=30 heads_q=6 heads_kv=6 seqlen_q=1 seqlen_kv=300 head_dim=64 page_size=16",
           "name=one batch=1 heads_q=1 heads_kv=1 seqlen_q=1 seqlen_kv=20000 head_dim=64",
           "name=tiles batch=3 heads_q=12 heads_kv=2 seqlen_q=5 seqlen_kv=1300 head_dim=128 "
           "causal=bottom-right "
           "kv_lengths=1300,2,900",
           "name=padding batch=3 heads_q=8 heads_kv=2 seqlen_q=6 seqlen_kv=1200 head_dim=128 q_lengths=6,0,3 "
           "kv_lengths=1200,50,700 window=600,-1 causal=bottom-right alibi=h",
           "name=packed heads_q=8 heads_kv=2 cu_seqlens_q=0,1,9,9,10 seqlen_kv=1500 head_dim=64 page_size=3 "
           "kv_lengths=1500,50,9,800 causal=bottom-right",
           "name=rows batch=4 heads_q=8 heads_kv=2 seqlen_q=18 seqlen_kv=2100 head_dim=128 page_size=16 "
           "causal=bottom-right kv_lengths=2100,30,0,1100",
           "name=d256 batch=4 heads_q=6 heads_kv=2 seqlen_q=2 seqlen_kv=1900 head_dim=256 sinks=random "
           "causal=bottom-right window=1500,-1 kv_lengths=1900,3,0,40",
           "name=d200 batch=2 heads_q=6 heads_kv=1 seqlen_q=13 seqlen_kv=1100 head_dim=200 head_dim_v=136 "
           "page_size=1 softcap=7 alibi=h kv_lengths=1100,1024",
           "name=latent batch=3 heads_q=40 heads_kv=1 seqlen_q=2 seqlen_kv=1200 head_dim=576 head_dim_v=512 "
           "causal=bottom-right kv_lengths=1200,3,500",
           "name=latent192 batch=3 heads_q=192 heads_kv=1 seqlen_q=2 seqlen_kv=900 head_dim=576 "
           "head_dim_v=512 causal=bottom-right kv_lengths=900,3,500 sinks=random alibi=h",
           "name=heads batch=2 heads_q=400 heads_kv=100 seqlen_q=5 seqlen_kv=330 head_dim=128 sinks=random "
           "page_size=64 causal=bottom-right kv_lengths=330,200",
           "name=whole batch=45 heads_q=32 heads_kv=1 seqlen_q=1 seqlen_kv=600 head_dim=256 head_dim_v=200 "
           "sinks=random",
           "name=nan batch=45 heads_q=8 heads_kv=1 seqlen_q=3 seqlen_kv=700 head_dim=256 inputs=nan_key:340 "
           "causal=bottom-right window=358,-1",
           many_parts()}) {
    for (const bool invariant : {false, true}) {
      DeviceCall call(line, DType::bf16);
      const Plan made = split_plan(call, invariant);
      auto workspace = Workspace::make(made);
      ASSERT_TRUE(workspace.ok());
      for (int again = 0; again < 3; ++again)
        ASSERT_EQ(forward(shared_context().context(), made, call.tensors, *workspace).message(), "") << line;
      call.check(cat(line, invariant ? " batch-invariant" : ""));
    }
  }
}

// Latent attention: v is the beginning of k's rows, and shares their storage.
TEST_F(CudaCache, ValuesInTheirKeys) {
  for (const std::string line :
       {"name=a batch=3 heads_q=16 heads_kv=1 seqlen_q=1 seqlen_kv=1500 head_dim=576 head_dim_v=512 "
        "kv_lengths=1500,1,70",
        "name=b batch=2 heads_q=128 heads_kv=1 seqlen_q=1 seqlen_kv=300 head_dim=576 head_dim_v=512 "
        "page_size=64 kv_lengths=300,129",
        "name=c batch=1 heads_q=16 heads_kv=1 seqlen_q=3 seqlen_kv=2100 head_dim=576 head_dim_v=512 "
        "page_size=3 causal=bottom-right sinks=random",
        "name=d batch=2 heads_q=6 heads_kv=1 seqlen_q=1 seqlen_kv=100 head_dim=320 head_dim_v=256"}) {
    for (const bool invariant : {false, true}) {
      for (const DType dtype : {DType::f16, DType::bf16}) {
        DeviceCall call(line, dtype);
        const int64_t dim = call.tensors.k.shape[3], dim_v = call.tensors.v.shape[3];
        const int64_t rows = call.tensors.k.shape[0] * call.tensors.k.shape[1];
        const auto* k = static_cast<const uint16_t*>(call.data.k.data());
        auto* v = static_cast<uint16_t*>(call.data.v.data());
        for (int64_t row = 0; row < rows; ++row) std::copy_n(k + row * dim, dim_v, v + row * dim_v);
        call.data.v.remember();
        call.tensors.v = call.tensors.k;
        call.tensors.v.shape[3] = dim_v;
        const Plan made = split_plan(call, invariant);
        auto workspace = Workspace::make(made);
        ASSERT_TRUE(workspace.ok());
        for (int again = 0; again < 2; ++again)
          ASSERT_EQ(forward(shared_context().context(), made, call.tensors, *workspace).message(), "");
        ASSERT_EQ(cuda::synchronize(0).message(), "");
        for (CaseTensor* t : {&call.data.o, &call.data.lse}) {
          if (!t->present()) continue;
          ASSERT_EQ(call.mirror.download(t->memory(), t->memory_bytes()).message(), "");
        }
        const Comparison worst = compare_outputs(call.data, kForward, call.expectation());
        EXPECT_TRUE(worst.passed()) << line << (invariant ? " batch-invariant: " : ": ") << worst.text;
      }
    }
  }
}

TEST_F(CudaCache, AGraphReplaysWithOtherLengths) {
  for (const bool invariant : {false, true}) {
    DeviceCall call(
        "name=a batch=3 heads_q=4 heads_kv=2 seqlen_q=2 seqlen_kv=3000 head_dim=128 page_size=16 "
        "kv_lengths=3000,20,700 causal=bottom-right",
        DType::bf16);
    const Context& context = shared_context().context();
    const Plan made = split_plan(call, invariant);
    ASSERT_EQ(prepare(context, made).message(), "");
    auto workspace = Workspace::make(made);
    ASSERT_TRUE(workspace.ok());
    auto graph = cuda::GraphTimer::capture(
        0, 3, [&](void* stream) { return forward(context, made, call.tensors, *workspace, stream); });
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    for (const int32_t length : {20, 0, 2999, 2049}) {
      auto* lengths = static_cast<int32_t*>(call.data.kv_lengths.data());
      lengths[0] = length;
      call.data.kv_lengths.remember();
      ASSERT_EQ(cuda::copy(0, call.tensors.kv_lengths.data, lengths, 3 * sizeof(int32_t)).message(), "");
      const auto ms = graph->milliseconds();
      ASSERT_TRUE(ms.ok()) << ms.status().message();
      call.check(cat("length ", length));
    }
  }
}

// 10,000 one-call steps, each a key longer: neither the device's memory nor the host's grows with them.
TEST_F(CudaCache, MemoryIsFlatOverCallsOfGrowingLength) {
  constexpr int64_t kCalls = 10000, kWarm = 1000, kHeads = 4, kHeadsKv = 2, kDim = 64;
  std::vector<uint16_t> q(kHeads * kDim, 0x3e80), o(q.size()), k(kCalls * kHeadsKv * kDim, 0x3e99),
      v(k.size(), 0x3f11);
  Tensors host{};
  host.q = Tensor(q.data(), DType::bf16, {1, 1, kHeads, kDim});
  host.o = Tensor(o.data(), DType::bf16, {1, 1, kHeads, kDim});
  host.k = Tensor(k.data(), DType::bf16, {1, kCalls, kHeadsKv, kDim});
  host.v = Tensor(v.data(), DType::bf16, {1, kCalls, kHeadsKv, kDim});
  cuda::Mirror mirror(0);
  mirror.add(host);
  ASSERT_EQ(mirror.upload().message(), "");
  Tensors tensors = mirror.twins(host);
  const auto pages_of_host = [] {
    int64_t all = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> all >> resident;
    return resident;
  };
  int64_t device_before = 0, host_before = 0;
  for (int64_t n = 1; n <= kCalls; ++n) {
    tensors.k.shape[1] = tensors.v.shape[1] = n;
    ASSERT_EQ(attention(shared_context().context(), Problem(), tensors).message(), "") << n;
    if (n != kWarm && n != kCalls) continue;
    ASSERT_EQ(cuda::synchronize(0).message(), "");
    const auto free = cuda::free_bytes(0);
    ASSERT_TRUE(free.ok()) << free.status().message();
    if (n == kWarm) {
      device_before = *free;
      host_before = pages_of_host();
    } else {
      EXPECT_GE(*free, device_before - (int64_t{2} << 20));
      EXPECT_LE((pages_of_host() - host_before) * 4096, int64_t{8} << 20);
    }
  }
  ASSERT_EQ(mirror.download(host.o).message(), "");
  for (const uint16_t x : o) ASSERT_EQ(x, 0x3f11);  // every value is the same
}

// Bits of one sequence follow from that sequence where the plan promises it: not from its neighbours, their
// lengths, the batch, or where its pages lie.
TEST_F(CudaCache, NeighboursChangeNoBitWhereThePlanIsBatchInvariant) {
  constexpr int64_t kHeads = 8, kHeadsKv = 2, kDim = 128, kPages = 400, kPageSize = 16, kLength = 2333;
  std::vector<uint16_t> keys(kPages * kPageSize * kHeadsKv * kDim), values(keys.size());
  uint64_t state = 5;
  for (auto* x : {&keys, &values})
    for (uint16_t& v : *x) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      v = static_cast<uint16_t>((state >> 60 & 1) << 15 | 0x3f00 | (state >> 40 & 0xff));
    }
  const auto run = [&](int64_t batch, int32_t other, int64_t max_pages, int shift) {
    std::vector<uint16_t> q(static_cast<size_t>(batch * kHeads * kDim), 0x3e80), o(q.size(), 0xffff);
    for (int64_t d = 0; d < kHeads * kDim; ++d) q[q.size() - kHeads * kDim + d] = 0x3e80 + (d * 37 % 251);
    std::vector<uint16_t> k(keys.size(), 0x7fc0), v(keys.size(), 0x7fc0);
    std::vector<int32_t> table(static_cast<size_t>(batch * max_pages), 399),
        lengths(static_cast<size_t>(batch), other);
    const int64_t page_elements = kPageSize * kHeadsKv * kDim;
    for (auto [to, from] : {std::pair(&k, &keys), std::pair(&v, &values)}) {
      std::copy_n(from->begin(), page_elements, to->begin() + 399 * page_elements);
      for (int64_t page = 0; page * kPageSize < kLength; ++page)
        std::copy_n(from->begin() + page * page_elements, page_elements,
                    to->begin() + (page + shift) % 399 * page_elements);
    }
    for (int32_t page = 0; page * kPageSize < kLength; ++page)
      table[static_cast<size_t>((batch - 1) * max_pages + page)] = (page + shift) % 399;
    lengths.back() = kLength;
    Tensors host{};
    const auto bf16 = [](std::vector<uint16_t>& x, std::initializer_list<int64_t> shape) {
      return Tensor(x.data(), DType::bf16, shape);
    };
    host.q = bf16(q, {batch, 1, kHeads, kDim});
    host.k = bf16(k, {kPages, kPageSize, kHeadsKv, kDim});
    host.v = bf16(v, {kPages, kPageSize, kHeadsKv, kDim});
    host.o = bf16(o, {batch, 1, kHeads, kDim});
    host.page_table = Tensor(table.data(), {batch, max_pages});
    host.kv_lengths = Tensor(lengths.data(), {batch});
    cuda::Mirror mirror(0);
    mirror.add(host);
    EXPECT_EQ(mirror.upload().message(), "");
    Problem options;
    options.batch_invariant = 1;
    EXPECT_EQ(attention(shared_context().context(), options, mirror.twins(host)).message(), "");
    EXPECT_EQ(cuda::synchronize(0).message(), "");
    EXPECT_EQ(mirror.download(host.o).message(), "");
    return std::vector<uint16_t>(o.end() - kHeads * kDim, o.end());
  };
  const auto alone = run(1, 0, 146, 0);
  EXPECT_FALSE(std::all_of(alone.begin(), alone.end(), [&](uint16_t x) { return x == alone[0]; }));
  EXPECT_EQ(run(1, 0, 200, 17), alone);
  EXPECT_EQ(run(2, 5, 170, 3), alone);
  EXPECT_EQ(run(7, 2400, 150, 0), alone);
  EXPECT_EQ(run(65, 16, 146, 101), alone);
}

// With check_data what a device holds is refused as if the host held it; without, it is clamped.
TEST_F(CudaCache, CheckDataLooksAtTheDevice) {
  ContextOptions options;
  options.check_data = 1;
  const auto context = Context::create(options);
  ASSERT_TRUE(context.ok());
  DeviceCall call(
      "name=a batch=2 heads_q=2 seqlen_q=1 seqlen_kv=40 head_dim=32 page_size=16 kv_lengths=40,20");
  ASSERT_EQ(attention(*context, Problem(), call.tensors).message(), "");
  call.check("as it should be");
  const auto bend = [](const tilewise_tensor& twin, int at, int32_t value) {
    ASSERT_EQ(cuda::copy(0, static_cast<int32_t*>(twin.data) + at, &value, sizeof value).message(), "");
  };
  bend(call.tensors.page_table, 3, 99);
  Status status = attention(*context, Problem(), call.tensors);
  EXPECT_NE(status.message().find("page_table of sequence 1 entry 0 is 99"), std::string::npos)
      << status.message();
  bend(call.tensors.page_table, 3, 1);
  bend(call.tensors.kv_lengths, 0, 49);
  status = attention(*context, Problem(), call.tensors);
  EXPECT_NE(status.message().find("kv_lengths[0] is 49; accepted: 0 to 48"), std::string::npos)
      << status.message();

  // Two sequences whose new rows would have one place.
  std::vector<float> rows(2 * 2 * 32, 1.0f);
  std::vector<int32_t> starts{5, 5}, table{1, 1};
  Append host;
  host.k_new = host.v_new = Tensor(rows.data(), {2, 1, 2, 32});
  host.starts = Tensor(starts.data(), {2});
  host.page_table = Tensor(table.data(), {2, 1});
  cuda::Mirror mirror(0);
  for (const tilewise_tensor* t : {&host.k_new, &host.starts, &host.page_table}) mirror.add(*t);
  ASSERT_EQ(mirror.upload().message(), "");
  Append twice = host;
  for (tilewise_tensor* t : {&twice.k_new, &twice.v_new, &twice.starts, &twice.page_table})
    *t = mirror.twin(*t);
  twice.k = call.tensors.k, twice.v = call.tensors.v;
  twice.k.flags = twice.v.flags = 0;
  status = cache_append(*context, twice);
  EXPECT_NE(status.message().find("sequences 0 and 1 both write row 5 of page 1"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace tilewise

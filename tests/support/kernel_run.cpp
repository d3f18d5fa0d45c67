#include "tests/support/kernel_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>

#include "core/text.h"
#include "cuda/mirror.h"
#include "cuda/runtime.h"
#include "plan/registry.h"
#include "reference/elements.h"

namespace tilewise::testing_support {
namespace {

constexpr size_t kGuard = 256;
constexpr std::byte kGuardByte{0x5a};

// Workspace between guards, its scratch poisoned.
class GuardedWorkspace {
 public:
  GuardedWorkspace(int64_t bytes, Poison poison)
      : bytes_(static_cast<size_t>(std::max<int64_t>(bytes, TILEWISE_CONTROL_BYTES))),
        memory_(static_cast<std::byte*>(::operator new (bytes_ + 2 * kGuard, std::align_val_t{kGuard}))) {
    std::memset(memory_, static_cast<int>(kGuardByte), bytes_ + 2 * kGuard);
    const float filler = poison == Poison::nan ? std::nanf("") : 3e38f;
    for (size_t at = 0; at + sizeof filler <= bytes_; at += sizeof filler) {
      std::memcpy(memory_ + kGuard + at, &filler, sizeof filler);
    }
    std::memset(memory_ + kGuard, 0, TILEWISE_CONTROL_BYTES);
  }
  ~GuardedWorkspace() { ::operator delete (memory_, std::align_val_t{kGuard}); }
  GuardedWorkspace(const GuardedWorkspace&) = delete;
  GuardedWorkspace& operator=(const GuardedWorkspace&) = delete;

  tilewise_workspace view() { return {memory_ + kGuard, static_cast<int64_t>(bytes_)}; }
  std::byte* memory() { return memory_; }
  int64_t memory_bytes() const { return static_cast<int64_t>(bytes_ + 2 * kGuard); }
  std::string damage() const {
    for (size_t n = 0; n < kGuard; ++n) {
      if (memory_[n] != kGuardByte) return "written before the workspace";
      if (memory_[kGuard + bytes_ + n] != kGuardByte) return "written behind the workspace";
    }
    for (size_t n = 0; n < TILEWISE_CONTROL_BYTES; ++n) {
      if (memory_[kGuard + n] != std::byte{0}) return "the control block is not zero after the call";
    }
    return {};
  }

 private:
  size_t bytes_;
  std::byte* memory_;
};

void keep_line(void* user, const char* line) {
  static_cast<std::vector<std::string>*>(user)->emplace_back(line);
}

double element_of(const ExpectedOutput& expected, const CaseTensor& tensor, size_t e) {
  return read_element(tensor.data(), tensor.dtype(), expected.address[e]);
}

}  // namespace

LoggedContext::LoggedContext(int threads) : lines_(std::make_unique<std::vector<std::string>>()) {
  ContextOptions options;
  options.threads = threads;
  options.log = keep_line;
  options.log_user = lines_.get();
  auto created = Context::create(options);
  if (!created) {
    std::fprintf(stderr, "no context: %s\n", created.status().message().c_str());
    std::abort();
  }
  context_ = std::make_unique<Context>(std::move(*created));
}

LoggedContext& shared_context() {
  static LoggedContext logged(4);
  return logged;
}

const Expected<DeviceInfo>& cuda_device() {
  static const Expected<DeviceInfo> device = DeviceInfo::query(TILEWISE_CUDA, 0);
  return device;
}

namespace {

Status launch(const Context& context, const Plan& plan, const Tensors& tensors, tilewise_workspace workspace,
              Direction direction) {
  return direction == Direction::forward ? forward(context, plan, tensors, workspace)
                                         : backward(context, plan, tensors, workspace);
}

// Copies the case's memory, guards and all, to the device, runs there, and brings all of it back, so that
// what a kernel wrote where it must not is seen.
Status run_on_device(const Context& context, const Plan& plan, CaseData& data, GuardedWorkspace& workspace,
                     Direction direction) {
  static cuda::Mirror mirror(plan.device_index);
  mirror.clear();
  data.for_each_tensor([&](const char*, CaseTensor& t) { mirror.add(t.memory(), t.memory_bytes()); });
  mirror.add(workspace.memory(), workspace.memory_bytes());
  if (Status s = mirror.upload(); !s.ok()) return s;
  const tilewise_workspace host = workspace.view();
  const Tensor block = mirror.twin(Tensor(host.data, DType::boolean, {host.bytes}));
  if (Status s =
          launch(context, plan, mirror.twins(data.tensors(direction)), {block.data, host.bytes}, direction);
      !s.ok())
    return s;
  Status status = cuda::synchronize(plan.device_index);
  data.for_each_tensor([&](const char*, CaseTensor& t) {
    if (status.ok()) status = mirror.download(t.memory(), t.memory_bytes());
  });
  return status.ok() ? mirror.download(workspace.memory(), workspace.memory_bytes()) : status;
}

}  // namespace

RunResult run_kernel(LoggedContext& logged, const char* kernel, CaseData& data, Direction direction,
                     const RunOptions& options) {
  RunResult result;
  Limits limits;
  limits.kernel = kernel;
  limits.threads = options.threads;
  const Problem problem = data.problem(direction);
  const auto plan = options.device ? tilewise::plan(problem, *options.device, limits)
                                   : tilewise::plan(problem, logged.context(), limits);
  if (!plan) {
    if (plan.status().code() == Code::unsupported && kernel != nullptr) {
      result.refusal = plan.status().message();
      if (result.refusal.find(kernel) == std::string::npos) {
        result.failure = cat("the refusal does not name the kernel: ", result.refusal);
      }
    } else {
      result.failure = cat("planning failed: ", plan.status().message());
    }
    return result;
  }
  if (kernel != nullptr && std::string(plan->kernel) != kernel) {
    result.failure = cat("the plan holds ", plan->kernel, " instead");
    return result;
  }

  GuardedWorkspace workspace(plan->workspace_bytes, options.poison);
  data.poison_outputs(direction, options.poison);
  Status status = prepare(logged.context(), *plan);
  logged.clear();
  if (status) {
    status = options.device
                 ? run_on_device(logged.context(), *plan, data, workspace, direction)
                 : launch(logged.context(), *plan, data.tensors(direction), workspace.view(), direction);
  }
  result.ran = status.ok();
  if (!status) {
    result.failure = cat("the call failed: ", status.message());
    return result;
  }
  result.failure = workspace.damage();
  // An empty batch launches nothing; every other call logs the kernel that it launches.
  const std::string said = cat("kernel ", plan->kernel, " ");
  const bool logs = std::any_of(logged.lines().begin(), logged.lines().end(), [&](const std::string& line) {
    return line.find(said) != std::string::npos;
  });
  if (!logs && data.source.problem.batch > 0) result.failure = cat("no log line says that ", said, "ran");
  return result;
}

std::vector<const Kernel*> kernels_of(Direction direction, bool cuda) {
  std::vector<const Kernel*> kernels;
  for (const Kernel* kernel : Registry::builtin().rows()) {
    const bool serves = (kernel->op == Op::forward) == (direction == Direction::forward);
    if (serves && is_cuda(kernel->target) == cuda) kernels.push_back(kernel);
  }
  return kernels;
}

Case parsed(const std::string& line) {
  const auto c = parse_case(line);
  if (c) return *c;
  std::fprintf(stderr, "%s\n", c.status().message().c_str());
  std::abort();
}

std::string words_for(const Kernel& kernel) {
  return kernel.dtype_kv == DType::none ? std::string() : cat(" dtype_kv=", name_of(kernel.dtype_kv));
}

DType dtype_for(const Kernel& kernel) { return kernel.dtype == DType::none ? DType::f32 : kernel.dtype; }

std::vector<std::byte> output_bits(CaseData& data, Direction direction, const Expectation& expectation) {
  std::vector<std::byte> bits;
  for (auto& [name, tensor] : data.outputs(direction)) {
    const auto size = static_cast<size_t>(element_bytes(tensor->dtype()));
    const auto* first = static_cast<const std::byte*>(tensor->data());
    for (const int64_t at : expectation.find(name)->address) {
      const std::byte* element = first + static_cast<size_t>(at) * size;
      bits.insert(bits.end(), element, element + size);
    }
  }
  return bits;
}

std::string first_difference(CaseData& data, Direction direction, const Expectation& expectation,
                             const std::vector<std::byte>& before) {
  size_t from = 0;
  for (auto& [name, tensor] : data.outputs(direction)) {
    const auto size = static_cast<size_t>(element_bytes(tensor->dtype()));
    const ExpectedOutput& expected = *expectation.find(name);
    const auto* first = static_cast<const std::byte*>(tensor->data());
    for (size_t e = 0; e < expected.address.size(); ++e, from += size) {
      const std::byte* now = first + static_cast<size_t>(expected.address[e]) * size;
      if (std::memcmp(now, before.data() + from, size) == 0) continue;
      std::ostringstream text;
      text.precision(9);
      text << name << " at " << expected.coordinate(e) << ": "
           << read_element(before.data() + from, tensor->dtype(), 0) << " before, "
           << element_of(expected, *tensor, e) << " now";
      return text.str();
    }
  }
  return {};
}

std::string missed_answer(CaseData& data, Direction direction, const Expectation& expectation) {
  for (const KnownAnswer& answer : data.source.answers) {
    const ExpectedOutput* expected = expectation.find(answer.output);
    if (expected == nullptr || expected->rows.empty()) continue;
    for (auto& [name, tensor] : data.outputs(direction)) {
      if (name != answer.output) continue;
      bool found = false;
      for (size_t e = 0; e < expected->ref.size(); ++e) {
        const auto dim = static_cast<size_t>(expected->extent[2]),
                   heads = static_cast<size_t>(expected->extent[1]);
        const RowId id = expected->rows[e / dim / heads];
        if (id != RowId{answer.batch, answer.row} || static_cast<int64_t>(e / dim % heads) != answer.head)
          continue;
        found = true;
        const double got = element_of(*expected, *tensor, e);
        const double allowed =
            (2.0 * rounding_unit(tensor->dtype()) + 16.0 * 0x1p-24) * std::fabs(answer.value);
        const bool right = std::isfinite(answer.value)
                               ? std::fabs(got - answer.value) <= allowed
                               : (got == answer.value || (std::isnan(got) && std::isnan(answer.value)));
        if (right) continue;
        std::ostringstream text;
        text.precision(9);
        text << name << " at " << expected->coordinate(e) << ": got " << got << ", the known answer is "
             << answer.value;
        return text.str();
      }
      if (!found) return cat("the known answer of ", name, " names a row that does not exist");
    }
  }
  return {};
}

const std::vector<Case>& file_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    std::vector<std::filesystem::path> files;
    const std::filesystem::path folder = std::filesystem::path(TILEWISE_SOURCE_DIR) / "tests/cases";
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".txt") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      std::ifstream stream(file);
      std::stringstream text;
      text << stream.rdbuf();
      auto parsed = parse_cases(text.str());
      if (!parsed) {
        std::fprintf(stderr, "%s: %s\n", file.c_str(), parsed.status().message().c_str());
        std::abort();
      }
      for (Case& c : *parsed) {
        c.name = cat(file.stem().string(), "_", c.name);
        all.push_back(std::move(c));
      }
    }
    if (all.empty()) {
      std::fprintf(stderr, "no cases in %s\n", folder.c_str());
      std::abort();
    }
    return all;
  }();
  return cases;
}

uint64_t run_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("TILEWISE_TEST_SEED");
    const uint64_t value = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::cout << "TILEWISE_TEST_SEED=" << value << std::endl;
    return value;
  }();
  return seed;
}

}  // namespace tilewise::testing_support

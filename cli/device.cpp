#include "cli/device.h"

#include <vector>

#include "api/context.h"
#include "api/environment.h"
#include "cli/text.h"
#include "plan/planner.h"

namespace tilewise::cli {
namespace {

// The one kernel of double precision for each direction.
const char* reference_kernel(int32_t direction) {
  const Op op = direction == TILEWISE_BACKWARD ? Op::backward : Op::forward;
  for (const Kernel* row : Registry::builtin().rows())
    if (row->target == Target::reference && row->op == op) return row->name;
  return nullptr;
}

Status check_kernel_names(const std::string& list) {
  std::vector<std::string> known;
  for (const Kernel* row : Registry::builtin().rows()) known.emplace_back(row->name);
  for (const std::string_view name : split_names(list)) {
    if (Registry::builtin().find(name) >= 0) continue;
    std::string text = "--kernel was given '" + std::string(name) + "', which this build does not have; ";
    if (const std::string close = nearest(name, known); !close.empty()) text += "is it " + close + "? ";
    return Status(Code::invalid, text + "tilewise info --kernels lists all.");
  }
  return {};
}

// Asked here, so that a missing driver or device is the first thing that is said.
Expected<DeviceName> existing(const DeviceName& name) {
  if (name.kind != TILEWISE_CUDA) return name;
  if (const auto info = DeviceInfo::query(TILEWISE_CUDA, name.index); !info) return info.status();
  return name;
}

}  // namespace

std::string DeviceName::to_string() const {
  if (reference) return "reference";
  return kind == TILEWISE_CUDA ? "cuda:" + std::to_string(index) : "cpu";
}

Expected<DeviceName> parse_device(const std::string& text) {
  DeviceName name;
  if (text == "auto") {
    // What the environment says; else the first CUDA device, where there is one that works.
    const auto given = device_of_environment();
    if (!given) return given.status();
    if (!*given) {
      if (DeviceInfo::query(TILEWISE_CUDA, 0).ok()) name.kind = TILEWISE_CUDA;
      return name;
    }
    name.kind = static_cast<tilewise_device_kind>((*given)->kind);
    name.index = (*given)->index;
    return existing(name);
  }
  name.reference = text == "reference";
  if (text == "cpu" || name.reference) return name;
  if (text != "cuda" && text.rfind("cuda:", 0) != 0)
    return Status(Code::invalid,
                  "--device was given '" + text + "'; accepted is auto, cpu, reference or cuda[:n].");
  if (text != "cuda") {
    const auto index = parse_integer("--device cuda:", text.substr(5), 0, 1 << 20);
    if (!index) return index.status();
    name.index = static_cast<int32_t>(*index);
  }
  name.kind = TILEWISE_CUDA;
  return existing(name);
}

const char* widest_isa(uint64_t isa) {
  if (isa & TILEWISE_ISA_AVX512) return "avx512";
  if (isa & TILEWISE_ISA_AVX2) return "avx2";
  if (isa & TILEWISE_ISA_NEON) return "neon";
  return "scalar";
}

Expected<Device> Device::choose(const DeviceArguments& a) {
  const auto name = parse_device(a.device);
  if (!name) return name.status();
  int64_t max_workspace = -1;
  if (!a.max_workspace.empty()) {
    const auto bytes = parse_bytes("--max-workspace", a.max_workspace);
    if (!bytes) return bytes.status();
    max_workspace = *bytes;
  }
  if (!a.threads.empty()) {
    const auto threads = parse_integer("--threads", a.threads, 1, 4096);
    if (!threads) return threads.status();
    setenv("TILEWISE_THREADS", std::to_string(*threads).c_str(), 1);
  }
  if (!a.kernel.empty()) {
    if (Status s = check_kernel_names(a.kernel); !s) return s;
    if (a.device == "reference")
      return Status(Code::invalid,
                    "--kernel was given together with --device reference; accepted is one of them.");
  }
  setenv("TILEWISE_CHECK", "1", 0);
  if (name->kind == TILEWISE_CUDA)
    setenv("TILEWISE_DEVICE", name->to_string().c_str(), 1);
  else if (a.device != "auto")
    setenv("TILEWISE_DEVICE", "cpu", 1);
  auto context = Context::from_environment();
  if (!context) return context.status();
  const DeviceInfo info(context->get()->device);  // before the move: arguments are evaluated in any order
  Device device(std::move(*context), info);
  device.threads_ = device.context_.threads();
  device.kernel_ = a.kernel;
  device.reference_ = name->reference;
  device.max_workspace_ = max_workspace;
  return device;
}

// A forced kernel serves one direction; the other one is free.
Limits Device::limits(const Problem& problem, const char* kernel, std::string* storage) const {
  Limits limits;
  limits.max_workspace_bytes = max_workspace_;
  limits.threads = threads_;
  if (kernel)
    *storage = kernel;
  else if (reference_)
    *storage = reference_kernel(problem.direction);
  else
    *storage = kernel_;
  limits.kernel = storage->empty() ? nullptr : storage->c_str();
  return limits;
}

Expected<Plan> Device::plan(const Problem& problem, const char* kernel) const {
  std::string storage;
  const Limits within = limits(problem, kernel, &storage);
  auto plan = tilewise::plan(problem, context_, within);
  if (plan) return plan;
  // The planner's own words: every kernel's reason, where the C border's buffer cuts a long list.
  const Choice choice = tilewise::choose(context_.get()->request(problem, &within));
  return choice.status.ok() ? plan.status() : choice.status;
}

const char* Device::chosen_by(const Plan& plan) const {
  if (kernel_ == plan.kernel || context_.get()->forced == plan.kernel) return "forced";
  return plan.from_tuning ? "tuning" : "cost model";
}

std::string Device::explain(const Problem& problem) const {
  std::string storage;
  const Limits within = limits(problem, nullptr, &storage);
  return tilewise::explain(context_.get()->request(problem, &within));
}

std::string Device::text() const {
  if (is_cuda()) return name() + ": " + device_text(info_);
  return std::string(reference_ ? "reference (fp64, plain loops) on cpu: " : "cpu: ") + info_.name + ", " +
         widest_isa(info_.isa) + ", " + std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads");
}

}  // namespace tilewise::cli

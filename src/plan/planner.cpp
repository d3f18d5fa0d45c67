#include "plan/planner.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/text.h"
#include "core/validate.h"

namespace tilewise {
namespace {

uint64_t isa_bit(Target target) {
  switch (target) {
    case Target::reference:
      return 0;
    case Target::scalar:
      return TILEWISE_ISA_SCALAR;
    case Target::avx2:
      return TILEWISE_ISA_AVX2;
    case Target::avx512:
      return TILEWISE_ISA_AVX512;
    case Target::avx512bf16:
      return TILEWISE_ISA_AVX512BF16;
    case Target::neon:
      return TILEWISE_ISA_NEON;
    case Target::simt:
    case Target::sm80:
    case Target::sm90:
      return 0;  // a compute capability: the row's own rule
  }
  return 0;
}

// Rules that every row shares; then the row's own.
std::string refusal_of(const Kernel& kernel, const PlanRequest& r) {
  const tilewise_problem& p = r.problem;
  if (kernel.target == Target::reference && r.forced.empty())
    return "the oracle in double precision runs only when it is forced by name";
  if (is_cuda(kernel.target) != (r.device.kind == TILEWISE_CUDA))
    return cat("needs a ", is_cuda(kernel.target) ? "CUDA device" : "CPU", "; given device ", r.device.name);
  const uint64_t bit = isa_bit(kernel.target);
  if (bit && !(r.device.isa & bit))
    return cat("needs ", name_of(kernel.target), "; this device has ", isa_text(r.device.isa));
  const auto other = [](DType takes, int32_t given) {
    return takes != DType::none && static_cast<int32_t>(takes) != given;
  };
  const DType kv = kernel.stored_kv();
  if (other(kernel.dtype, p.dtype_q) || other(kv, p.dtype_k) || other(kv, p.dtype_v))
    return cat("reads ",
               kv == kernel.dtype            ? cat("q, k, v in ", name_of(kv))
               : kernel.dtype == DType::none ? cat("k, v in ", name_of(kv))
                                             : cat("q in ", name_of(kernel.dtype), ", k, v in ", name_of(kv)),
               "; given ", name_of(static_cast<DType>(p.dtype_q)), ", ",
               name_of(static_cast<DType>(p.dtype_k)), ", ", name_of(static_cast<DType>(p.dtype_v)));
  if (kernel.head_dim != 0 && kernel.head_dim != p.head_dim)
    return cat("built for head_dim ", kernel.head_dim, "; given ", p.head_dim);
  return kernel.refuses ? kernel.refuses(kernel, Problem(p), DeviceInfo(r.device)) : std::string();
}

// What the cost model ranks by. Batch invariant: one sequence of a fixed length, so that neither batch nor
// lengths choose the kernel, and with it a row's bits.
Problem ranking_problem(const Problem& problem) {
  if (!problem.batch_invariant) return problem;
  constexpr int64_t kRows = 1024;
  Problem one = problem;
  one.batch = 1;
  one.seqlen_q = one.seqlen_kv = kRows;
  if (one.packed_q) one.total_q = kRows;
  if (one.packed_kv) one.total_kv = kRows;
  return one;
}

// Fewer threads need less scratch: halves them until the workspace fits the limit.
void fit_workspace(Candidate& c, const PlanRequest& r) {
  const Kernel& k = *c.kernel;
  const Problem problem(r.problem);
  const DeviceInfo device(r.device);
  int threads = r.threads > 0 ? r.threads : std::max(1, r.device.cores);
  const int64_t limit = r.max_workspace_bytes;
  for (;; threads /= 2) {
    c.schedule = k.schedule(k, problem, device, threads);
    const int64_t scratch = k.scratch_bytes(k, problem, c.schedule);
    if (scratch < 0 || scratch > INT64_MAX / 2) {
      c.refusal = "its workspace would have more than 2^62 bytes";
      return;
    }
    c.workspace_bytes = TILEWISE_CONTROL_BYTES + scratch;
    if (limit < 0 || c.workspace_bytes <= limit) break;
    if (threads == 1) {
      c.refusal = cat("needs ", bytes_text(static_cast<double>(c.workspace_bytes)), " (", c.workspace_bytes,
                      " bytes) of workspace even with one thread; max_workspace_bytes is ", limit);
      return;
    }
  }
  const int64_t memory = r.device.memory_bytes;
  if (memory > 0 && c.workspace_bytes > memory) {
    c.refusal = cat("needs ", bytes_text(static_cast<double>(c.workspace_bytes)),
                    " of workspace; the device has ", bytes_text(static_cast<double>(memory)), " free");
    return;
  }
  c.estimate = k.estimate(k, problem, device, c.schedule);
  const Problem ranked = ranking_problem(problem);
  c.rank_seconds =
      k.estimate(k, ranked, device, k.schedule(k, ranked, device, std::max(1, device.cores))).seconds;
  if (!(c.rank_seconds >= 0)) c.rank_seconds = std::numeric_limits<double>::max();  // NaN has no rank
}

bool same_direction(const Kernel& kernel, const tilewise_problem& p) {
  return (kernel.op == Op::backward) == (p.direction == TILEWISE_BACKWARD);
}

bool is_forced(const PlanRequest& r, const Kernel& kernel) {
  const auto names = split_names(r.forced);
  return std::find(names.begin(), names.end(), kernel.name) != names.end();
}

// Every name in `forced` exists, and one of them has the problem's direction.
Status check_forced(const PlanRequest& r) {
  if (Status s = check_names(r.registry, r.forced); !s.ok()) return s;
  for (const Kernel* kernel : r.registry.rows()) {
    if (same_direction(*kernel, r.problem) && is_forced(r, *kernel)) return {};
  }
  const char* direction = r.problem.direction == TILEWISE_BACKWARD ? "backward" : "forward";
  return {Code::unsupported,
          cat("the problem is ", direction, " and the forced kernel ", r.forced, " is not; accepted: a ",
              direction, " kernel, or one name a direction, separated by a comma")};
}

// Moves the kernel of the nearest measured line that can run to the front.
bool apply_tuning(const PlanRequest& r, Choice& choice) {
  if (!r.tuning || r.tuning->lines.empty()) return false;
  const auto usable = choice.candidates.begin() + choice.usable;
  for (int i : r.tuning->nearest(tuning_key(r.problem))) {
    const std::string& name = r.tuning->lines[static_cast<size_t>(i)].kernel;
    const auto found = std::find_if(choice.candidates.begin(), usable,
                                    [&](const Candidate& c) { return name == c.kernel->name; });
    if (found == usable) continue;
    std::rotate(choice.candidates.begin(), found, found + 1);
    return true;
  }
  return false;
}

Status no_kernel(const PlanRequest& r, const Choice& choice) {
  std::string text = r.forced.empty() ? cat("no kernel can run ", print_problem(r.problem), ":")
                                      : cat("the forced kernel cannot run ", print_problem(r.problem), ":");
  // A caller's buffer holds 4 KB: kernels that refuse for one reason share its line.
  std::vector<std::pair<std::string, std::string>> lines;  // names, reason
  for (const Candidate& c : choice.candidates) {
    if (!r.forced.empty() && !is_forced(r, *c.kernel)) continue;
    const auto same =
        std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.second == c.refusal; });
    if (same == lines.end())
      lines.emplace_back(c.kernel->name, c.refusal);
    else
      same->first += cat(", ", c.kernel->name);
  }
  for (const auto& [names, reason] : lines) text += cat("\n  ", names, ": ", reason);
  if (choice.candidates.empty()) text += " this library has no kernel of that direction";
  return {Code::unsupported, text};
}

}  // namespace

const char* name_of(Target target) {
  switch (target) {
    case Target::reference:
      return "reference";
    case Target::scalar:
      return "scalar";
    case Target::avx2:
      return "avx2";
    case Target::avx512:
      return "avx512";
    case Target::avx512bf16:
      return "avx512bf16";
    case Target::neon:
      return "neon";
    case Target::simt:
      return "simt";
    case Target::sm80:
      return "sm80";
    case Target::sm90:
      return "sm90";
  }
  return "unknown";
}

std::string device_text(const tilewise_device_info& d) {
  if (d.kind == TILEWISE_CUDA)
    return cat(d.name, ", ", d.cores, " multiprocessors, compute capability ", d.isa / 10, ".", d.isa % 10);
  return cat(d.name, ", ", d.cores, " cores, ", isa_text(d.isa));
}

std::string isa_text(uint64_t isa) {
  std::string text;
  for (Target target : {Target::scalar, Target::avx2, Target::avx512, Target::avx512bf16, Target::neon}) {
    if (isa & isa_bit(target)) append_listed(text, name_of(target), " ");
  }
  return text.empty() ? "none" : text;
}

Choice choose(const PlanRequest& r) {
  Choice choice;
  if (choice.status = validate(r.problem); !choice.status.ok()) return choice;
  if (r.max_workspace_bytes < -1 || r.threads < 0) {
    choice.status = {Code::invalid,
                     cat("limits have max_workspace_bytes ", r.max_workspace_bytes, " and threads ",
                         r.threads, "; accepted: -1 (no limit) or more, 0 (the context's) or more")};
    return choice;
  }
  if (!r.forced.empty()) choice.status = check_forced(r);
  if (!choice.status.ok()) return choice;
  const auto rows = r.registry.rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!same_direction(*rows[i], r.problem)) continue;
    Candidate c;
    c.index = static_cast<int>(i);
    c.kernel = rows[i];
    if (!r.forced.empty() && !is_forced(r, *rows[i])) {
      c.refusal = "another kernel is forced";
    } else {
      c.refusal = refusal_of(*rows[i], r);
      if (c.refusal.empty()) fit_workspace(c, r);
    }
    choice.candidates.push_back(std::move(c));
  }
  const auto middle = std::stable_partition(choice.candidates.begin(), choice.candidates.end(),
                                            [](const Candidate& c) { return c.refusal.empty(); });
  choice.usable = static_cast<int>(middle - choice.candidates.begin());
  std::stable_sort(choice.candidates.begin(), middle,
                   [](const Candidate& a, const Candidate& b) { return a.rank_seconds < b.rank_seconds; });
  choice.from_tuning = r.forced.empty() && !r.problem.batch_invariant && apply_tuning(r, choice);
  if (choice.usable == 0) choice.status = no_kernel(r, choice);
  return choice;
}

Status make_plan(const PlanRequest& request, tilewise_plan* plan) {
  std::memset(plan, 0, sizeof *plan);
  Choice choice = choose(request);
  if (!choice.status.ok()) return std::move(choice.status);
  const Candidate& best = choice.candidates.front();
  plan->struct_bytes = sizeof *plan;
  plan->kernel_index = best.index;
  plan->problem = request.problem;
  plan->device_kind = request.device.kind;
  plan->device_index = request.device.index;
  plan->threads = best.schedule.threads;
  plan->tile_m = best.schedule.tile_m;
  plan->tile_n = best.schedule.tile_n;
  plan->num_splits = best.schedule.num_splits;
  plan->from_tuning = choice.from_tuning ? 1 : 0;
  plan->workspace_bytes = best.workspace_bytes;
  plan->predicted_ms = best.estimate.seconds * 1e3;
  plan->predicted_bytes = best.estimate.bytes;
  copy_text(best.kernel->name, plan->kernel, sizeof plan->kernel);
  return {};
}

}  // namespace tilewise

// What a plan looks like to a person: problem, plan and the ranking of every kernel.
#include <algorithm>
#include <cstring>

#include "core/cost.h"
#include "core/problem_fields.h"
#include "core/text.h"
#include "plan/planner.h"
#include "tilewise/version.h"

namespace tilewise {
namespace {

std::string dtypes_text(const tilewise_problem& p) {
  auto name = [](int32_t dtype) { return name_of(static_cast<DType>(dtype)); };
  std::string text = name(p.dtype_q);
  if (p.dtype_k != p.dtype_q || p.dtype_v != p.dtype_q)
    text += cat("/", name(p.dtype_k), "/", name(p.dtype_v));
  if (p.dtype_o != p.dtype_q) text += cat(" o ", name(p.dtype_o));
  return text;
}

std::string chunks_text(int num_splits) {
  return num_splits ? cat(num_splits, " key chunks") : std::string("keys cut by their lengths");
}

std::string features_text(uint32_t features) {
  constexpr const char* kNames[] = {"bias",     "mask",        "q_lengths", "kv_lengths",      "kv_starts",
                                    "q_offset", "segment_ids", "kv_ranges", "alibi_slopes",    "sinks",
                                    "lse",      "dlse",        "delta",     "cache_batch_idx", "kv_scales"};
  std::string text;
  for (unsigned i = 0; i < std::size(kNames); ++i) {
    if (features & (1u << i)) append_listed(text, kNames[i], ",");
  }
  return text;
}

std::string wants_text(int32_t wants) {
  constexpr const char* kNames[] = {"dq", "dk", "dv", "dbias", "dsinks"};
  std::string text;
  for (int i = 0; i < 5; ++i) {
    if (wants & (1 << i)) append_listed(text, kNames[i], ",");
  }
  return text;
}

std::string prediction(const Candidate& c) {
  return cat(fixed_text(c.estimate.seconds * 1e3, 3), " ms predicted, ", bytes_text(c.estimate.bytes),
             " moved, ", bytes_text(static_cast<double>(c.workspace_bytes)), " workspace, tile ",
             c.schedule.tile_m, "x", c.schedule.tile_n, ", ",
             c.estimate.waves > 0 ? cat(number_text(c.estimate.waves, 3), " waves, ",
                                        fixed_text(100 * c.estimate.waste, 1), " % of the tiles' work wasted")
                                  : cat(c.schedule.threads, " threads"),
             c.schedule.num_splits == 1 ? std::string() : cat(", ", chunks_text(c.schedule.num_splits)));
}

std::string tuning_notes(const PlanRequest& r) {
  std::string text;
  const Tuning& tuning = *r.tuning;
  std::vector<std::string> unknown;
  for (const TuningLine& line : tuning.lines) {
    if (r.registry.find(line.kernel) < 0 &&
        std::find(unknown.begin(), unknown.end(), line.kernel) == unknown.end())
      unknown.push_back(line.kernel);
  }
  for (const std::string& name : unknown)
    text += cat("note: tuning names kernel ", name,
                ", which this library does not have; its lines are ignored\n");
  if (!tuning.device.empty() && tuning.device != r.device.name)
    text += cat("note: tuning was measured on ", tuning.device, "; this device is ", r.device.name, "\n");
  if (!tuning.library.empty() && tuning.library != TILEWISE_VERSION)
    text +=
        cat("note: tuning was measured with version ", tuning.library, "; this is ", TILEWISE_VERSION, "\n");
  return text;
}

}  // namespace

std::string print_problem(const tilewise_problem& p) {
  std::string text = cat(p.direction == TILEWISE_BACKWARD ? "backward " : "forward ", dtypes_text(p),
                         " batch ", p.batch, " heads ", p.heads_q, "/", p.heads_kv, " seqlen ", p.seqlen_q,
                         "x", p.seqlen_kv, " head_dim ", p.head_dim);
  if (p.head_dim_v != p.head_dim) text += cat("/", p.head_dim_v);
  if (p.packed_q) text += cat(" packed total_q ", p.total_q);
  if (p.packed_kv) text += cat(" packed total_kv ", p.total_kv);
  if (p.page_size)
    text += cat(" paged ", p.max_pages, " of ", p.num_pages, " pages of ", p.page_size, " rows");
  if (p.cache_slots) text += cat(" cache_slots ", p.cache_slots);
  if (p.scale_rows) text += cat(" scales of ", p.scale_rows, " rows");
  if (p.causal) text += " causal";
  if (p.window_left >= 0 || p.window_right >= 0) text += cat(" window ", p.window_left, ",", p.window_right);
  if (p.position == TILEWISE_TOP_LEFT) text += " top-left";
  if (p.position == TILEWISE_GIVEN) text += " q_offset given";
  if (p.softmax_scale == p.softmax_scale) text += cat(" scale ", p.softmax_scale);
  if (p.softcap != 0.0f) text += cat(" softcap ", p.softcap);
  if (p.dropout_p != 0.0f) text += cat(" dropout ", p.dropout_p);
  if (p.features) text += cat(" with ", features_text(p.features));
  if (p.features & TILEWISE_HAS_BIAS)
    text += cat(" bias ", name_of(static_cast<DType>(p.dtype_bias)), shape_text(p.bias_shape, 4));
  if (p.features & TILEWISE_HAS_MASK)
    text += cat(" mask ", name_of(static_cast<DType>(p.dtype_mask)), shape_text(p.mask_shape, 4));
  if (p.features & TILEWISE_HAS_ALIBI && p.alibi_per_batch) text += " alibi per batch";
  if (p.wants) text += cat(" wants ", wants_text(p.wants));
  if (p.direction == TILEWISE_BACKWARD) {
    const struct {
      const char* name;
      int32_t dtype;
    } gradients[] = {{"dout", p.dtype_dout}, {"dq", p.dtype_dq}, {"dk", p.dtype_dk}, {"dv", p.dtype_dv}};
    for (const auto& g : gradients) {
      if (g.dtype != p.dtype_q) text += cat(" ", g.name, " ", name_of(static_cast<DType>(g.dtype)));
    }
  }
  if (p.accumulate) text += " accumulate";
  if (p.deterministic) text += " deterministic";
  if (p.batch_invariant) text += " batch-invariant";
  if (p.alignment > 1) text += cat(" alignment ", p.alignment);
  return text;
}

std::string print_plan(const tilewise_plan& plan) {
  return cat(plan.kernel, " for ", print_problem(plan.problem), ": tile ", plan.tile_m, "x", plan.tile_n,
             ", ", plan.threads, " threads, ", chunks_text(plan.num_splits), ", workspace ",
             plan.workspace_bytes, " bytes, ", fixed_text(plan.predicted_ms, 3), " ms and ",
             bytes_text(plan.predicted_bytes), " moved predicted",
             plan.from_tuning ? ", chosen by a tuning line" : "");
}

bool plan_equal(const tilewise_plan& a, const tilewise_plan& b) {
  return a.struct_bytes == b.struct_bytes && a.kernel_index == b.kernel_index &&
         problem_equal(a.problem, b.problem) && a.device_kind == b.device_kind &&
         a.device_index == b.device_index && a.threads == b.threads && a.tile_m == b.tile_m &&
         a.tile_n == b.tile_n && a.num_splits == b.num_splits && a.from_tuning == b.from_tuning &&
         a.workspace_bytes == b.workspace_bytes && a.predicted_ms == b.predicted_ms &&
         a.predicted_bytes == b.predicted_bytes && std::strncmp(a.kernel, b.kernel, sizeof a.kernel) == 0;
}

std::string explain(const PlanRequest& r) {
  const Choice choice = choose(r);
  if (choice.candidates.empty()) return choice.status.message() + "\n";
  std::string text = cat("problem: ", print_problem(r.problem), "\n         ",
                         number_text(operations(r.problem) * 1e-9), " Gflop over visible pairs, ",
                         bytes_text(ideal_bytes(r.problem)), " if each tensor is moved once\n");
  if (r.problem.batch_invariant) {
    text += "         batch-invariant: ranked for one sequence of 1024 queries and keys, without tuning";
    text += r.problem.direction == TILEWISE_BACKWARD ? "; gradients are summed in a fixed order\n" : "\n";
  }
  text += cat("device:  ", device_text(r.device), "\n");
  size_t width = 0;
  for (const Candidate& c : choice.candidates) width = std::max(width, std::strlen(c.kernel->name));
  int rank = 0;
  for (const Candidate& c : choice.candidates) {
    const bool usable = c.refusal.empty();
    std::string line = usable ? std::to_string(++rank) : "-";
    while (line.size() < 3) line.insert(line.begin(), ' ');
    line += cat("  ", c.kernel->name);
    line.append(width - std::strlen(c.kernel->name) + 2, ' ');
    line += usable ? prediction(c) : cat("refused: ", c.refusal);
    if (rank == 1 && usable) {
      line += !r.forced.empty()    ? "  <- chosen: forced"
              : choice.from_tuning ? "  <- chosen: measured (tuning)"
                                   : "  <- chosen: cost model";
    }
    text += line + "\n";
  }
  if (r.tuning) text += tuning_notes(r);
  if (choice.usable == 0) text += "nothing here can run it\n";
  return text;
}

}  // namespace tilewise

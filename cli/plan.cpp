#include "cli/plan.h"

#include <cstdio>

#include "cli/attend_input.h"
#include "cli/comparison.h"
#include "cli/device.h"
#include "cli/text.h"
#include "tune/problem_data.h"

namespace tilewise::cli {
namespace {

Expected<Direction> parse_direction(const std::string& text) {
  if (text == "forward" || text == "decode") return Direction::forward;
  if (text == "backward") return Direction::backward;
  return Status(Code::invalid,
                "--direction was given '" + text + "'; accepted is forward, backward or decode.");
}

Expected<Problem> problem_of_sizes(const PlanArguments& a) {
  Problem p;
  const auto direction = parse_direction(a.direction);
  if (!direction) return direction.status();
  p.direction = static_cast<int32_t>(*direction);
  const auto dtype = parse_dtype("--dtype", a.dtype);
  if (!dtype) return dtype.status();
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = p.dtype_dout = p.dtype_dq = p.dtype_dk = p.dtype_dv =
      static_cast<int32_t>(*dtype);
  const auto cache_dtype = parse_cache_dtype(a.cache_dtype);
  if (!cache_dtype) return cache_dtype.status();
  if (*cache_dtype != DType::none) {
    p.dtype_k = p.dtype_v = static_cast<int32_t>(*cache_dtype);
    p.features |= TILEWISE_HAS_KV_SCALES;
  }
  struct Size {
    const char* option;
    const std::string* text;
    int64_t* to;
    int64_t low;
  };
  constexpr int64_t kMany = int64_t{1} << 31;
  // Decode: one query over a cache of keys.
  const bool decode = a.direction == "decode";
  const std::string seqlen = !a.seqlen.empty() ? a.seqlen
                             : decode          ? "1"
                                               : "1024",
                    seqlen_kv = !a.seqlen_kv.empty() ? a.seqlen_kv
                                : decode             ? "4096"
                                                     : seqlen;
  for (const Size& s :
       {Size{"--batch", &a.batch, &p.batch, 0}, Size{"--heads", &a.heads, &p.heads_q, 1},
        Size{"--heads-kv", a.heads_kv.empty() ? &a.heads : &a.heads_kv, &p.heads_kv, 1},
        Size{"--head-dim", &a.head_dim, &p.head_dim, 1},
        Size{"--head-dim-v", a.head_dim_v.empty() ? &a.head_dim : &a.head_dim_v, &p.head_dim_v, 1},
        Size{"--seqlen", &seqlen, &p.seqlen_q, 0}, Size{"--seqlen-kv", &seqlen_kv, &p.seqlen_kv, 0},
        Size{"--page-size", &a.page_size, &p.page_size, 0}}) {
    const auto value = parse_integer(s.option, *s.text, s.low, kMany);
    if (!value) return value.status();
    *s.to = *value;
  }
  if (p.page_size > 0) {
    p.max_pages = (p.seqlen_kv + p.page_size - 1) / p.page_size;
    p.num_pages = p.batch * p.max_pages;
  }
  if (!known_causal(a.causal)) return refused_causal(a.causal);
  if (!a.causal.empty()) p.with_causal(a.causal == "top-left" ? Position::top_left : Position::bottom_right);
  if (!a.window.empty()) {
    const auto window = parse_window("--window", a.window);
    if (!window) return window.status();
    p.with_window(window->first, window->second);
  }
  p.alignment = tune::alignment_of(static_cast<DType>(p.dtype_k), p.head_dim, p.head_dim_v);
  p.features |= TILEWISE_HAS_LSE;
  if (*direction == Direction::backward) {
    p.features &= ~static_cast<uint32_t>(TILEWISE_HAS_LSE);
    p.wants = TILEWISE_WANT_DQ | TILEWISE_WANT_DK | TILEWISE_WANT_DV;
  }
  return p;
}

Expected<Problem> problem_of_file(const PlanArguments& a) {
  const auto direction = parse_direction(a.direction);
  if (!direction) return direction.status();
  const auto in = AttendInput::read(a.file);
  if (!in) return in.status();
  if (!a.json) std::printf("%s\n", in->reading.c_str());
  for (const std::string& w : in->warnings) std::fprintf(stderr, "warning: %s\n", w.c_str());
  Tensors t = in->tensors;
  // Outputs like attend's, at addresses that nobody follows.
  uintptr_t address = uintptr_t{1} << 20;
  const auto place = [&](tilewise_tensor like) {
    like.data = reinterpret_cast<void*>(address);
    like.flags = 0;
    address += uintptr_t{1} << 40;
    return like;
  };
  t.o = place(t.q);
  t.o.shape[t.o.rank - 1] = t.v.shape[t.v.rank - 1];
  t.o = tilewise_tensor_make(t.o.data, t.o.dtype, t.o.rank, t.o.shape);
  const int64_t stats[] = {t.q.shape[0], t.q.shape[1], t.q.shape[2]};
  const int64_t dense[] = {stats[0], stats[2], stats[1]}, rows[] = {stats[1], stats[0]};
  t.lse = in->packed ? tilewise_tensor_make(reinterpret_cast<void*>(address), TILEWISE_F32, 2, rows)
                     : tilewise_tensor_make(reinterpret_cast<void*>(address), TILEWISE_F32, 3, dense);
  Problem options = in->options;
  options.direction = static_cast<int32_t>(*direction);
  if (*direction == Direction::backward) {
    t.dout = t.o;
    t.dq = place(t.q), t.dk = place(t.k), t.dv = place(t.v);
  }
  return problem_from(options, t);
}

}  // namespace

int run_plan(const PlanArguments& a) {
  const auto device = Device::choose(a.device);
  if (!device) return fail("plan", device.status());
  const auto problem = a.file.input.empty() ? problem_of_sizes(a) : problem_of_file(a);
  if (!problem) return fail("plan", problem.status());
  const auto plan = device->plan(*problem);
  if (a.json) {
    if (!plan) return fail("plan", plan.status());
    Json j = object({{"schema", 1},
                     {"device", device->text()},
                     {"problem", describe(*problem)},
                     {"kernel", plan->kernel},
                     {"tile_m", plan->tile_m},
                     {"tile_n", plan->tile_n},
                     {"num_splits", plan->num_splits},
                     {"threads", plan->threads},
                     {"chosen_by", device->chosen_by(*plan)},
                     {"workspace_bytes", plan->workspace_bytes},
                     {"predicted_ms", plan->predicted_ms},
                     {"predicted_bytes", plan->predicted_bytes}});
    if (a.explain) j["explain"] = device->explain(*problem);
    std::printf("%s\n", j.dump().c_str());
    return kDone;
  }
  if (a.explain) std::printf("%s", device->explain(*problem).c_str());
  if (!plan) return fail("plan", plan.status());
  if (!a.explain) std::printf("%s\n", plan->to_string().c_str());
  return kDone;
}

}  // namespace tilewise::cli

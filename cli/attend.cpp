#include "cli/attend.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "api/bind.h"
#include "cli/attend_input.h"
#include "cli/attend_print.h"
#include "cli/attend_verify.h"
#include "cli/comparison.h"
#include "cli/device.h"
#include "cli/report.h"
#include "cli/text.h"

namespace tilewise::cli {
namespace {

constexpr const char* kCommand = "attend";
constexpr const char* kDirections[] = {"forward", "backward"};

// Which call writes a tensor: 0 forward, 1 backward.
bool written_by(std::string_view name, size_t direction) {
  return (name == "o" || name == "lse") == (direction == 0);
}

// Output tensors of the call, in the file's layout.
struct Output {
  const char* name;
  tilewise_tensor Tensors::*tensor;
  DType dtype;
  std::vector<int64_t> shape;  // as written
  Buffer memory{};
  int64_t bytes() const {
    int64_t n = bits_of(dtype) / 8;
    for (const int64_t size : shape) n *= size;
    return n;
  }
};

DType type_of(const tilewise_tensor& t) { return static_cast<DType>(t.dtype); }

std::vector<Output> outputs_of(const AttendInput& in, bool grad) {
  const Tensors& t = in.tensors;
  std::vector<int64_t> o = in.file_shape(t.q);
  o.back() = t.v.shape[t.v.rank - 1];
  const std::vector<int64_t> lse = in.packed ? std::vector<int64_t>{t.q.shape[1], t.q.shape[0]}
                                             : std::vector<int64_t>{t.q.shape[0], t.q.shape[2], t.q.shape[1]};
  std::vector<Output> outputs;
  outputs.push_back({"o", &Tensors::o, type_of(t.q), o});
  outputs.push_back({"lse", &Tensors::lse, DType::f32, lse});
  if (!grad) return outputs;
  outputs.push_back({"dq", &Tensors::dq, type_of(t.q), in.file_shape(t.q)});
  outputs.push_back({"dk", &Tensors::dk, type_of(t.k), in.file_shape(t.k)});
  outputs.push_back({"dv", &Tensors::dv, type_of(t.v), in.file_shape(t.v)});
  if (t.bias.dtype)
    outputs.push_back({"dbias", &Tensors::dbias, type_of(t.bias), {t.bias.shape, t.bias.shape + 4}});
  if (t.sinks.dtype)
    outputs.push_back({"dsinks", &Tensors::dsinks, DType::f32, {t.sinks.shape, t.sinks.shape + 1}});
  return outputs;
}

// Where outputs stand while the call is planned: distinct addresses, never followed.
void place_untouched(const AttendInput& in, std::vector<Output>& outputs, Tensors* tensors) {
  uintptr_t address = uintptr_t{1} << 20;
  for (Output& o : outputs) {
    tensors->*o.tensor = in.view(reinterpret_cast<void*>(address), o.dtype, o.shape);
    address += (static_cast<uintptr_t>(o.bytes()) / 64 + 1) * 64;
  }
}

Status place(const AttendInput& in, std::vector<Output>& outputs, Tensors* tensors) {
  for (Output& o : outputs) {
    o.memory = Buffer(o.bytes());
    if (!o.memory.data())
      return Status(Code::out_of_memory, std::string("no memory for ") + o.name + " (" +
                                             bytes_text(static_cast<double>(o.bytes())) + ").");
    // NaN bits: an element that the call does not write is seen. Touches every page too.
    std::memset(o.memory.data(), 0xff, static_cast<size_t>(o.bytes()));
    tensors->*o.tensor = in.view(o.memory.data(), o.dtype, o.shape);
  }
  return {};
}

// Rows past cu_seqlens[batch] are nobody's; in a file they are zero.
void clear_unowned(const AttendInput& in, std::vector<Output>& outputs) {
  if (!in.packed) return;
  const auto owned = [](const tilewise_tensor& cu, int64_t total) {
    const int64_t last = cu.shape[0] - 1;
    const int64_t end = cu.dtype == TILEWISE_I64 ? static_cast<const int64_t*>(cu.data)[last]
                                                 : static_cast<const int32_t*>(cu.data)[last];
    return std::clamp<int64_t>(end, 0, total);
  };
  for (Output& o : outputs) {
    const std::string_view name = o.name;
    const bool keys = name == "dk" || name == "dv", stats = name == "lse";
    if (!keys && !stats && name != "o" && name != "dq") continue;
    const int64_t total = stats ? o.shape[1] : o.shape[0];
    const int64_t from = owned(keys ? in.tensors.cu_seqlens_kv : in.tensors.cu_seqlens_q, total);
    const int64_t rows = stats ? o.shape[0] : 1, width = stats ? 4 : o.bytes() / std::max<int64_t>(total, 1);
    for (int64_t h = 0; h < rows; ++h)
      std::memset(o.memory.data() + (h * total + from) * width, 0,
                  static_cast<size_t>((total - from) * width));
  }
}

Status check_paths(const AttendArguments& a) {
  for (const std::string& path : {a.output, a.report})
    if (Status s = path.empty() ? Status() : can_write(path); !s) return s;
  const auto same = [](const std::string& x, const std::string& y) {
    namespace fs = std::filesystem;
    std::error_code unknown;
    return !x.empty() && !y.empty() &&
           (fs::equivalent(x, y, unknown) ||
            fs::weakly_canonical(x, unknown) == fs::weakly_canonical(y, unknown));
  };
  struct Pair {
    const char *option, *other;
    const std::string &path, &taken;
  };
  for (const Pair& p : {Pair{"--output", "the input", a.output, a.input},
                        {"--report", "the input", a.report, a.input},
                        {"--report", "--output", a.report, a.output}})
    if (same(p.path, p.taken))
      return wrong(std::string(p.option) + " was given '" + p.path + "', which is " + p.other +
                   " too; accepted is a file of its own.");
  return {};
}

void touch(const AttendInput& in) {
  volatile std::byte sum{};
  for (const FileTensor& t : in.file.tensors())
    for (int64_t at = 0; at < t.bytes; at += 4096) sum = sum ^ t.data[at];
}

std::map<std::string, std::string> metadata_of(const AttendInput& in, const std::vector<Plan>& plans) {
  std::map<std::string, std::string> m{{"tilewise", tilewise_version()}, {"input", in.reading}};
  m["kernel"] = plans[0].kernel;
  if (plans.size() > 1) m["kernel_backward"] = plans[1].kernel;
  return m;
}

Json to_json(const Verification& v) {
  Json outputs = Json::array();
  for (const VerifiedOutput& o : v.outputs)
    outputs.push_back(object({{"tensor", o.name},
                              {"max_error", o.max_error},
                              {"max_value", o.max_value},
                              {"share_of_allowance", o.share},
                              {"worst", o.worst}}));
  return object(
      {{"rows", v.rows}, {"passed", v.passed()}, {"outputs", outputs}, {"not_checked", v.left_out}});
}

}  // namespace

int run_attend(const AttendArguments& arguments) {
  // Options that need no file first, so that a typing error costs nothing.
  if (!arguments.verify.empty() && arguments.verify != "yes" && arguments.verify != "all")
    return fail(kCommand, kBadInput,
                "--verify was given '" + arguments.verify + "'; accepted is nothing or all.");
  if (!arguments.report_sweep.empty() && arguments.report.empty())
    return fail(kCommand, kBadInput,
                "--report-sweep was given without --report; accepted is --report FILE.html beside it.");
  if (Status s = check_paths(arguments); !s) return fail(kCommand, s);
  auto device =
      Device::choose({arguments.device, arguments.kernel, arguments.threads, arguments.max_workspace});
  if (!device) return fail(kCommand, device.status());

  auto input = AttendInput::read(arguments);
  if (!input) return fail(kCommand, input.status());
  AttendInput& in = *input;
  std::FILE* const talk = arguments.json ? stderr : stdout;
  std::fprintf(talk, "%s\n", in.reading.c_str());
  std::fflush(talk);
  for (const std::string& w : in.warnings) std::fprintf(stderr, "warning: %s\n", w.c_str());

  // Plan, and predict memory, before anything is allocated.
  std::vector<Output> outputs = outputs_of(in, arguments.grad);
  Tensors tensors = in.tensors;
  place_untouched(in, outputs, &tensors);
  std::vector<Plan> plans;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    if (direction == Direction::backward && !arguments.grad) break;
    Problem options = in.options;
    options.direction = static_cast<int32_t>(direction);
    const auto problem = problem_from(options, tensors);
    if (!problem) return fail(kCommand, problem.status());
    auto plan = device->plan(*problem);
    if (!plan) return fail(kCommand, plan.status());
    plans.push_back(*plan);
  }
  const Problem& p = plans[0].problem;
  MemoryNeed need;
  need.inputs = in.file_bytes() + in.conversion_bytes();
  for (const Output& o : outputs) need.outputs += o.bytes();
  for (const Plan& plan : plans) need.workspace = std::max(need.workspace, plan.workspace_bytes);
  if (!arguments.verify.empty()) {
    const int64_t rows = p.packed_q ? p.total_q : p.batch * p.seqlen_q;
    const bool all = arguments.verify == "all" || p.seqlen_q <= 2048;
    need.verification = static_cast<int64_t>(verification_bytes(all ? rows : 256, p.seqlen_kv, p.heads_q,
                                                                p.head_dim, p.head_dim_v, device->threads()));
  }
  const int64_t available = available_memory();
  if (need.total() > available)
    return fail(kCommand, kCannotRun,
                "needs " + bytes_text(static_cast<double>(need.total())) + ", " +
                    bytes_text(static_cast<double>(available)) + " free: " + need.to_string() + ".");
  const int64_t on_device = need.inputs + need.outputs + need.workspace;
  if (device->is_cuda() && on_device > device->info().memory_bytes)
    return fail(kCommand, kCannotRun,
                "needs " + bytes_text(static_cast<double>(on_device)) + " on " + device->name() + ", " +
                    bytes_text(static_cast<double>(device->info().memory_bytes)) + " free there.");

  // Allocate, run.
  if (Status s = in.convert(); !s) return fail(kCommand, s);
  tensors = in.tensors;
  if (Status s = place(in, outputs, &tensors); !s) return fail(kCommand, s);
  touch(in);
  ForwardParams params;
  if (Status s = bind_forward(p, Place(), tensors, &params); !s) return fail(kCommand, s);
  if (Status s = check_values(p, params, true); !s) return fail(kCommand, s);  // a device would clamp them

  Json result = object(
      {{"schema", 1}, {"tilewise", tilewise_version()}, {"file", arguments.input}, {"input", in.reading}});
  result["warnings"] = in.warnings;
  result["device"] = device->text();
  result["problem"] = describe(p);
  const double pairs = visible_pairs(params);
  result["visible_pairs"] = pairs;
  result["memory"] = need.to_json(available);
  std::vector<MeasuredCall> calls;
  for (const Plan& plan : plans) {
    calls.push_back(MeasuredCall::of_plan(*device, plan, tensors));
    if (Status s = calls.back().start(); !s) return fail(kCommand, s);
  }

  // Held against fp64 before anything else is run.
  int status = kDone;
  const bool all_rows = arguments.verify == "all";
  BackwardParams back;
  if (arguments.grad)
    if (Status s = bind_backward(plans[1].problem, Place(), tensors, &back); !s) return fail(kCommand, s);
  std::vector<Expected64> expected;
  std::vector<Json> verified;
  if (!arguments.verify.empty()) {
    expected.push_back(Expected64::forward(params, plans[0].tile_m, all_rows, device->threads()));
    if (arguments.grad)
      expected.push_back(
          Expected64::backward(back, plans[1].tile_m, plans[1].tile_n, all_rows, device->threads()));
    bool passed = true;
    for (size_t i = 0; i < expected.size(); ++i) {
      const Verification v = i == 0 ? expected[0].check(params) : expected[1].check(back);
      passed = passed && v.passed();
      verified.push_back(to_json(v));
    }
    result["verified"] = passed;
    if (!passed) status = kWrong;
  }
  if (!arguments.output.empty()) {
    clear_unowned(in, outputs);
    std::vector<FileTensor> written;
    for (const Output& o : outputs) {
      FileTensor t;
      t.name = o.name;
      t.type = &file_type(o.dtype);
      t.shape = o.shape;
      t.data = o.memory.data();
      t.bytes = o.bytes();
      written.push_back(std::move(t));
    }
    if (Status s = write_safetensors(arguments.output, std::move(written), metadata_of(in, plans)); !s)
      return fail(kCommand, s);
    result["output"] = arguments.output;
  }

  // The same call in other ways, now that the outputs are safe; into the same memory. Then all are timed in
  // turns.
  int64_t peak = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    Json beside = Json::object();
    auto others = alternatives(*device, plans[i], tensors, params);
    std::vector<MeasuredCall*> timed{&calls[i]};
    for (Alternative& other : others) {
      beside[other.key] = object({{"label", other.label}});
      if (!other.call) continue;
      for (Output& o : outputs)
        if (written_by(o.name, i)) std::memset(o.memory.data(), 0xff, static_cast<size_t>(o.bytes()));
      if (Status s = other.call->start(); !s) {
        other.call.reset();
        other.not_run = s.message();
        continue;
      }
      timed.push_back(&*other.call);
      if (!expected.empty())
        beside[other.key]["verify"] = to_json(i == 0 ? expected[0].check(params) : expected[1].check(back));
    }
    if (Status s = time_in_turns(timed, 0.5 + 0.4 * static_cast<double>(timed.size())); !s)
      return fail(kCommand, s);
    Json& run = result[kDirections[i]] = calls[i].result(pairs);
    peak = std::max(peak, run["process_peak_bytes_measured"].get<int64_t>());
    if (!verified.empty()) run["verify"] = verified[i];
    for (const Alternative& other : others) {
      Json& j = beside[other.key];
      if (other.call)
        j.update(other.call->result(pairs));
      else
        j["not_run"] = other.not_run, j["needs_bytes"] = other.needs_bytes;
    }
    run["beside"] = std::move(beside);
  }
  result["process_peak_bytes_measured"] = peak;

  if (!arguments.report.empty()) {
    result["command"] = "attend";
    const ReportInput report{result, in, tensors, params, plans[0], *device, arguments.report_sweep};
    if (Status s = write_report(arguments.report, report); !s) return fail(kCommand, s);
    result["report"] = arguments.report;
  }
  if (arguments.json)
    std::printf("%s\n", result.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  else
    print_result(result);
  return status;
}

}  // namespace tilewise::cli

#include "cli/verify.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "api/context.h"
#include "cli/device.h"
#include "cli/json.h"
#include "cli/text.h"
#include "core/dropout.h"
#include "cuda/mirror.h"
#include "cuda/runtime.h"
#include "reference/case_data.h"
#include "tilewise/attention.h"
#include "tune/measure.h"

namespace tilewise::cli {
namespace {

// What a kernel did so far, and its worst case.
struct Record {
  Direction direction = Direction::forward;
  int64_t ran = 0, refused = 0, failed = 0;
  double share = -1;
  std::string text, line;  // of the worst
  DType dtype = DType::f32;
  uint64_t seed = 0;
};

const char* word_of(Direction direction) { return direction == Direction::backward ? "backward" : "forward"; }

class Verifier {
 public:
  Verifier(const VerifyOptions& options, const Context& context, std::vector<Direction> directions)
      : options_(options), context_(context), directions_(std::move(directions)) {}

  Status run() {
    if (!options_.line.empty()) {
      ++problems_;
      return run_line(options_.line, options_.seed);
    }
    const double start = tune::wall_seconds();
    const int64_t count = options_.count >= 0 ? options_.count : (options_.seconds >= 0 ? INT64_MAX : 200);
    for (int64_t i = 0; i < count; ++i) {
      if (options_.seconds >= 0 && tune::wall_seconds() - start >= options_.seconds) break;
      const uint64_t seed = options_.seed + static_cast<uint64_t>(i);
      progress(i, count);
      if (Status status = run_line(random_case(mix64(seed), options_.scale), seed); !status) return status;
      ++problems_;
    }
    if (isatty(STDERR_FILENO)) std::fputs("\r\033[K", stderr);
    return {};
  }

  int report() const {
    auto order = std::vector<std::pair<std::string, Record>>(records_.begin(), records_.end());
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.second.share > b.second.share; });
    const bool wrong =
        std::any_of(order.begin(), order.end(), [](const auto& r) { return r.second.failed > 0; });
    if (options_.json)
      print_json(order);
    else
      print_table(order);
    return wrong ? kWrong : kDone;
  }
  int64_t ran() const {
    int64_t total = 0;
    for (const auto& [name, record] : records_) total += record.ran;
    return total;
  }

 private:
  void progress(int64_t i, int64_t count) const {
    if (!isatty(STDERR_FILENO)) return;
    const std::string of = count == INT64_MAX ? std::string() : "/" + std::to_string(count);
    std::fprintf(stderr, "\r\033[K[%lld%s] random problems", static_cast<long long>(i + 1), of.c_str());
    std::fflush(stderr);
  }

  Status run_line(const std::string& line, uint64_t seed) {
    const auto parsed = parse_case(line);
    if (!parsed) return parsed.status();
    for (DType dtype : parsed->dtypes) {
      CaseData data(*parsed, dtype, seed);
      const Expectation forward = expect_forward(data.params(Direction::forward));
      for (Direction direction : directions_) {
        if (direction == Direction::forward && !parsed->forward) continue;
        if (direction == Direction::backward && !parsed->backward) continue;
        if (direction == Direction::backward) data.set_forward_result(forward);
        if (Status status = run_kernels(data, direction, forward); !status) return status;
      }
    }
    return {};
  }

  Status run_kernels(CaseData& data, Direction direction, const Expectation& forward) {
    const Problem problem = data.problem(direction);
    const Choice choice = choose(context_.get()->request(problem, nullptr));
    Expectation backward;
    if (direction == Direction::backward && !problem.accumulate)
      backward = expect_backward(data.params(direction));
    for (const tilewise::Candidate& candidate : choice.candidates) {
      const std::string name = candidate.kernel->name;
      if (!wanted(candidate) || is_cuda(candidate.kernel->target) != on_cuda()) continue;
      Record& record = records_[name];
      record.direction = direction;
      if (!candidate.refusal.empty() && candidate.kernel->target != Target::reference) {
        ++record.refused;
        continue;
      }
      data.poison_outputs(direction, record.ran % 2 ? Poison::large : Poison::nan);
      // With `accumulate` the expectation reads what the gradients hold.
      if (direction == Direction::backward && problem.accumulate)
        backward = expect_backward(data.params(direction));
      const Expectation& expected = direction == Direction::backward ? backward : forward;
      note(&record, data, run_one(data, direction, expected, name.c_str()));
    }
    return choice.candidates.empty() ? choice.status : Status();
  }

  bool on_cuda() const { return context_.get()->device.kind == TILEWISE_CUDA; }

  // The case's memory and `workspace` on the device; what the call wrote comes back.
  Status run_on_cuda(CaseData& data, const Plan& made, Direction direction,
                     const tilewise_workspace& workspace) const {
    cuda::Mirror mirror(made.device_index);
    data.for_each_tensor([&](const char*, CaseTensor& t) { mirror.add(t.memory(), t.memory_bytes()); });
    const Tensor host(workspace.data, DType::boolean, {workspace.bytes});
    mirror.add(host);
    if (Status s = mirror.upload(); !s) return s;
    const Tensors twins = mirror.twins(data.tensors(direction));
    const tilewise_workspace block{mirror.twin(host).data, workspace.bytes};
    Status status = direction == Direction::backward ? backward(context_, made, twins, block)
                                                     : forward(context_, made, twins, block);
    if (status.ok()) status = cuda::synchronize(made.device_index);
    data.for_each_tensor([&](const char*, CaseTensor& t) {
      if (status.ok()) status = mirror.download(t.memory(), t.memory_bytes());
    });
    return status.ok() ? mirror.download(host) : status;
  }

  bool wanted(const tilewise::Candidate& candidate) const {
    if (!options_.kernels.empty())
      return std::find(options_.kernels.begin(), options_.kernels.end(), candidate.kernel->name) !=
             options_.kernels.end();
    return (candidate.kernel->target == Target::reference) == (options_.device == "reference");
  }

  struct Outcome {
    double share = INFINITY;
    std::string text;
  };

  Outcome run_one(CaseData& data, Direction direction, const Expectation& expected, const char* name) const {
    Limits limits;
    limits.kernel = name;
    const auto made = plan(data.problem(direction), context_, limits);
    if (!made) return {INFINITY, "planned, then refused: " + made.status().message()};
    if (std::strcmp(made->kernel, name) != 0)
      return {INFINITY, std::string("another kernel ran: ") + made->kernel};
    if (Status status = prepare(context_, *made); !status) return {INFINITY, status.message()};
    Workspace workspace(made->workspace_bytes);
    const tilewise_workspace memory = workspace;
    auto* bytes = static_cast<unsigned char*>(memory.data);
    std::memset(bytes + TILEWISE_CONTROL_BYTES, 0xff,
                static_cast<size_t>(memory.bytes - TILEWISE_CONTROL_BYTES));
    const Tensors tensors = data.tensors(direction);
    const Status status = on_cuda()                          ? run_on_cuda(data, *made, direction, memory)
                          : direction == Direction::backward ? backward(context_, *made, tensors, memory)
                                                             : forward(context_, *made, tensors, memory);
    if (!status) return {INFINITY, status.message()};
    if (std::any_of(bytes, bytes + TILEWISE_CONTROL_BYTES, [](unsigned char byte) { return byte != 0; }))
      return {INFINITY, "the control block was not left zero"};
    if (const std::string damage = data.damage(direction, expected); !damage.empty())
      return {INFINITY, damage};
    const Comparison worst = compare_outputs(data, direction, expected);
    return {worst.share, worst.text};
  }

  static void note(Record* record, const CaseData& data, const Outcome& outcome) {
    ++record->ran;
    if (!(outcome.share <= 1)) ++record->failed;
    if (outcome.share <= record->share) return;
    record->share = outcome.share;
    record->text = outcome.text;
    record->line = data.source.text;
    record->dtype = data.dtype;
    record->seed = data.seed;
  }

  std::string repeat(const std::string& kernel, const Record& record) const {
    return printed("tilewise verify --kernel %s --seed %llu --case '%s'", kernel.c_str(),
                   static_cast<unsigned long long>(record.seed), record.line.c_str());
  }

  void print_table(const std::vector<std::pair<std::string, Record>>& order) const {
    std::printf("%lld problems from seed %llu, every kernel that does not refuse, against fp64.\n",
                static_cast<long long>(problems_), static_cast<unsigned long long>(options_.seed));
    std::printf("%9s  %-36s %8s %8s %8s  %s\n", "allowance", "kernel", "ran", "refused", "failed", "worst");
    for (const auto& [name, record] : order) {
      const std::string share = record.share < 0 ? "-" : printed("%.1f %%", 100 * record.share);
      std::printf("%9s  %-36s %8lld %8lld %8lld  %s\n", share.c_str(), name.c_str(),
                  static_cast<long long>(record.ran), static_cast<long long>(record.refused),
                  static_cast<long long>(record.failed), record.text.c_str());
    }
    bool first = true;
    for (const auto& [name, record] : order) {
      if (record.ran == 0 || (!first && record.failed == 0)) continue;
      std::printf("%s: %s\n", record.failed ? "failed; repeat with" : "worst; repeat with",
                  repeat(name, record).c_str());
      first = false;
    }
  }

  void print_json(const std::vector<std::pair<std::string, Record>>& order) const {
    for (const auto& [name, record] : order) {
      Json j;
      j["schema"] = 1;
      j["device"] = options_.device == "reference" ? "reference" : on_cuda() ? "cuda" : "cpu";
      j["kernel"] = name;
      j["direction"] = word_of(record.direction);
      j["problems"] = problems_;
      j["ran"] = record.ran;
      j["refused"] = record.refused;
      j["failed"] = record.failed;
      const bool finite = record.share >= 0 && std::isfinite(record.share);
      j["allowance_used"] = finite ? Json(record.share) : Json(nullptr);
      j["worst"] = record.text;
      j["dtype"] = name_of(record.dtype);
      j["seed"] = record.seed;
      j["case"] = record.line;
      j["repeat"] = record.ran ? repeat(name, record) : "";
      std::puts(j.dump().c_str());
    }
  }

  const VerifyOptions& options_;
  const Context& context_;
  std::vector<Direction> directions_;
  std::map<std::string, Record> records_;
  int64_t problems_ = 0;
};

Expected<std::vector<Direction>> parse_directions(const VerifyOptions& options) {
  std::vector<Direction> directions;
  for (const std::string& word : options.directions) {
    if (word == "forward")
      directions.push_back(Direction::forward);
    else if (word == "backward")
      directions.push_back(Direction::backward);
    else if (word == "decode")
      return Status(Code::unsupported,
                    "--direction decode is no set of its own: its problems are among forward's");
    else
      return Status(Code::invalid, "--direction is \"" + word + "\"; accepted: forward, backward, decode");
  }
  return directions;
}

Status check(const VerifyOptions& options, const Context& context) {
  if (options.count < -1)
    return Status(Code::invalid, "--count is " + std::to_string(options.count) + "; accepted: 0 or more");
  if (options.scale < 1 || options.scale > 64)
    return Status(Code::invalid, "--scale is " + std::to_string(options.scale) + "; accepted: 1 to 64");
  std::vector<std::string> known;
  for (const Kernel* row : context.get()->registry.rows()) known.push_back(row->name);
  for (const std::string& name : options.kernels) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string close = nearest(name, known);
    return Status(Code::invalid,
                  "--kernel is \"" + name + "\", which is not in the table" +
                      (close.empty() ? "; `tilewise info` lists it" : "; did you mean " + close + "?"));
  }
  return {};
}

}  // namespace

int run_verify(const VerifyOptions& options) {
  const auto directions = parse_directions(options);
  if (!directions) return fail("verify", directions.status());
  if (options.threads < 0 || options.threads > 4096)
    return fail("verify", kBadInput,
                printed("--threads is %lld; accepted: 0 to 4096", static_cast<long long>(options.threads)));
  ContextOptions context_options;
  context_options.threads = static_cast<int32_t>(options.threads);
  const auto name = parse_device(options.device);
  if (!name) return fail("verify", name.status());
  context_options.device_kind = name->kind;
  context_options.device_index = name->index;
  const auto context = Context::create(context_options);
  if (!context) return fail("verify", context.status());
  if (Status status = check(options, *context); !status) return fail("verify", status);
  Verifier verifier(options, *context, *directions);
  if (Status status = verifier.run(); !status) return fail("verify", status);
  const int status = verifier.report();
  if (!options.kernels.empty() && options.count != 0 && verifier.ran() == 0)
    return fail("verify", kCannotRun, "the kernels named refused every problem");
  return status;
}

}  // namespace tilewise::cli

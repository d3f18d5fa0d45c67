#include "cli/bench_grid.h"

#include <algorithm>
#include <utility>

#include "cli/memory.h"
#include "cli/text.h"

namespace tilewise::cli {
namespace {

Status wrong(const std::string& option, const std::string& given, const std::string& accepted) {
  return Status(Code::invalid, option + " is " + given + "; accepted: " + accepted);
}

Status check_range(const char* option, const std::vector<int64_t>& values, int64_t low, int64_t high) {
  for (int64_t value : values) {
    if (value < low || value > high)
      return wrong(option, std::to_string(value), std::to_string(low) + " to " + std::to_string(high));
  }
  return {};
}

// Decode is a forward of few queries over a long cache, held against the memory's bandwidth; a step is what
// training does with a layer: forward, then backward.
struct Way {
  Direction direction = Direction::forward;
  bool decode = false, step = false;
};

Expected<Way> parse_direction(const std::string& text) {
  if (text == "forward") return Way{};
  if (text == "backward") return Way{Direction::backward};
  if (text == "decode") return Way{Direction::forward, true};
  if (text == "step") return Way{Direction::backward, false, true};
  return wrong("--direction", "\"" + text + "\"", "forward, backward, step, decode");
}

Expected<DType> parse_bench_dtype(const std::string& text) {
  for (const char* eight_bits : {"f8e4m3", "fp8", "float8_e4m3", "float8_e4m3fn", "e4m3"})
    if (text == eight_bits) return Status(Code::unsupported, "--dtype " + text + " is not in this version");
  return parse_dtype("--dtype", text);
}

struct Causal {
  bool on = false;
  Position position = Position::bottom_right;
};

Expected<Causal> parse_causal(const std::string& text) {
  if (text == "true" || text == "1" || text == "yes" || text == "bottom-right") return Causal{true};
  if (text == "top-left") return Causal{true, Position::top_left};
  if (text == "false" || text == "0" || text == "no") return Causal{};
  return wrong("--causal", "\"" + text + "\"", "nothing, true, false, bottom-right, top-left");
}

// Calls body(value) for each value until one fails.
template <typename T, typename Body>
Status for_each(const std::vector<T>& values, Body&& body) {
  for (const T& value : values)
    if (Status status = body(value); !status) return status;
  return {};
}

template <typename T, typename Parse>
Expected<std::vector<T>> parse_all(const std::vector<std::string>& texts, Parse&& parse) {
  std::vector<T> values;
  for (const std::string& text : texts) {
    auto value = parse(text);
    if (!value) return value.status();
    values.push_back(*value);
  }
  return values;
}

// What follows from another axis where it was not given.
std::vector<int64_t> or_same(const std::vector<int64_t>& given, int64_t same) {
  return given.empty() ? std::vector<int64_t>{same} : given;
}

Status check_options(const BenchOptions& o) {
  constexpr int64_t kMany = int64_t{1} << 31;
  for (const auto& [option, values] : {std::pair("--batch", &o.batch), std::pair("--seqlen", &o.seqlen),
                                       std::pair("--seqlen-kv", &o.seqlen_kv)})
    if (Status status = check_range(option, *values, 1, kMany); !status) return status;
  for (const auto& [option, values] :
       {std::pair("--heads", &o.heads), std::pair("--heads-kv", &o.heads_kv),
        std::pair("--head-dim", &o.head_dim), std::pair("--head-dim-v", &o.head_dim_v)})
    if (Status status = check_range(option, *values, 1, 65536); !status) return status;
  if (Status status = check_range("--threads", o.threads, 0, 4096); !status) return status;
  if (Status status = check_range("--page-size", o.page_size, 0, kMany); !status) return status;
  if (Status status = check_range("--window", o.window, -1, kMany); !status) return status;
  if (o.window.size() % 2 != 0)
    return wrong("--window", std::to_string(o.window.size()) + " numbers",
                 "pairs: LEFT,RIGHT[,LEFT,RIGHT...]");
  if (o.json && o.csv) return wrong("--csv", "given beside --json", "one of them");
  if (o.warmup < -1) return wrong("--warmup", std::to_string(o.warmup), "0 or more");
  if (o.repeats < 1 && o.repeats != -1) return wrong("--repeats", std::to_string(o.repeats), "1 or more");
  return {};
}

}  // namespace

std::string BenchPoint::to_string() const {
  std::string text = std::string(way()) + " ";
  text += printed("%s %lldx%lldx%lldx%lld", name_of(size.dtype), static_cast<long long>(size.batch),
                  static_cast<long long>(size.seqlen_q), static_cast<long long>(size.heads_q),
                  static_cast<long long>(size.head_dim));
  if (size.causal) text += " causal";
  return text;
}

Expected<std::vector<BenchPoint>> make_grid(const BenchOptions& o) {
  if (Status status = check_options(o); !status) return status;
  const auto directions = parse_all<Way>(o.directions, parse_direction);
  if (!directions) return directions.status();
  const auto dtypes = parse_all<DType>(o.dtypes, parse_bench_dtype);
  if (!dtypes) return dtypes.status();
  const auto cache_dtypes = parse_all<DType>(o.cache_dtypes, parse_cache_dtype);
  if (!cache_dtypes) return cache_dtypes.status();
  const auto causal = parse_all<Causal>(o.causal, parse_causal);
  if (!causal) return causal.status();
  std::vector<std::pair<int64_t, int64_t>> windows;
  for (size_t i = 0; i < o.window.size(); i += 2) windows.emplace_back(o.window[i], o.window[i + 1]);
  if (windows.empty()) windows.emplace_back(-1, -1);

  std::vector<BenchPoint> grid;
  BenchPoint point;
  tune::ProblemSize& s = point.size;
  const auto lengths = [&](const std::string& kernel) {
    point.kernel = kernel;
    for (int64_t q : or_same(o.seqlen, point.decode ? 1 : 1024)) {
      for (int64_t kv : or_same(o.seqlen_kv, point.decode ? 4096 : q)) {
        for (int64_t page_size : o.page_size) {
          for (DType cache_dtype : *cache_dtypes) {
            s.seqlen_q = q, s.seqlen_kv = kv, s.page_size = page_size, s.cache_dtype = cache_dtype;
            grid.push_back(point);
          }
        }
      }
    }
  };
  const auto masks = [&] {
    for (const Causal& c : *causal) {
      for (const auto& [left, right] : windows) {
        for (int64_t threads : o.threads) {
          s.causal = c.on, s.position = c.position, s.window_left = left, s.window_right = right;
          point.threads = static_cast<int>(threads);
          for (const std::string& kernel : o.kernels) lengths(kernel);
        }
      }
    }
  };
  const auto shapes = [&]() -> Status {
    return for_each(o.heads, [&](int64_t heads) {
      return for_each(or_same(o.heads_kv, heads), [&](int64_t heads_kv) {
        if (heads % heads_kv != 0)
          return wrong("--heads-kv", std::to_string(heads_kv),
                       "a divisor of --heads, " + std::to_string(heads));
        return for_each(o.head_dim, [&](int64_t dim) {
          return for_each(or_same(o.head_dim_v, dim), [&](int64_t dim_v) {
            s.heads_q = heads, s.heads_kv = heads_kv, s.head_dim = dim, s.head_dim_v = dim_v;
            masks();
            return Status();
          });
        });
      });
    });
  };
  for (const Way& way : *directions) {
    const char* given = way.step ? "given with --direction step" : "given with --direction backward";
    if (way.direction == Direction::backward && o.page_size != std::vector<int64_t>{0})
      return wrong("--page-size", given, "forward or decode: caches take no gradient");
    if (way.direction == Direction::backward && o.cache_dtypes != std::vector<std::string>{"same"})
      return wrong("--cache-dtype", given, "forward or decode: caches take no gradient");
    if (way.step && o.kernels != std::vector<std::string>{"auto"})
      return wrong("--kernel", given, "auto: a step runs a row of the forward and one of the backward");
    for (DType dtype : *dtypes) {
      for (int64_t batch : o.batch) {
        s.direction = way.direction, s.dtype = dtype, s.batch = batch;
        point.decode = way.decode, point.step = way.step;
        if (Status status = shapes(); !status) return status;
      }
    }
  }
  return grid;
}

Expected<int64_t> memory_for(const BenchPoint& point, const DeviceInfo& device) {
  const int64_t need = tune::ProblemData::bytes_of(tune::make_problem(point.size));
  const int64_t free =
      device.kind == TILEWISE_CUDA ? std::min(available_memory(), device.memory_bytes) : available_memory();
  if (need <= free) return free;
  return Status(Code::out_of_memory, point.to_string() + " needs " + bytes_text(static_cast<double>(need)) +
                                         " for its tensors, " + bytes_text(static_cast<double>(free)) +
                                         " free");
}

}  // namespace tilewise::cli

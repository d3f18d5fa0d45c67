#include "cli/bench_report.h"

#include <cstdlib>

#include "cli/json.h"
#include "cli/text.h"

namespace tilewise::cli {
namespace {

double rounded(double value) { return std::strtod(printed("%.6g", value).c_str(), nullptr); }

// The contract's keys in the contract's order; what schema 1 gained since stands behind them.
Json fields(const BenchRow& row) {
  const tune::ProblemSize& s = row.point.size;
  const bool ran = row.timing.repeats > 0;
  const auto figure = [&](double value) { return ran ? Json(rounded(value)) : Json(nullptr); };
  Json j;
  j["schema"] = 1;
  j["device"] = row.device;
  j["kernel"] = row.kernel.empty() ? Json(nullptr) : Json(row.kernel);
  j["direction"] = row.point.way();
  j["dtype"] = name_of(s.dtype);
  j["batch"] = s.batch;
  j["heads_q"] = s.heads_q;
  j["heads_kv"] = s.heads_kv;
  j["head_dim"] = s.head_dim;
  j["seqlen_q"] = s.seqlen_q;
  j["seqlen_kv"] = s.seqlen_kv;
  j["causal"] = s.causal;
  j["ms_min"] = figure(row.timing.min_ms);
  j["ms_median"] = figure(row.timing.median_ms);
  j["ms_max"] = figure(row.timing.max_ms);
  j["tflops"] = figure(row.tflops());
  j["peak_tflops"] =
      row.peak_flops > 0 || row.peak_bytes == 0 ? figure(row.peak_flops * 1e-12) : Json(nullptr);
  j["percent_of_peak"] = figure(row.percent_of_peak());
  j["gbps"] = figure(row.gbps());
  j["workspace_bytes"] = ran ? Json(row.workspace_bytes) : Json(nullptr);
  j["bytes_ideal"] = row.bytes_ideal;
  j["rival"] = row.rival.empty() ? Json(nullptr) : Json(row.rival);
  j["head_dim_v"] = s.head_dim_v;
  j["window_left"] = s.window_left;
  j["window_right"] = s.window_right;
  j["threads"] = row.threads;
  j["repeats"] = row.timing.repeats;
  j["cpu_ms_median"] = figure(row.timing.cpu_median_ms);
  j["percent_of_peak_cpu"] = figure(row.percent_of_peak_cpu());
  j["times_ours"] = row.rival.empty() ? Json(nullptr) : figure(row.times_ours);
  j["peak_gbps"] = row.peak_bytes > 0 ? figure(row.peak_bytes * 1e-9) : Json(nullptr);
  j["page_size"] = s.page_size;
  j["cache_dtype"] = name_of(s.cache_dtype == DType::none ? s.dtype : s.cache_dtype);
  j["not_run"] = row.not_run.empty() ? Json(nullptr) : Json(row.not_run);
  return j;
}

std::string mask_text(const tune::ProblemSize& s) {
  std::string text = s.causal ? (s.position == Position::top_left ? "top-left" : "causal") : "full";
  if (s.window_left >= 0 || s.window_right >= 0)
    text = printed("%s%lld,%lld", s.causal ? "c " : "w ", static_cast<long long>(s.window_left),
                   static_cast<long long>(s.window_right));
  if (s.page_size > 0) text += printed(" p%lld", static_cast<long long>(s.page_size));
  return text;
}

// A step names two kernels.
int kernel_width(bool steps) { return steps ? 70 : 30; }
constexpr int kRivalWidth = 18;

}  // namespace

std::string json_line(const BenchRow& row) { return fields(row).dump(); }

std::string csv_header() {
  std::string line;
  const Json row = fields(BenchRow());
  for (const auto& [key, value] : row.items()) line += (line.empty() ? "" : ",") + key;
  return line;
}

std::string csv_line(const BenchRow& row) {
  std::string line;
  bool first = true;
  const Json values = fields(row);
  for (const auto& [key, value] : values.items()) {
    if (!first) line += ",";
    first = false;
    if (!value.is_null()) line += value.dump();
  }
  return line;
}

std::string table_header(const std::vector<std::string>& rivals, const char* rate, bool steps) {
  std::string line = printed("%-8s %-5s %4s %6s %7s %7s %7s %-9s %3s  %-*s %10s %7s %8s %6s %9s", "way",
                             "dtype", "B", "heads", "dim", "q", "kv", "mask", "thr", kernel_width(steps),
                             "kernel", "ms median", "min", rate, "% peak", "scratch");
  for (const std::string& rival : rivals) line += printed("  %*s", kRivalWidth, rival.c_str());
  return line;
}

std::string table_line(const BenchRow& ours, const std::vector<BenchRow>& rivals, bool steps) {
  const tune::ProblemSize& s = ours.point.size;
  const auto pair = [](int64_t a, int64_t b) {
    return a == b ? std::to_string(a) : std::to_string(a) + "/" + std::to_string(b);
  };
  std::string line = printed("%-8s %-5s %4lld %6s %7s %7lld %7lld %-9s %3d  %-*s ", ours.point.way(),
                             name_of(s.dtype), static_cast<long long>(s.batch),
                             pair(s.heads_q, s.heads_kv).c_str(), pair(s.head_dim, s.head_dim_v).c_str(),
                             static_cast<long long>(s.seqlen_q), static_cast<long long>(s.seqlen_kv),
                             mask_text(s).c_str(), ours.threads, kernel_width(steps), ours.kernel.c_str());
  line += printed("%10.4g %7.4g %8.1f %6.1f %9s", ours.timing.median_ms, ours.timing.min_ms,
                  ours.point.decode ? ours.gbps() : 1e3 * ours.tflops(), ours.percent_of_peak(),
                  bytes_text(static_cast<double>(ours.workspace_bytes)).c_str());
  for (const BenchRow& rival : rivals) {
    const std::string cell = rival.timing.repeats > 0
                                 ? printed("%.2fx (%.4g ms)", rival.times_ours, rival.timing.median_ms)
                                 : std::string("not run");
    line += printed("  %*s", kRivalWidth, cell.c_str());
  }
  return line;
}

}  // namespace tilewise::cli

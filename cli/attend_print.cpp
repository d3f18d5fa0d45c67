#include "cli/attend_print.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cli/text.h"

namespace tilewise::cli {
namespace {

std::string bytes_of(const Json& j, const char* key) {
  return j.contains(key) && j[key].is_number() ? bytes_text(j[key].get<double>()) : "not measured";
}

std::string error_text(const Json& run, const char* key) {
  if (!run.contains("verify")) return "";
  std::string text;
  for (const Json& o : run["verify"]["outputs"])
    text += (text.empty() ? "" : ", ") + o["tensor"].get<std::string>() + " " +
            printed("%.2g", o[key].get<double>());
  return text;
}

struct Column {
  std::string head;
  const Json& run;
};

// First column left, the others right-aligned under their heads.
void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width;
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c) {
      if (width.size() <= c) width.push_back(0);
      width[c] = std::max(width[c], row[c].size());
    }
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(width[c] - row[c].size(), ' ');
      line += c == 0 ? row[c] + pad : "  " + pad + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::printf("%s\n", line.c_str());
  }
}

void print_direction(const char* name, const Json& run) {
  std::vector<Column> columns{{run["standard"].get<bool>() ? "standard (chosen)" : "fused", run}};
  for (const auto& [key, other] : run["beside"].items())
    columns.push_back({other["label"].get<std::string>(), other});
  std::printf("\n");
  std::vector<std::vector<std::string>> rows(1, {name});
  for (const Column& c : columns) rows[0].push_back(c.head);
  const auto row = [&](const char* label, auto&& cell) {
    std::vector<std::string> cells{label};
    bool any = false;
    for (const Column& c : columns) {
      cells.push_back(c.run.contains("ms_median") ? cell(c.run) : "-");
      any = any || (c.run.contains("ms_median") && !cells.back().empty());
    }
    if (any) rows.push_back(std::move(cells));
  };
  row("time, median", [](const Json& r) { return milliseconds_text(r["ms_median"].get<double>()); });
  row("  of runs", [](const Json& r) {
    return std::to_string(r["runs"].get<int>()) + (r["warm_up"].get<bool>() ? " + warm-up" : ", no warm-up");
  });
  row("FLOP/s", [](const Json& r) { return flops_text(r["tflops"].get<double>() * 1e12); });
  rows.push_back({"workspace"});
  for (const Column& c : columns)
    rows.back().push_back(c.run.contains("ms_median")              ? bytes_of(c.run, "workspace_bytes")
                          : c.run["needs_bytes"].get<double>() > 0 ? bytes_of(c.run, "needs_bytes")
                                                                   : "-");
  row("memory beside tensors, measured", [](const Json& r) { return bytes_of(r, "extra_bytes_measured"); });
  row("bytes moved, modelled", [](const Json& r) { return bytes_of(r, "bytes_moved_modelled"); });
  row("largest error against fp64", [](const Json& r) { return error_text(r, "max_error"); });
  row("share of the allowance", [](const Json& r) { return error_text(r, "share_of_allowance"); });
  print_table(rows);
  for (const Column& c : columns) {
    if (c.run.contains("ms_median"))
      std::printf("%s: kernel %s, tile %d x %d, %d threads%s\n", c.head.c_str(),
                  c.run["kernel"].get<std::string>().c_str(), c.run["tile_m"].get<int>(),
                  c.run["tile_n"].get<int>(), c.run["threads"].get<int>(),
                  &c == &columns[0] ? (", chosen by " + c.run["chosen_by"].get<std::string>()).c_str() : "");
    else
      std::printf("%s: not run: %s\n", c.head.c_str(), c.run["not_run"].get<std::string>().c_str());
  }
  if (!run.contains("verify")) return;
  const Json& v = run["verify"];
  std::printf("checked against fp64: %s: %s\n", v["rows"].get<std::string>().c_str(),
              v["passed"].get<bool>() ? "passed" : "FAILED");
  for (const Json& o : v["outputs"])
    if (o["share_of_allowance"].get<double>() > 1 || !v["passed"].get<bool>())
      std::printf("  worst: %s\n", o["worst"].get<std::string>().c_str());
  for (const Json& left : v["not_checked"])
    std::printf("  %s takes all rows and was not checked; --verify=all does\n",
                left.get<std::string>().c_str());
}

}  // namespace

std::string MemoryNeed::to_string() const {
  std::string text = "inputs " + bytes_text(static_cast<double>(inputs)) + ", outputs " +
                     bytes_text(static_cast<double>(outputs)) + ", workspace " +
                     bytes_text(static_cast<double>(workspace));
  if (verification) text += ", check against fp64 " + bytes_text(static_cast<double>(verification));
  return text;
}

Json MemoryNeed::to_json(int64_t available) const {
  return object({{"needed_bytes", total()},
                 {"inputs_bytes", inputs},
                 {"outputs_bytes", outputs},
                 {"workspace_bytes", workspace},
                 {"verification_bytes", verification},
                 {"available_bytes", available}});
}

void print_result(const Json& r) {
  std::printf("device  %s\n", r["device"].get<std::string>().c_str());
  std::printf("problem %s\n", r["problem"]["text"].get<std::string>().c_str());
  for (const char* name : {"forward", "backward"})
    if (r.contains(name)) print_direction(name, r[name]);
  std::printf("\npeak memory of the whole process while it ran, measured: %s\n",
              bytes_of(r, "process_peak_bytes_measured").c_str());
  for (const char* key : {"output", "report"})
    if (r.contains(key)) std::printf("wrote %s\n", r[key].get<std::string>().c_str());
}

}  // namespace tilewise::cli

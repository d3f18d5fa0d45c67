#include "cli/report.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <set>

#include "cli/report_page.h"
#include "cli/text.h"
#include "core/cost.h"
#include "core/mask.h"

namespace tilewise::cli {
namespace {

// Tokens of the file, one a row, or none where metadata has no list of the right length.
std::vector<std::string> tokens_of(const AttendInput& in, int64_t rows) {
  const auto found = in.file.metadata().find("tokens");
  if (found == in.file.metadata().end()) return {};
  const Json list = Json::parse(found->second, nullptr, false);
  if (!list.is_array() || static_cast<int64_t>(list.size()) != rows) return {};
  std::vector<std::string> tokens;
  for (const Json& t : list) tokens.push_back(t.is_string() ? t.get<std::string>() : "");
  return tokens;
}

// Whole words of some length, each once, spread over the sequence.
std::vector<int32_t> pick_rows(const std::vector<std::string>& tokens, size_t wanted) {
  std::vector<int32_t> words;
  std::set<std::string> seen;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& t = tokens[i];
    const bool word =
        t.size() >= 5 && std::all_of(t.begin(), t.end(), [](unsigned char c) { return std::isalpha(c); });
    const bool goes_on = i + 1 < tokens.size() && tokens[i + 1].rfind("##", 0) == 0;
    if (word && !goes_on && seen.insert(t).second) words.push_back(static_cast<int32_t>(i));
  }
  std::vector<int32_t> rows;
  for (size_t n = 0; n < std::min(wanted, words.size()); ++n)
    rows.push_back(words[n * words.size() / std::min(wanted, words.size())]);
  return rows;
}

// "</script>" and "<!--" inside a text must not end or open anything.
std::string escaped_for_script(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

// Attention rows of some words, where the file's metadata has "tokens": for looking.
Json chosen_words(const ReportInput& r) {
  const Problem& p = r.plan.problem;
  const int64_t rows_in_file = p.packed_q ? p.total_q : p.batch * p.seqlen_q;
  const std::vector<std::string> all = tokens_of(r.input, rows_in_file);
  if (all.empty() || r.params.batch == 0) return nullptr;
  constexpr int64_t kMostKeys = 1024;
  const int64_t b = longest_sequence(r.params);
  const Sequence s = sequence_of(r.params, b);
  // Keys carry the same words only where queries and keys are the same rows.
  if (s.rows_q != s.rows_kv || s.rows_q == 0 || s.rows_kv > kMostKeys) return nullptr;
  const size_t first = static_cast<size_t>(p.packed_q ? s.q_begin : b * p.seqlen_q);
  const std::vector<std::string> tokens(all.begin() + static_cast<int64_t>(first),
                                        all.begin() + static_cast<int64_t>(first) + s.rows_q);
  std::vector<int32_t> rows = pick_rows(tokens, 16);
  if (rows.empty()) return nullptr;

  const int64_t n = static_cast<int64_t>(rows.size());
  std::vector<float> weights(static_cast<size_t>(p.batch * p.heads_q * n * p.seqlen_kv));
  Problem options = r.input.options;
  const Tensor out(weights.data(), {p.batch, p.heads_q, n, p.seqlen_kv});
  if (!attention_weights(r.device.context(), options, r.tensors, Tensor(rows.data(), {n}), out))
    return nullptr;
  // Each row scaled to its largest weight, so that a byte shows it.
  std::vector<uint8_t> shades;
  Json largest = Json::array();
  for (int64_t h = 0; h < p.heads_q; ++h) {
    for (int64_t row = 0; row < n; ++row) {
      const float* w = &weights[static_cast<size_t>(((b * p.heads_q + h) * n + row) * p.seqlen_kv)];
      const float top = *std::max_element(w, w + s.rows_kv);
      largest.push_back(std::round(top * 1e4f) / 1e4);
      for (int64_t j = 0; j < s.rows_kv; ++j)
        shades.push_back(static_cast<uint8_t>(top > 0 ? std::lround(255.0f * std::sqrt(w[j] / top)) : 0));
    }
  }
  return object({{"sequence", b},
                 {"heads", p.heads_q},
                 {"keys", s.rows_kv},
                 {"rows", rows},
                 {"tokens", tokens},
                 {"largest", largest},
                 {"shades", base64(shades)}});
}

// Bytes that a row's run moved, by the models that planning uses; bench measures time alone.
void add_models(const Device& device, Json& row) {
  const auto number = [&](const char* key, int64_t otherwise) {
    return row.contains(key) && row[key].is_number_integer() ? row[key].get<int64_t>() : otherwise;
  };
  const auto text = [&](const char* key) {
    return row.contains(key) && row[key].is_string() ? row[key].get<std::string>() : std::string();
  };
  Problem p;
  const auto dtype = parse_dtype("dtype", text("dtype"));
  if (!dtype) return;
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = static_cast<int32_t>(*dtype);
  p.dtype_dout = p.dtype_dq = p.dtype_dk = p.dtype_dv = p.dtype_q;
  p.batch = number("batch", 1);
  p.heads_q = number("heads_q", 1);
  p.heads_kv = number("heads_kv", p.heads_q);
  p.head_dim = number("head_dim", 1);
  p.head_dim_v = number("head_dim_v", p.head_dim);
  p.seqlen_q = number("seqlen_q", 0);
  p.seqlen_kv = number("seqlen_kv", p.seqlen_q);
  p.causal = row.contains("causal") && row["causal"].is_boolean() && row["causal"].get<bool>();
  p.window_left = number("window_left", -1);
  p.window_right = number("window_right", -1);
  if (text("direction") == "backward") {
    p.direction = TILEWISE_BACKWARD;
    p.wants = TILEWISE_WANT_DQ | TILEWISE_WANT_DK | TILEWISE_WANT_DV;
  }
  const double standard =
      ideal_bytes(p) + 2 * score_matrix_bytes(p);  // each matrix written once and read once
  row["bytes_all_heads"] = standard;
  if (text("rival") == "three-step") row["bytes_modelled"] = standard;
  if (!text("rival").empty()) return;
  const std::string kernel = text("kernel");
  const auto plan = device.plan(p, kernel.c_str());
  if (plan) row["bytes_modelled"] = plan->predicted_bytes;
}

Expected<Json> read_sweep(const Device& device, const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return Status(Code::invalid, "--report-sweep " + path +
                                     " cannot be read; accepted is the output of tilewise bench --json.");
  Json rows = Json::array();
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Json row = Json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("seqlen_q"))
      return Status(Code::invalid, "--report-sweep " + path + ", line " + std::to_string(number) +
                                       " is no object of tilewise bench --json.");
    add_models(device, row);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

Status write_report(const std::string& path, const ReportInput& r) {
  Json data = object({{"result", r.result}, {"metadata", Json::object()}, {"tensors", Json::array()}});
  for (const auto& [key, value] : r.input.file.metadata())
    if (key != "tokens") data["metadata"][key] = value.substr(0, 400);
  for (const FileTensor& t : r.input.file.tensors())
    data["tensors"].push_back(object({{"name", t.name}, {"dtype", t.type->name}, {"shape", t.shape}}));
  const int64_t b = longest_sequence(r.params);
  data["walk"] = tile_walk(r.params, b, r.plan.tile_m, r.plan.tile_n, r.params.group());
  data["mask"] = mask_picture(r.params, b, 0);
  data["words"] = chosen_words(r);
  data["sweep"] = nullptr;
  if (!r.sweep.empty()) {
    auto sweep = read_sweep(r.device, r.sweep);
    if (!sweep) return sweep.status();
    data["sweep"] = std::move(*sweep);
  }
  std::string page = kReportPage;
  const std::string place = "/*DATA*/null";
  page.replace(page.find(place), place.size(),
               escaped_for_script(data.dump(-1, ' ', true, Json::error_handler_t::replace)));
  return write_whole(path, page);
}

}  // namespace tilewise::cli

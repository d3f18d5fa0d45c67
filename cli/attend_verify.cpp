#include "cli/attend_verify.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "cli/clock.h"
#include "reference/elements.h"

namespace tilewise::cli {
namespace {

constexpr int64_t kAllRowsUpTo = 2048, kRowsBeyond = 256;

const void* data_of(const BackwardParams& p, const std::string& name) {
  if (name == "o") return p.o.data;
  if (name == "lse") return p.lse.data;
  if (name == "dq") return p.dq.data;
  if (name == "dk") return p.dk.data;
  if (name == "dv") return p.dv.data;
  if (name == "dbias") return p.dbias.data;
  if (name == "dsinks") return p.dsinks;
  return nullptr;
}

// One share of the rows for each thread, interleaved: causal rows differ in cost.
std::vector<RowSelection> dealt(const std::vector<RowId>& rows, int threads) {
  const size_t hands = std::clamp<size_t>(rows.size() / 8, 1, static_cast<size_t>(std::max(threads, 1)));
  std::vector<RowSelection> result(hands, std::vector<RowId>());
  for (size_t r = 0; r < rows.size(); ++r) result[r % hands]->push_back(rows[r]);
  return result;
}

std::vector<Expectation> in_parallel(size_t count, const std::function<Expectation(size_t)>& make) {
  std::vector<Expectation> results(count);
  std::vector<std::exception_ptr> failed(count);
  std::vector<std::thread> workers;
  for (size_t i = 0; i < count; ++i)
    workers.emplace_back([&, i] {
      try {
        results[i] = make(i);
      } catch (...) {
        failed[i] = std::current_exception();
      }
    });
  for (std::thread& w : workers) w.join();
  for (const std::exception_ptr& f : failed)
    if (f) std::rethrow_exception(f);
  return results;
}

// The rule takes max|naive - ref| over all rows of a (batch, head), so the parts share theirs.
void share_naive_error(std::vector<Expectation>& parts) {
  std::map<std::string, std::vector<double>> most;
  for (const Expectation& part : parts)
    for (const ExpectedOutput& output : part.outputs) {
      std::vector<double>& m = most[output.name];
      m.resize(std::max(m.size(), output.naive_error.size()));
      for (size_t g = 0; g < output.naive_error.size(); ++g) m[g] = std::max(m[g], output.naive_error[g]);
    }
  for (Expectation& part : parts)
    for (ExpectedOutput& output : part.outputs) output.naive_error = most[output.name];
}

std::string rows_text(const RowSelection& rows, size_t all, const char* what) {
  if (!rows) return "all " + std::to_string(all) + " " + what;
  return std::to_string(rows->size()) + " of " + std::to_string(all) + " " + what +
         ", spread over tile edges";
}

}  // namespace

bool Verification::passed() const {
  return std::all_of(outputs.begin(), outputs.end(), [](const VerifiedOutput& o) { return o.share <= 1.0; });
}

RowSelection choose_rows(const ForwardParams& p, bool keys, int64_t tile, bool all, int64_t wanted) {
  const std::vector<RowId> every = keys ? all_key_rows(p) : all_query_rows(p);
  int64_t longest = 0;
  for (const RowId& id : every) longest = std::max(longest, id.row + 1);
  if (all || longest <= kAllRowsUpTo || static_cast<int64_t>(every.size()) <= wanted) return std::nullopt;
  // Edges of tiles first, then evenly: last, first and second row of a tile, over all sequences.
  tile = std::max<int64_t>(tile, 2);
  std::vector<size_t> edges;
  for (size_t r = 0; r < every.size(); ++r) {
    const int64_t in_tile = every[r].row % tile;
    const bool last_of_sequence = r + 1 == every.size() || every[r + 1].sequence != every[r].sequence;
    if (in_tile <= 1 || in_tile == tile - 1 || last_of_sequence) edges.push_back(r);
  }
  std::set<size_t> chosen{0, every.size() - 1};
  const size_t n = static_cast<size_t>(wanted);
  for (size_t i = 0; i < n && chosen.size() < n; ++i) chosen.insert(edges[i * edges.size() / n]);
  for (size_t i = 0; chosen.size() < n && i < n; ++i) chosen.insert(i * every.size() / n);
  std::vector<RowId> rows;
  for (const size_t r : chosen) rows.push_back(every[r]);
  return rows;
}

Expected64 Expected64::forward(const ForwardParams& p, int64_t tile_m, bool all, int threads) {
  const double start = seconds_now();
  Expected64 result;
  const RowSelection rows = choose_rows(p, false, tile_m, all, kRowsBeyond);
  const std::vector<RowId> every = all_query_rows(p);
  result.rows_ = rows_text(rows, every.size(), "rows");
  if (!every.empty()) {
    const auto hands = dealt(rows ? *rows : every, threads);
    result.parts_ = in_parallel(hands.size(), [&](size_t i) { return expect_forward(p, hands[i]); });
    share_naive_error(result.parts_);
  }
  result.seconds_ = seconds_now() - start;
  return result;
}

Expected64 Expected64::backward(const BackwardParams& p, int64_t tile_m, int64_t tile_n, bool all,
                                int threads) {
  const double start = seconds_now();
  Expected64 result;
  // Every chosen key row takes all query rows, so fewer rows the longer they are.
  const double row = 30.0 * static_cast<double>(p.heads_q) * static_cast<double>(p.head_dim + p.head_dim_v) *
                     static_cast<double>(std::max(p.seqlen_q, p.seqlen_kv)) * 1e-9;
  const auto wanted = std::clamp<int64_t>(static_cast<int64_t>(60.0 / std::max(row, 1e-9)), 16, kRowsBeyond);
  const RowSelection queries = choose_rows(p, false, tile_m, all, wanted);
  const RowSelection keys = choose_rows(p, true, tile_n, all, wanted);
  const std::vector<RowId> every = all_query_rows(p), every_key = all_key_rows(p);
  result.rows_ = rows_text(queries, every.size(), "rows") + " of dq, " +
                 rows_text(keys, every_key.size(), "rows") + " of dk and dv";
  if (!queries && !keys) {
    result.parts_.push_back(expect_backward(p));
  } else {
    const auto key_hands = dealt(keys ? *keys : every_key, threads);
    const auto query_hands = dealt(queries ? *queries : every, threads);
    const RowSelection none = std::vector<RowId>();
    result.parts_ = in_parallel(std::max(key_hands.size(), query_hands.size()), [&](size_t i) {
      return expect_backward(p, i < query_hands.size() ? query_hands[i] : none,
                             i < key_hands.size() ? key_hands[i] : none);
    });
    if (p.dbias.data) result.left_out_.push_back("dbias");
    if (p.dsinks) result.left_out_.push_back("dsinks");
  }
  share_naive_error(result.parts_);
  result.seconds_ = seconds_now() - start;
  return result;
}

Verification Expected64::check(const BackwardParams& outputs) const {
  Verification result;
  result.rows = rows_;
  result.left_out = left_out_;
  for (const Expectation& part : parts_)
    for (const ExpectedOutput& output : part.outputs) {
      const void* data = data_of(outputs, output.name);
      if (!data || output.ref.empty()) continue;
      auto at = std::find_if(result.outputs.begin(), result.outputs.end(),
                             [&](const VerifiedOutput& v) { return v.name == output.name; });
      if (at == result.outputs.end()) {
        at = result.outputs.insert(at, VerifiedOutput());
        at->name = output.name;
      }
      const Comparison c = compare(output, data);
      if (at->worst.empty() || c.share > at->share) {
        at->share = c.share;
        at->worst = c.text;
      }
      for (size_t e = 0; e < output.ref.size(); ++e) {
        if (!std::isfinite(output.ref[e])) continue;
        at->max_value = std::max(at->max_value, std::fabs(output.ref[e]));
        const double error = std::fabs(read_element(data, output.dtype, output.address[e]) - output.ref[e]);
        if (!(error <= at->max_error)) at->max_error = error;  // a NaN shows
      }
    }
  return result;
}

Verification Expected64::check(const ForwardParams& outputs) const {
  BackwardParams all;
  static_cast<ForwardParams&>(all) = outputs;
  return check(all);
}

double verification_bytes(int64_t rows, int64_t keys, int64_t heads_q, int64_t head_dim, int64_t head_dim_v,
                          int threads) {
  const double outputs =
      static_cast<double>(rows) * static_cast<double>(heads_q) * static_cast<double>(head_dim_v + 1) * 100.0;
  const double gathered =
      static_cast<double>(keys) * static_cast<double>(head_dim + head_dim_v) * 16.0 * threads;
  return outputs + gathered;
}

}  // namespace tilewise::cli

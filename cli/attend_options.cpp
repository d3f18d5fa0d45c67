#include <CLI/CLI.hpp>
#include <memory>

#include "cli/attend.h"

namespace tilewise::cli {

void add_attend(CLI::App& parent, int* exit_status) {
  auto arguments = std::make_shared<AttendArguments>();
  AttendArguments& a = *arguments;
  CLI::App* app = parent.add_subcommand("attend", "Run attention on the tensors of a safetensors file");
  app->footer(
      "IN holds q, k, v and, where wanted, bias or mask, q_lengths, kv_lengths, kv_starts, q_offset, "
      "cu_seqlens_q,\n"
      "cu_seqlens_kv, page_table, cache_batch_idx, k_scales, v_scales, segment_ids_q, segment_ids_kv, "
      "kv_ranges,\n"
      "alibi_slopes, sinks, dout, dlse. OUT gets o and lse and, with --grad, dq, dk, dv, dbias, dsinks.\n"
      "Exit status: 0 done, 1 verification failed, 2 bad arguments or input, 3 nothing can run it.");
  app->add_option("IN", a.input, "the safetensors file")->required();
  app->add_option("-o,--output", a.output, "write the results to this safetensors file");
  app->add_option("--device", a.device, "auto, cpu, reference or cuda[:n]")->capture_default_str();
  app->add_option("--kernel", a.kernel, "force this kernel (FORWARD,BACKWARD for both directions)");
  app->add_option("--layout", a.layout, "order of dimensions in the file: bshd or bhsd")
      ->capture_default_str();
  app->add_option("--dtype", a.dtype, "convert q, k, v and dout to f32, f16 or bf16 first");
  app->add_option("--scale", a.scale, "of the scores (default: 1/sqrt(head_dim))");
  app->add_option(
      "--scale-rows", a.scale_rows,
      "rows that share a scale of k_scales and v_scales (default: all of a page, slot or sequence)");
  app->add_option("--causal", a.causal,
                  "keys up to the query's position; bottom-right (default) or top-left");
  app->add_option("--q-offset", a.q_offset,
                  "query i stands at i + N (default: the last query sees the last key)");
  app->add_option("--window", a.window,
                  "LEFT,RIGHT: keys around the query's position, inclusive, -1 = unbounded");
  app->add_option("--softcap", a.softcap, "C * tanh(score / C)");
  app->add_option("--dropout", a.dropout, "probability in [0,1)");
  app->add_option("--seed", a.seed, "of the dropout (default: 0)");
  app->add_flag("--deterministic", a.deterministic, "the same bits in every run");
  app->add_flag("--grad", a.grad, "gradients too; IN needs dout");
  app->add_option("--verify", a.verify, "hold the results against fp64; =all: every row of long inputs too");
  app->add_option("--threads", a.threads, "default: physical cores that may be used");
  app->add_option("--max-workspace", a.max_workspace, "scratch memory at most, such as 512m or 1g");
  app->add_flag("--json", a.json, "print one JSON object");
  app->add_option("--report", a.report, "write an HTML report");
  app->add_option("--report-sweep", a.report_sweep,
                  "plot these results of tilewise bench --json in the report");
  app->callback([arguments, exit_status] { *exit_status = run_attend(*arguments); });
}

}  // namespace tilewise::cli

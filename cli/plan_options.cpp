// The options of `tilewise plan`.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/plan.h"
#include "cli/text.h"

namespace tilewise::cli {

void add_plan(CLI::App& parent, int* exit_status) {
  auto arguments = std::make_shared<PlanArguments>();
  PlanArguments& a = *arguments;
  CLI::App* app =
      parent.add_subcommand("plan", "Say which kernel would run a problem, in what time and memory, and why");
  app->add_option("FILE", a.file.input, "plan for the tensors of a safetensors file instead of for sizes");
  app->add_flag("--explain", a.explain,
                "list every kernel: its predicted time, bytes and workspace, or what refused it");
  app->add_option("--direction", a.direction, "forward, backward or decode")->capture_default_str();
  app->add_option("--dtype", a.dtype, "f32, f16 or bf16")->capture_default_str();
  app->add_option("--cache-dtype", a.cache_dtype, "of k and v: same, i8 or f8e4m3, with scales")
      ->capture_default_str();
  app->add_option("--batch", a.batch, "sequences")->capture_default_str();
  app->add_option("--heads", a.heads, "query heads")->capture_default_str();
  app->add_option("--heads-kv", a.heads_kv, "key heads (default: as many as query heads)");
  app->add_option("--head-dim", a.head_dim, "of q and k")->capture_default_str();
  app->add_option("--head-dim-v", a.head_dim_v, "of v and o (default: --head-dim)");
  app->add_option("--seqlen", a.seqlen, "queries a sequence (default: 1024; decode: 1)");
  app->add_option("--seqlen-kv", a.seqlen_kv, "keys a sequence (default: --seqlen; decode: 4096)");
  app->add_option("--page-size", a.page_size, "rows of a page of the keys; 0 = not paged")
      ->capture_default_str();
  app->add_option("--causal", a.causal, "bottom-right (default) or top-left");
  app->add_option("--window", a.window, "LEFT,RIGHT, -1 = unbounded");
  app->add_option("--layout", a.file.layout, "of FILE: bshd or bhsd")->capture_default_str();
  app->add_option("--device", a.device.device, "auto, cpu, reference or cuda[:n]")->capture_default_str();
  app->add_option("--kernel", a.device.kernel, "force this kernel");
  app->add_option("--threads", a.device.threads, "default: physical cores that may be used");
  app->add_option("--max-workspace", a.device.max_workspace, "such as 512m or 1g");
  app->add_flag("--json", a.json, "one JSON object");
  app->callback([app, arguments, exit_status] {
    PlanArguments& p = *arguments;
    for (const char* size : {"--batch", "--heads", "--heads-kv", "--head-dim", "--head-dim-v", "--seqlen",
                             "--seqlen-kv", "--page-size", "--cache-dtype"})
      if (!p.file.input.empty() && app->count(size)) {
        *exit_status = fail("plan", kBadInput,
                            std::string(size) + " was given beside the file " + p.file.input +
                                ", whose tensors have their sizes; accepted is one of them.");
        return;
      }
    if (p.file.input.empty() && app->count("--layout")) {
      *exit_status = fail("plan", kBadInput, "--layout was given without FILE, whose layout it is.");
      return;
    }
    if (app->count("--dtype") && !p.file.input.empty()) p.file.dtype = p.dtype;
    p.file.causal = p.causal;
    p.file.window = p.window;
    *exit_status = run_plan(p);
  });
}

}  // namespace tilewise::cli

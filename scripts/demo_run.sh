#!/usr/bin/env bash
# The demo itself, on a built tree: each step is a function below, run in the order of `steps`. Ends within two
# minutes and 1 GB on two cores.
. "$(dirname "$0")/common.sh"

tilewise=build/bin/tilewise
out=build/demo
heads=12 dim=32 # of the real data; the synthetic lengths use the same

steps=(real packed lengths report)
titles=(
  "real data: one attention layer of MiniLM reading the GPL-3, two windows of 512 tokens"
  "the same text as five documents, packed (no padding)"
  "lengths 128 to 16384: synthetic data (random numbers), f32, $heads heads of $dim, not causal"
  "the report"
)

real() { "$tilewise" attend data/minilm_gpl3_windows.safetensors --verify -o "$out/windows_out.safetensors"; }
packed() { "$tilewise" attend data/minilm_gpl3_packed.safetensors --verify -o "$out/packed_out.safetensors"; }

# The fastest three-step kernel, as the planner sees it.
standard_kernel() {
  "$tilewise" plan --explain --heads "$heads" --head-dim "$dim" | awk '$2 ~ /standard/ && $3 != "refused:" {print $2; exit}'
}
field() { sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" <<<"$2"; }
megabytes() { awk -v n="${1:-}" 'BEGIN {if (n == "" || n == "null") print "-"; else printf n < 1048576 ? "%.2f MiB" : "%.1f MiB", n / 1048576}'; }
milliseconds() { awk -v n="${1:-}" 'BEGIN {if (n == "" || n == "null") print "-"; else printf n < 10 ? "%.3f ms" : "%.1f ms", n}'; }

# The command, cut where the sweep's part of the two minutes ends.
in_time() { timeout $((SECONDS < 104 ? 105 - SECONDS : 1)) "$tilewise" "$@"; }
stopped() { echo "stopped $1: this machine is slow or busy, and the demo ends within two minutes"; }

lengths() {
  local standard spent=0 row="%7s  %12s  %12s  %12s  %14s  %14s  %16s\n" quick=()
  standard=$(standard_kernel || true)
  : >"$out/sweep.jsonl"
  echo "Scratch memory is what the kernel needs beside q, k, v and o; \"all heads\" is computed: 4 bytes a score."
  # shellcheck disable=SC2059
  printf "$row" length "fused" "standard" "fused rate" "fused scratch" "std scratch" "std, all heads"
  for n in 128 256 512 1024 2048 4096 8192 16384; do
    # A length takes about four times as long as the one before; the whole demo has two minutes.
    if awk -v t="$SECONDS" -v last="${spent:-0}" 'BEGIN {exit !(t + 4 * last > 100)}'; then
      stopped "before $n"
      break
    fi
    local from=$SECONDS
    quick=()
    [ "$n" -ge 8192 ] && quick=(--warmup 1 --repeats 3)
    local fused other=""
    fused=$(in_time bench --json --heads "$heads" --head-dim "$dim" --seqlen "$n" "${quick[@]}") || { stopped "at $n"; break; }
    echo "$fused" >>"$out/sweep.jsonl"
    if [ -n "$standard" ] && [ "$n" -le 8192 ]; then # at 16384 its scores alone would pass 1 GB
      other=$(in_time bench --json --heads "$heads" --head-dim "$dim" --seqlen "$n" --kernel "$standard" "${quick[@]}") || other=""
      [ -n "$other" ] && echo "$other" >>"$out/sweep.jsonl"
    fi
    # shellcheck disable=SC2059
    printf "$row" "$n" "$(milliseconds "$(field ms_median "$fused")")" "$(milliseconds "$(field ms_median "$other")")" \
      "$(awk -v t="$(field tflops "$fused")" 'BEGIN {printf "%.0f GFLOP/s", t * 1000}')" \
      "$(megabytes "$(field workspace_bytes "$fused")")" "$(megabytes "$(field workspace_bytes "$other")")" \
      "$(megabytes $((heads * n * n * 4)))"
    spent=$((SECONDS - from))
  done
}

report() {
  "$tilewise" attend data/minilm_gpl3_windows.safetensors --verify --report "$out/report.html" \
    --report-sweep "$out/sweep.jsonl" >/dev/null
  echo "wrote $PWD/$out/report.html: open it in a browser (one file, works offline)"
}

[ -x "$tilewise" ] || die "$tilewise is not built; run scripts/demo.sh"
mkdir -p "$out"
"$tilewise" --version
for i in "${!steps[@]}"; do
  echo
  say "demo $((i + 1))/${#steps[@]}: ${titles[i]}"
  "${steps[i]}"
done
echo
say "done in $SECONDS s; your own tensors: $tilewise attend FILE.safetensors --verify"

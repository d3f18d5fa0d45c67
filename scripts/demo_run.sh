#!/usr/bin/env bash
# The demo itself, on a built tree: each step is a function below, run in the order of `steps`.
. "$(dirname "$0")/common.sh"

tilewise=build/bin/tilewise
steps=(version)

version() { "$tilewise" --version; }

[ -x "$tilewise" ] || die "$tilewise is not built; run scripts/demo.sh"
for i in "${!steps[@]}"; do
  say "demo $((i + 1))/${#steps[@]}: ${steps[i]}"
  "${steps[i]}"
done

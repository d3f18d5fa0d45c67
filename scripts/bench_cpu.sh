#!/usr/bin/env bash
# Measures what the CPU path must reach and prints it as a list: point, what was measured, target, ratio to each rival,
# pass or miss.
#   scripts/bench_cpu.sh FOLDER [--quick] [--minutes N] [--threads 1,2] [--parts share,rivals]
# FOLDER receives rows.jsonl (every row as `tilewise bench --json` gave it) and list.json. The full list takes less than
# 15 minutes, --quick less than 2; what does not fit into the time is listed as not run. Exit status 1 where something
# was missed. Needs the release build; rivals come from scripts/rivals.sh.
. "$(dirname "$0")/common.sh"
exec python3 scripts/bench_cpu.py "$@"

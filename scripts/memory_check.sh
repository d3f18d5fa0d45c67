#!/usr/bin/env bash
# Shows that scratch grows with the length and not with its square: 65,536 tokens x 12 heads, forward and backward,
# within 2 GB beside the tensors.
#   scripts/memory_check.sh [--run] [--tilewise build/bin/tilewise]
# Without --run: the plan's own figure at 65,536, and at 8,192 a run of one call whose peak of resident memory less the
# tensors must stay within what its plan says (and 64 MB for the program). With --run: one call of each direction at
# 65,536 too, which takes minutes.
. "$(dirname "$0")/common.sh"
exec python3 scripts/memory_check.py "$@"

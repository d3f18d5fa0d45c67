"""Memory beside the tensors; run it as scripts/memory_check.sh, which says how."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

TILEWISE = Path(__file__).resolve().parent.parent / "build/bin/tilewise"
LIMIT = 2e9
PROGRAM = 64e6  # code, threads, the burst that measures the peak
HEADS, DIM = 12, 64


def tensors(direction, seqlen):
    of_one = seqlen * HEADS * DIM * 4
    return (8 if direction == "backward" else 4) * of_one + (4 * HEADS * seqlen if direction == "backward" else 0)


def run(direction, seqlen):
    """Workspace of the row and peak resident bytes of the process."""
    command = [TILEWISE, "bench", "--json", "--direction", direction, "--seqlen", str(seqlen), "--repeats", "1",
               "--warmup", "0", "--causal"]
    child = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    out, _ = child.stdout.read(), child.stdout.close()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {child.returncode}")
    return json.loads(out.splitlines()[0]), usage.ru_maxrss * 1024


def planned(direction, seqlen):
    """Workspace that the planner gives, without running anything."""
    command = [TILEWISE, "plan", "--json", "--direction", direction, "--seqlen", str(seqlen), "--heads", str(HEADS),
               "--head-dim", str(DIM), "--causal"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return json.loads(done.stdout)["workspace_bytes"]


def main():
    global TILEWISE
    parser = argparse.ArgumentParser(prog="scripts/memory_check.sh", description=__doc__)
    parser.add_argument("--run", action="store_true", help="one call of each direction at 65,536 too: minutes")
    parser.add_argument("--tilewise", type=Path, default=TILEWISE, help="the command")
    o = parser.parse_args()
    TILEWISE = o.tilewise
    wrong = 0

    def check(text, value, limit):
        nonlocal wrong
        good = value <= limit
        wrong += not good
        print(f"{text:60} {value / 1e6:10.1f} MB, at most {limit / 1e6:8.1f} MB  {'pass' if good else 'MISS'}", flush=True)

    for direction in ("forward", "backward"):
        check(f"{direction} S=65536 workspace of the plan", planned(direction, 65536), LIMIT)
        for seqlen in (8192, 65536) if o.run else (8192,):
            row, peak = run(direction, seqlen)
            # Before a backward call the forward one ran in the same process; its workspace is freed by then.
            beside = peak - tensors(direction, seqlen)
            limit = LIMIT if seqlen == 65536 else row["workspace_bytes"] * 1.05 + PROGRAM
            check(f"{direction} S={seqlen} resident beside the tensors", beside, limit)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""The speed list of the CPU path; run it as scripts/bench_cpu.sh, which says how."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TILEWISE = ROOT / "build/bin/tilewise"
OVERHEAD = ROOT / "build/bin/tilewise_overhead"


class Bench:
    """Runs commands until the time is up, and keeps every row."""

    def __init__(self, folder, minutes):
        self.end = time.monotonic() + 60 * minutes
        self.rows = open(folder / "rows.jsonl", "w", encoding="utf-8")
        self.absent, self.present = {}, set()

    def left(self):
        return self.end - time.monotonic()

    def run(self, command):
        """The rows of a command; [] where there is no time left for it."""
        if self.left() < 1:
            return []
        try:
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=self.left() + 5,
                                  check=False)
        except subprocess.TimeoutExpired as late:
            done = subprocess.CompletedProcess(command, 0, (late.stdout or b"").decode(), "")
        if done.returncode not in (0, 1):
            print(f"{' '.join(str(c) for c in command)}: {done.stderr.strip()}", file=sys.stderr)
        rows = []
        for line in done.stdout.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # cut by the time limit
            rows.append(row)
            print(line, file=self.rows, flush=True)
            if row["not_run"]:
                self.absent[row["rival"]] = row["not_run"]
            elif row["rival"]:
                self.present.add(row["rival"])
        return rows

    def tilewise(self, *options):
        return self.run([TILEWISE, "bench", "--json", *options])


def share(row):
    """By the clock, and in brackets by processor time, which others on the machine cannot lower."""
    return f"{row['percent_of_peak']:.1f} % ({row['percent_of_peak_cpu'] or 0:.1f})"


class Report:
    def __init__(self, out):
        self.out, self.lines, self.missed, self.passed = out, [], 0, 0
        print("Shares of the peak: by the clock, in brackets by processor time. A rival's figure is its time over ours.")
        print(f"{'point':58} {'measured':>16} {'target':>10}  {'three-step':>10} {'again':>7} {'ggml':>7} {'pytorch':>7}  "
              "verdict")

    def line(self, point, measured, target, good, ratios=None, kernel=None):
        """good: True, False, or None for a figure without a target or a point that was not run."""
        verdict = {True: "pass", False: "MISS", None: "" if measured != "not run" else "not run"}[good]
        self.passed += good is True
        self.missed += good is False
        cells = [f"{(ratios or {}).get(r, 0):.2f}x" if (ratios or {}).get(r) else "-"
                 for r in ("three-step", "three-step-again", "ggml", "pytorch")]
        print(f"{point:58} {measured:>16} {target:>10}  {cells[0]:>10} {cells[1]:>7} {cells[2]:>7} {cells[3]:>7}  {verdict}",
              flush=True)
        self.lines.append({"point": point, "measured": measured, "target": target, "ratios": ratios or {},
                           "kernel": kernel, "pass": good})


def name_of(row):
    mask = "causal" if row["causal"] else "full"
    return (f"{row['direction']} {row['dtype']} d{row['head_dim']} S={row['seqlen_q']} {mask} "
            f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}")


def reaches(row, target):
    """None above the peak: then the measurement is wrong, since something else took the processor from the bursts."""
    return None if row["percent_of_peak"] > 100 else row["percent_of_peak"] >= target


def key_of(row):
    return tuple(row[k] for k in ("direction", "dtype", "head_dim", "seqlen_q", "causal", "threads"))


def ratios_of(rows):
    """rival name -> its time over ours, for the rows of one point."""
    return {r["rival"]: r["times_ours"] for r in rows if r["rival"] and r["times_ours"]}


def by_point(rows):
    points = {}
    for row in rows:
        points.setdefault(key_of(row), []).append(row)
    return points


def share_of_peak(bench, report, o):
    """85 % full from 1024 forward and 2048 backward, 80 % causal from 2048."""
    lengths = {"forward": {"false": "1024,2048,4096", "true": "2048,4096"},
               "backward": {"false": "2048,4096", "true": "2048,4096"}}
    if o.quick:
        lengths = {"forward": {"false": "1024,2048", "true": "2048"}, "backward": {"false": "2048", "true": "2048"}}
    for direction, masks in lengths.items():
        for causal, seqlen in masks.items():
            rows = bench.tilewise("--direction", direction, "--causal", causal, "--seqlen", seqlen, "--threads", o.threads)
            target = 80 if causal == "true" else 85
            wanted = len(seqlen.split(",")) * len(o.threads.split(","))
            for row in rows:
                report.line(name_of(row), share(row), f">= {target} %", reaches(row, target),
                            kernel=row["kernel"])
            for _ in range(wanted - len(rows)):
                report.line(f"{direction} causal={causal} S in {seqlen}", "not run", f">= {target} %", None)


def other_dims(bench, report, o):
    """Head dims 32 and 128: figures without a target."""
    seqlen = "1024" if o.quick else "2048"
    for direction in ("forward", "backward"):
        for row in bench.tilewise("--direction", direction, "--head-dim", "32,128", "--seqlen", seqlen, "--threads",
                                  o.threads.split(",")[-1]):
            report.line(name_of(row), share(row), "-", None, kernel=row["kernel"])


def avx2(bench, report, o):
    """AVX2 forced: 75 % of the peak of AVX2's own multiply-adds."""
    names = [r["kernel"] for r in bench.tilewise("--kernel", "all", "--seqlen", "64", "--repeats", "1", "--warmup", "0")]
    fused = [n for n in names if "avx2" in n and not any(form in n for form in ("_standard_", "_rows_", "_small_"))]
    if not fused:
        report.line("forward f32 AVX2 forced", "not run", ">= 75 %", None)
        return
    best = {}
    for row in bench.tilewise("--kernel", ",".join(fused), "--seqlen", "1024" if o.quick else "1024,2048", "--threads",
                              o.threads):
        kept = best.setdefault(key_of(row), row)
        if row["percent_of_peak"] > kept["percent_of_peak"]:
            best[key_of(row)] = row
    for row in best.values():
        report.line(name_of(row) + " AVX2 forced", share(row), ">= 75 %",
                    reaches(row, 75), kernel=row["kernel"])


def storage(bench, report, o):
    """bf16 and f16 at least 0.95 of f32, each as a share, by processor time, of the peak that was timed beside it."""
    for direction in ("forward", "backward"):
        rows = bench.tilewise("--direction", direction, "--dtype", "f32,bf16,f16", "--seqlen", "1024" if o.quick else "2048",
                              "--threads", o.threads.split(",")[-1])
        wide = next((r["percent_of_peak_cpu"] for r in rows if r["dtype"] == "f32"), None)
        for row in rows:
            if row["dtype"] != "f32" and wide:
                ratio = row["percent_of_peak_cpu"] / wide
                report.line(name_of(row) + " against f32", f"{ratio:.2f}x", ">= 0.95x", ratio >= 0.95,
                            kernel=row["kernel"])


def rivals(bench, report, o):
    """Ahead of every rival from 128 to 8192; never below 0.97 of the best of them at any length from 1.

    Below 128, three-step's backward with P kept is shown and not judged: it gets S^2 numbers a head that ours is not given.
    The step, which pays for them, and its backward from the same inputs are."""
    most = o.threads.split(",")[-1]
    three_steps, everyone = "three-step,three-step-again,ggml", "three-step,three-step-again,ggml,pytorch"
    plan = [("1,4,16,64", 0.97, most, everyone), ("2,8,12,20,24,32,40,48,96", 0.97, most, three_steps),
            ("128,256,512,1024,2048,4096,8192", 1.0, most, everyone)]
    plan += [("128,512,1024,2048,4096", 1.0, t, everyone) for t in o.threads.split(",")[:-1]]
    if o.quick:  # starting PyTorch takes seconds for each point
        plan = [("1,16,64", 0.97, most, three_steps), ("128,1024", 1.0, most, everyone)]
    for lengths, target, threads, who in plan:
        for direction in ("forward", "backward", "step"):
            for causal in ("false", "true"):
                compare(bench, report, direction, causal, lengths, threads, target, who)


def compare(bench, report, direction, causal, lengths, threads, target, who):
    rows = bench.tilewise("--rivals", who, "--direction", direction, "--causal", causal, "--seqlen", lengths, "--threads",
                          threads)
    done = set()
    for group in by_point(rows).values():
        ratios = ratios_of(group)
        ours = next(r for r in group if r["rival"] is None)
        done.add(str(ours["seqlen_q"]))
        judged = dict(ratios)
        if direction == "backward" and target < 1:
            judged.pop("three-step", None)
        good = min(judged.values()) >= target if judged else None
        report.line(name_of(ours) + " against rivals", share(ours), f">= {target:g}x", good,
                    ratios, ours["kernel"])
    for length in lengths.split(","):
        if length not in done:
            report.line(f"{direction} f32 d64 S={length} {'causal' if causal == 'true' else 'full'} against rivals",
                        "not run", f">= {target:g}x", None)


def overhead(bench, report, _):
    """A planned call costs at most 2 us beyond its kernel; a plan at most 50 us."""
    try:
        done = subprocess.run([OVERHEAD, "--benchmark_format=json", "--benchmark_min_time=0.1"], capture_output=True,
                              text=True, check=False, timeout=max(10, bench.left()))
    except (OSError, subprocess.TimeoutExpired):  # not built without Google Benchmark
        report.line("planned call beyond its kernel", "not run", "<= 2 us", None)
        return
    for entry in json.loads(done.stdout)["benchmarks"]:
        microseconds = entry["cpu_time"] * {"ns": 1e-3, "us": 1, "ms": 1e3}[entry["time_unit"]]
        what, limit = {"call": ("planned call beyond its kernel", 2), "one_call": ("one call beyond its kernel", None),
                       "plan": ("plan", 50)}[entry["name"].split("/")[0]]
        report.line(f"{what}, {entry['name'].split('/')[1]}", f"{microseconds:.2f} us", f"<= {limit} us" if limit else "-",
                    microseconds <= limit if limit else None)


PARTS = {"share": share_of_peak, "overhead": overhead, "storage": storage, "avx2": avx2, "rivals": rivals,
         "dims": other_dims}


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench_cpu.sh", description=__doc__)
    parser.add_argument("folder", type=Path, help="where rows.jsonl and list.json go")
    parser.add_argument("--quick", action="store_true", help="fewer lengths, 2 minutes")
    parser.add_argument("--minutes", type=float, help="time limit (default 15, quick 2)")
    parser.add_argument("--threads", default="1,2", help="thread counts")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of " + ", ".join(PARTS))
    o = parser.parse_args()
    for part in o.parts.split(","):
        if part not in PARTS:
            parser.error(f"--parts has {part}; accepted: " + ", ".join(PARTS))
    if not TILEWISE.exists():
        sys.exit(f"{TILEWISE} is not there: scripts/build.sh makes it")
    o.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(o.folder, o.minutes or (1.9 if o.quick else 14.5))
    busy, cores = os.getloadavg()[0], os.cpu_count()
    if busy > 0.3:
        print(f"This machine is busy (load {busy:.1f} on {cores} cores): read the shares by processor time.")
    report = Report(o.folder)
    for part in o.parts.split(","):
        PARTS[part](bench, report, o)
    for rival, why in bench.absent.items():
        if rival not in bench.present:
            print(f"not run: {rival}: {why}")
    print(f"{report.passed} met, {report.missed} missed")
    with open(o.folder / "list.json", "w", encoding="utf-8") as file:
        json.dump({"schema": 1, "points": report.lines, "not_run": bench.absent}, file, indent=1)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Bytes that cross the GPU's memory bus, by hardware counters (ncu): fused forward beside three steps.

    bench/gpu_traffic.py [--output traffic.json] [--head-dims 64,128] [--seqlens 512,1024,2048,4096,8192,16384] [--causal]

bf16, batch x seqlen = 16,384, heads = 2048 / head_dim, random data. For each size three calls: this library's fused
forward, its three-step row (scores in fp32 in memory) and PyTorch's math backend, each summed over all of its kernels.
Caches are emptied before a call by reading a buffer of 1 GB; what a call left in the L2 to be written is written back
under the same read behind it, and counted to the call. Compulsory: q, k, v read once, o written once. A second pass
counts registers, accesses to local memory (spills) and branches of our kernels at the middle one of the seqlens.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from glob import glob
from pathlib import Path

import gpu_common as gpu
import torch_rival as tw
from gpu_common import Point

BYTES = ["dram__bytes_read.sum", "dram__bytes_write.sum"]
LOCAL = ["smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum"]
BRANCHES, REGISTERS = "smsp__sass_average_branch_targets_threads_uniform.pct", "launch__registers_per_thread"
MARK = "triu"  # in the name of the kernel that stands between calls and nowhere else
TOTAL = 16384
# In this order: the driver clears what math frees, behind whatever runs then, at 400 GB/s.
FORMS = ["fused", "three-step", "math"]


def calls_of(o, forms=FORMS):
    return [(d, s, form) for form in forms for d in o.head_dims for s in o.seqlens]


def run_calls(o):
    """Every call between two marks, and behind it the read that empties the caches between two marks."""
    torch = gpu.torch_on_cuda()
    ours = gpu.Ours(o.library)
    other = torch.ones(1 << 28, dtype=torch.int32, device="cuda")
    small = torch.ones(8, 8, device="cuda")
    said = []

    def between_marks(call):
        torch.triu(small)
        call()
    for d, s, form in calls_of(o, o.forms):
        torch.cuda.empty_cache()
        point = Point("traffic", TOTAL // s, 2048 // d, d, s, o.causal)
        q, k, v = (torch.randn((point.batch, s, point.heads, d), device="cuda").bfloat16() for _ in range(3))
        out, kernel = torch.empty_like(q), form
        if form == "math":
            theirs, math = [t.transpose(1, 2) for t in (q, k, v)], gpu.sdpa_of(torch, point, "math")

            def call(theirs=theirs, math=math):
                return math(*theirs)
        else:
            problem, tensors = ours.problem_of(point), tw.Tensors()
            gpu.fill(problem, tensors, "bf16", q=q, k=k, v=v, o=out)
            row = o.kernel if form == "fused" else f"forward_sm80_bf16_d{d}_128x128_standard_simple"
            call, plan = ours.bind(torch, problem, tensors, row)
            kernel = plan.kernel.decode()
        try:
            call()
            torch.cuda.synchronize()
        except (RuntimeError, torch.OutOfMemoryError) as e:
            said.append({"not_run": gpu.reason_of(e)})
            continue
        torch.amax(other)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        between_marks(call)
        between_marks(lambda: torch.amax(other))
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        said.append({"kernel": kernel})
    Path(o.calls).write_text(json.dumps(said))


def find_ncu():
    for found in (shutil.which("ncu"), *sorted(glob("/usr/local/cuda*/bin/ncu")), *sorted(glob("/opt/nvidia/nsight-compute/*/ncu"))):
        if found:
            return found
    sys.exit("ncu (Nsight Compute) is not here: nothing is counted")


def count(o, metrics):
    """For each call what run_calls said of it, and the rows of its kernels, {metric: value}; the read behind it last."""
    with tempfile.TemporaryDirectory() as folder:
        log, calls = Path(folder) / "ncu.csv", Path(folder) / "calls.json"
        command = [find_ncu(), "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics), "--cache-control", "none",
                   "--clock-control", "none", "--profile-from-start", "off", "--log-file", str(log), sys.executable, __file__, "--calls",
                   str(calls), "--library", o.library, "--kernel", o.kernel, "--head-dims", ",".join(map(str, o.head_dims)), "--seqlens",
                   ",".join(map(str, o.seqlens)), "--forms", ",".join(o.forms)] + ["--causal"] * o.causal
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        text = log.read_text() if log.exists() else ""
        if not calls.exists() or "ERR_" in text:
            lines = (text + done.stdout).splitlines()
            errors = [line for line in lines if "ERR" in line or "rror" in line]
            sys.exit(f"ncu counted nothing (exit {done.returncode}): " + (errors or lines or ["it said nothing"])[-1][:300])
        said = json.loads(calls.read_text())
        table = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))[1:]  # behind the row of units
        if o.keep:
            shutil.copy(log, o.keep)
    parts = []
    for row in table:
        if MARK in row["Kernel Name"]:
            parts.append([])
        elif parts:
            parts[-1].append({m: float(row[m].replace(",", "") or 0) for m in metrics} | {"name": row["Kernel Name"]})
    counted = iter(parts)
    return [call if "not_run" in call else call | {"kernels": next(counted), "behind": next(counted)} for call in said]


def megabytes(kernels, metrics):
    return 1e-6 * sum(k[m] for k in kernels for m in metrics)


def main():
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = gpu.parser_of(__doc__)
    parser.add_argument("--head-dims", type=numbers, default=[64, 128])
    parser.add_argument("--seqlens", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--keep", default="", help="a copy of what ncu wrote")
    parser.add_argument("--forms", type=lambda text: text.split(","), default=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--calls", default="", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.calls:
        return run_calls(o)
    print("MB to and from memory, counted; in brackets the fused forward over compulsory, the others over the fused forward.")
    print(f'{"d":>4}{"N":>7}{"compulsory":>12}{"fused":>18}{"three-step":>20}{"PyTorch math":>20}')
    rows, by_call = [], dict(zip(calls_of(o), count(o, BYTES)))
    for d in o.head_dims:
        for s in o.seqlens:
            least, line, fused = 4 * TOTAL * 2048 * 2e-6, "", None
            for form in FORMS:
                call = by_call[d, s, form]
                if "not_run" in call:
                    line += f'{"not run":>20}'
                else:
                    call["megabytes"] = megabytes(call["kernels"], BYTES) + megabytes(call["behind"], BYTES[1:])
                    fused = fused or call["megabytes"]
                    over = call["megabytes"] / (least if form == "fused" else fused)
                    line += f'{call["megabytes"]:>{11 if form == "fused" else 12}.0f} ({over:.2f})'
                rows.append({"head_dim": d, "seqlen": s, "causal": o.causal, "form": form, "compulsory_megabytes": least} | call)
            print(f"{d:>4}{s:>7}{least:>12.0f}{line}")
    print("Registers, accesses to local memory, branches that a warp takes as one (%):")
    o.forms, o.seqlens = FORMS[:2], o.seqlens[len(o.seqlens) // 2:][:1]
    for (d, s, form), call in zip(calls_of(o, o.forms), count(o, [REGISTERS, BRANCHES] + LOCAL)):
        for name, k in {k["name"].split("<")[0].split("::")[-1]: k for k in call.get("kernels", [])}.items():
            print(f"{d:>4}{s:>7}  {name:<20}{k[REGISTERS]:>5.0f}{k[LOCAL[0]] + k[LOCAL[1]]:>9.0f}{k[BRANCHES]:>8.2f}")
        rows.append({"head_dim": d, "seqlen": s, "causal": o.causal, "form": form, "pass": "registers"} | call)
    if o.output:
        Path(o.output).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

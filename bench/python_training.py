#!/usr/bin/env python3
"""Whole models end to end: training steps, prefill, decoding, and a Flamingo-like step, against eager attention and SDPA.

    bench/python_training.py [training | inference | flamingo]...  [--model gpt2-small,llama-like] [--lengths 1024,4096,16384]
                             [--tokens N] [--steps N] [--seconds S] [--json FILE] [--html FILE]

Needs PyTorch and tilewise, nothing else: the models are python_models.py's, of random weights in bf16 (fp32 on the CPU). A
step has --tokens tokens (16384) in sequences of each length. The implementations run in turns, step by step, so that a
clock that drifts meets all of them; the median counts. Peak memory is PyTorch's allocator's of one step beyond the
weights. What does not fit or has no kernel is reported with its reason. --seconds bounds the whole run: cases that
would begin later are left out, and said so.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from python_chart import page
from python_models import IMPLEMENTATIONS, SHAPES, Decoder, images_of
from torch.nn import functional

WORKLOADS = ("training", "inference", "flamingo")


class Timer:
    """Seconds of a call: by events on a GPU."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"

    def __call__(self, call):
        if not self.cuda:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        call()
        b.record()
        b.synchronize()
        return a.elapsed_time(b) / 1e3

    def peak_bytes(self, call):
        """Makes a call and says what of PyTorch's allocator it took beyond what was taken; None on the CPU."""
        if not self.cuda:
            call()
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def training_step(model, ids, optimizer, **inputs):
    def step():
        logits = model(ids[:, :-1], **inputs)
        functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def prepared(workload, shape, attend, rows, tokens, device, dtype):
    """{name: (call, tokens that it computes)} of one implementation."""
    torch.manual_seed(0)
    batch = max(1, tokens // rows)
    with device:  # made there: random numbers of the host take longer than the steps
        model = Decoder(shape, attend, workload == "flamingo").to(dtype)
    ids = torch.randint(shape.vocabulary, (batch, rows + 1), device=device)
    if workload == "inference":
        model.eval().requires_grad_(False)

        def empty():
            size = (batch, rows + 128, shape.heads_kv, shape.dim)
            return [(torch.zeros(size, device=device, dtype=dtype), torch.zeros(size, device=device, dtype=dtype),
                     torch.full((batch,), rows, dtype=torch.int32, device=device)) for _ in range(shape.layers)]

        caches = empty()
        return {"prefill": (lambda: model(ids[:, :-1], last=True), batch * rows),
                "decode": (lambda: model(ids[:, -1:], caches=caches), batch)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    inputs = {}
    if workload == "flamingo":
        inputs["images"], inputs["ranges"] = images_of(batch, rows, shape.width, device, dtype)
    return {workload: (training_step(model, ids, optimizer, **inputs), batch * rows)}


def measured(workload, shape, rows, options, device, dtype):
    """Rows of results: one an implementation and a part of the workload."""
    timer, calls, failures, memory = Timer(device), {}, {}, {}
    for name, attend in IMPLEMENTATIONS.items():
        try:
            for part, call in prepared(workload, shape, attend, rows, options.tokens, device, dtype).items():
                call[0]()
                if timer.cuda:
                    memory[name, part] = timer.peak_bytes(call[0])
                calls[name, part] = call
        except (torch.OutOfMemoryError, NotImplementedError) as error:
            failures[name] = "out of memory" if isinstance(error, torch.OutOfMemoryError) else str(error).splitlines()[0]
            calls = {key: call for key, call in calls.items() if key[0] != name}
        if timer.cuda:
            torch.cuda.empty_cache()
    times = {key: [] for key in calls}
    for _ in range(options.steps):
        for key, (call, _) in calls.items():
            times[key].append(timer(call))
    parts = ("prefill", "decode") if workload == "inference" else (workload,)
    for part in parts:
        for name in IMPLEMENTATIONS:
            key, row = (name, part), {"schema": 1, "workload": part, "implementation": name, "seqlen": rows}
            if key in times:
                seconds = statistics.median(times[key])
                row |= {"ms_median": seconds * 1e3, "ms_min": min(times[key]) * 1e3, "ms_max": max(times[key]) * 1e3,
                        "tokens_per_second": calls[key][1] / seconds, "peak_bytes": memory.get(key)}
            else:
                row["failed"] = failures[name]
            yield row


def show(rows):
    """One line a case: tokens a second of each implementation, its ratio to tilewise's, and memory."""
    ours = next(row for row in rows if row["implementation"] == "tilewise")
    texts = []
    for row in rows:
        if "failed" in row:
            texts.append(f"{row['implementation']}: {row['failed'][:60]}")
            continue
        memory = "" if row["peak_bytes"] is None else f", {row['peak_bytes'] / 2**30:.1f} GiB"
        ratio = f" ({ours['tokens_per_second'] / row['tokens_per_second']:.2f}x)" if row is not ours and "failed" not in ours else ""
        texts.append(f"{row['implementation']} {row['tokens_per_second']:,.0f}/s{ratio}{memory}")
    print(f"{rows[0]['model']:11s} {rows[0]['workload']:9s} S={rows[0]['seqlen']:<6d} " + "; ".join(texts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="|".join(WORKLOADS))
    parser.add_argument("--model", default="gpt2-small,llama-like", help=", ".join(SHAPES))
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json")
    parser.add_argument("--html")
    options = parser.parse_args()
    for name in options.workloads:
        if name not in WORKLOADS:
            parser.error(f"unknown workload {name}; accepted: {', '.join(WORKLOADS)}")
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    title = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    title += f", PyTorch {torch.__version__}, {str(dtype).removeprefix('torch.')}, {options.tokens} tokens a step"
    print(title)
    start, results = time.monotonic(), []
    for rows in map(int, options.lengths.split(",")):
        for model in options.model.split(","):
            for workload in options.workloads:
                if time.monotonic() - start > options.seconds:
                    print(f"{model} {workload} S={rows}: not run, --seconds {options.seconds:g} are over")
                    continue
                found = [dict(row, model=model) for row in measured(workload, SHAPES[model], rows, options, device, dtype)]
                for part in dict.fromkeys(row["workload"] for row in found):
                    show([row for row in found if row["workload"] == part])
                results += found
                if options.json:
                    with open(options.json, "w", encoding="utf-8") as file:
                        file.writelines(json.dumps(dict(row, device=title)) + "\n" for row in results)
                if options.html:
                    with open(options.html, "w", encoding="utf-8") as file:
                        file.write(page(title, results))
    return 0 if any("failed" not in row for row in results if row["implementation"] == "tilewise") else 1


if __name__ == "__main__":
    sys.exit(main())

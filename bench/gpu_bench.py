#!/usr/bin/env python3
"""Times this library's CUDA forward beside cuDNN and PyTorch's flash and memory-efficient backends.

    bench/gpu_bench.py [--output bench.json] [--sets table,short,more] [--kernel NAME] [--seconds S]

All in one process, in turns, on random data: graph replays timed by events (at least 50 calls a graph where a call
is short), then eager calls with the host's time. cuBLAS on 8192^3 runs in between, as the clock's witness. One JSON
object a line (the keys of `tilewise bench --json`, schema 1, and `eager_us`); a short table on the terminal last.
FLOPs: 4 head_dim a pair (2 d + 2 d_v), causal squares as half; windows by visible pairs.
"""

import argparse
import ctypes as c
import json
import statistics
import sys
import time
from pathlib import Path

import torch_rival as tw

CUDA = 1


class Point:
    def __init__(self, name, batch, heads, head_dim, seqlen, causal, heads_kv=None, head_dim_v=None, window=-1,
                 dtype="bf16"):
        self.name, self.batch, self.heads, self.head_dim, self.seqlen, self.causal = name, batch, heads, head_dim, seqlen, causal
        self.heads_kv, self.head_dim_v, self.window, self.dtype = heads_kv or heads, head_dim_v or head_dim, window, dtype

    def pairs(self):
        s = self.seqlen
        if self.window >= 0:
            return sum(min(i, self.window) + 1 for i in range(s))
        return s * s * (0.5 if self.causal else 1.0)

    def flops(self):
        return 2.0 * (self.head_dim + self.head_dim_v) * self.pairs() * self.heads * self.batch

    def bytes_ideal(self, size):
        rows = self.batch * self.seqlen
        return rows * size * (self.heads * (self.head_dim + self.head_dim_v)
                              + self.heads_kv * (self.head_dim + self.head_dim_v))


def points_of(sets):
    points = []
    if "table" in sets:  # batch x seqlen 16384, 2048 channels
        points += [Point("table", 16384 // s, 2048 // d, d, s, causal)
                   for d in (64, 128, 256) for s in (512, 2048, 8192, 16384) for causal in (False, True)]
    if "short" in sets:
        points += [Point("short", b, 16, 64, s, False) for s in (16, 32, 64, 128, 256) for b in (1, 64, 512)]
        points += [Point("short", 512, 16, 64, 256, True)]
    if "more" in sets:
        points += [Point("gqa", 1, 64, 128, s, True, heads_kv=8) for s in (2048, 8192, 32768)]
        points += [Point("d192/128", 2, 16, 192, 8192, True, head_dim_v=128), Point("d96", 2, 16, 96, 8192, False)]
        points += [Point("window", 1, 64, 64, 32768, True, heads_kv=8, window=1023)]
        points += [Point("f16", 2, 16, 128, 8192, False, dtype="f16"), Point("f32", 2, 32, 64, 8192, False, dtype="f32")]
    return points


class Ours(tw.Tilewise):
    """The library with a context on CUDA device 0."""

    def __init__(self, path):
        self.library = c.CDLL(path)
        self.error = tw.Error()
        options = tw.ContextOptions()
        self.library.tilewise_context_options_init(c.byref(options))
        if options.struct_bytes != c.sizeof(tw.ContextOptions):
            sys.exit(f"{path} and this script do not belong together")
        options.device_kind = CUDA
        self.context = c.c_void_p()
        self.call("tilewise_context_create", c.byref(options), c.byref(self.context))

    def bind(self, torch, point, q, k, v, o, kernel):
        problem, tensors = self.problem(), tw.Tensors()
        problem.batch, problem.seqlen_q, problem.seqlen_kv = point.batch, point.seqlen, point.seqlen
        problem.heads_q, problem.heads_kv = point.heads, point.heads_kv
        problem.head_dim, problem.head_dim_v = point.head_dim, point.head_dim_v
        code = tw.DTYPES[point.dtype][0]
        for field, tensor in (("q", q), ("k", k), ("v", v), ("o", o)):
            setattr(problem, "dtype_" + field, code)
            view = tw.view(tensor, code)
            view.device_kind = CUDA
            setattr(tensors, field, view)
        problem.causal, problem.window_left = int(point.causal), point.window
        problem.alignment = 16
        plan, limits = tw.Plan(), tw.Limits(-1, 0, kernel.encode() if kernel else None)
        self.call("tilewise_plan_for_context", self.context, c.byref(problem), c.byref(limits), c.byref(plan))
        self.call("tilewise_prepare", self.context, c.byref(plan))
        memory = torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
        forward = self.library.tilewise_forward
        workspace = tw.Workspace(memory.data_ptr(), plan.workspace_bytes)
        plan_at, tensors_at, error_at = c.byref(plan), c.byref(tensors), c.byref(self.error)

        def once(keep=(memory, plan, tensors)):
            stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
            if forward(self.context, plan_at, tensors_at, workspace, stream, error_at):
                raise RuntimeError(self.error.message.decode())
        return once, plan


def rivals_of(torch, point, q, k, v):
    """(name, call) of what PyTorch can run; (name, reason) of what it cannot."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    sdpa = torch.nn.functional.scaled_dot_product_attention
    theirs = [t.transpose(1, 2) for t in (q, k, v)]
    options = {"is_causal": point.causal}
    if point.heads_kv != point.heads:
        options["enable_gqa"] = True
    found = []
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION),
                          ("efficient", SDPBackend.EFFICIENT_ATTENTION)):
        if name == "efficient" and point.name not in ("short", "f32"):
            continue
        if point.window >= 0:
            found.append((name, None, "no windows through PyTorch"))
            continue

        def once(backend=backend):
            with sdpa_kernel(backend):
                return sdpa(*theirs, **options)
        try:
            once()
            found.append((name, once, ""))
        except RuntimeError as e:
            found.append((name, None, str(e).splitlines()[0][:120]))
    return found


class Timed:
    """A call as a graph of enough calls for the clock, replayed between two events."""

    def __init__(self, torch, call):
        self.torch, self.call, self.samples = torch, call, []
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
        ms = max(start.elapsed_time(end), 1e-3)
        self.calls = int(min(100, max(1, 1.0 / ms))) if ms > 0.02 else 50
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.calls):
                call()
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.replay()

    def replay(self):
        self.start.record()
        self.graph.replay()
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end) / self.calls

    def eager_us(self, torch):
        count = 50 if statistics.median(self.samples) < 1 else 3
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            self.call()
        torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - begin) / count


def measure(timed, seconds):
    round_ms = sum(t.replay() * t.calls for t in timed)
    rounds = int(min(31, max(3, 1e3 * seconds / round_ms)))
    for turn in range(rounds):
        for i in range(len(timed)):
            one = timed[(turn + i) % len(timed)]
            one.samples.append(one.replay())


def run_point(torch, ours, point, o):
    size, name = tw.DTYPES[point.dtype][1:]
    dtype = getattr(torch, name)
    shape = lambda heads, dim: (point.batch, point.seqlen, heads, dim)
    q = torch.randn(shape(point.heads, point.head_dim), device="cuda").to(dtype)
    k = torch.randn(shape(point.heads_kv, point.head_dim), device="cuda").to(dtype)
    v = torch.randn(shape(point.heads_kv, point.head_dim_v), device="cuda").to(dtype)
    out = torch.empty(shape(point.heads, point.head_dim_v), device="cuda", dtype=dtype)
    call, plan = ours.bind(torch, point, q, k, v, out, o.kernel)
    call()
    torch.cuda.synchronize()
    entries = [("", call, "")] + rivals_of(torch, point, q, k, v)
    for i, (rival, once, _) in enumerate(entries):
        if rival and once:
            apart = (once().transpose(1, 2).float() - out.float()).abs().max().item()
            if not apart <= (5e-3 if size == 4 else 5e-2):
                entries[i] = (rival, None, f"its result differs from ours by {apart:.2g}")
    timed = {rival: Timed(torch, once) for rival, once, _ in entries if once}
    timed["cublas"] = Timed(torch, o.matmul)
    measure(list(timed.values()), o.seconds)
    cublas = 2 * 8192**3 / statistics.median(timed.pop("cublas").samples) * 1e-9
    mine = statistics.median(timed[""].samples)
    for rival, once, reason in entries:
        t = timed.get(rival) if once else None
        median = statistics.median(t.samples) if t else None
        figure = lambda value: float(f"{value:.6g}")
        yield {"schema": 1, "device": "cuda:0", "kernel": plan.kernel.decode() if not rival else None,
               "direction": "forward", "dtype": point.dtype, "batch": point.batch, "heads_q": point.heads,
               "heads_kv": point.heads_kv, "head_dim": point.head_dim, "head_dim_v": point.head_dim_v,
               "seqlen_q": point.seqlen, "seqlen_kv": point.seqlen, "causal": point.causal, "window_left": point.window,
               "ms_min": t and figure(min(t.samples)), "ms_median": t and figure(median), "ms_max": t and figure(max(t.samples)),
               "tflops": t and figure(point.flops() / median * 1e-9), "peak_tflops": figure(cublas),
               "percent_of_peak": t and figure(100 * point.flops() / median * 1e-9 / cublas),
               "gbps": t and figure(point.bytes_ideal(size) / median * 1e-6), "bytes_ideal": point.bytes_ideal(size),
               "workspace_bytes": plan.workspace_bytes if not rival else None, "rival": rival or None, "set": point.name,
               "calls_a_graph": t and t.calls, "repeats": t and len(t.samples), "eager_us": t and figure(t.eager_us(torch)),
               "times_ours": figure(median / mine) if t and rival else None, "not_run": reason or None}


def table_line(rows):
    ours = rows[0]
    dims = str(ours["head_dim"]) if ours["head_dim"] == ours["head_dim_v"] else f'{ours["head_dim"]}/{ours["head_dim_v"]}'
    heads = str(ours["heads_q"]) if ours["heads_q"] == ours["heads_kv"] else f'{ours["heads_q"]}/{ours["heads_kv"]}'
    kind = "causal" if ours["causal"] else "full"
    if ours["window_left"] >= 0:
        kind = "window"
    best = min((r["ms_median"] for r in rows[1:] if r["ms_median"]), default=None)
    line = (f'{ours["set"]:<9}{ours["dtype"]:<5}{ours["batch"]:>4}{heads:>7}{dims:>9}{ours["seqlen_q"]:>7} {kind:<7}'
            f'{1e3 * ours["ms_median"]:>11.1f}{ours["tflops"]:>8.1f}')
    line += f'{best / ours["ms_median"]:>8.2f}' if best else f'{"-":>8}'
    for r in rows[1:]:
        line += f'  {r["rival"]} {r["tflops"]:.1f}' if r["tflops"] else f'  {r["rival"]} -'
    return line + f'  [eager us: {ours["eager_us"]:.1f}' + "".join(
        f', {r["rival"]} {r["eager_us"]:.1f}' for r in rows[1:] if r["eager_us"]) + "]"


def main():
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(root / "build/lib/libtilewise.so"))
    parser.add_argument("--output", default="")
    parser.add_argument("--sets", default="table,short,more")
    parser.add_argument("--kernel", default="", help="of ours; empty: the planner's choice")
    parser.add_argument("--seconds", type=float, default=0.2, help="of replays for each point")
    o = parser.parse_args()
    import torch
    torch.manual_seed(1)
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    product = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
    o.matmul = lambda: torch.matmul(a, b, out=product)
    ours = Ours(o.library)
    lines, output = [], open(o.output, "w") if o.output else None
    with torch.no_grad():
        for point in points_of(o.sets.split(",")):
            try:
                rows = list(run_point(torch, ours, point, o))
            except RuntimeError as e:
                print(f"{point.name} head_dim {point.head_dim} seqlen {point.seqlen}: {e}", file=sys.stderr)
                continue
            for row in rows:
                if output:
                    print(json.dumps(row), file=output, flush=True)
            lines.append(table_line(rows))
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}. us and TFLOP/s "
          "of ours; ours over the best rival (above 1: ours is faster); TFLOP/s of the rivals.")
    print(f'{"set":<9}{"type":<5}{"B":>4}{"heads":>7}{"dim":>9}{"S":>7} {"mask":<7}{"us":>11}{"ours":>8}{"ratio":>8}')
    print("\n".join(lines))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times this library's CUDA forward of few queries over long caches beside cuDNN and PyTorch's flash backend.

    bench/gpu_decode.py [--library build/lib/libtilewise.so] [--output decode.json] [--sets decode,paged,skewed,more]
                        [--reads libreads.so] [--kernel NAME] [--seconds S]

All in one process, in turns, on random data: graphs of at least 50 calls that walk caches of more than 256 MB in all,
so that every call finds nothing of its cache in L2. Shares are of the best read-only kernel of the same process
(--reads: a library with `read_kernels` and `read_kernel(n, data, bytes, sink, stream)`, made from
src/cuda/support/peak.cu; without it the shares are left out). One JSON object a line, the keys of gpu_bench.py.
"""

import argparse
import ctypes as c
import json
import statistics
import sys
from pathlib import Path

import gpu_bench
import torch_rival as tw

ROTATED_BYTES, LEAST_CALLS = 272 << 20, 50
HAS_KV_LENGTHS, I32 = 1 << 3, 4


class Point:
    def __init__(self, name, batch, heads, heads_kv, keys, head_dim=128, queries=1, page=0, lengths=None, dtype="bf16"):
        self.name, self.batch, self.heads, self.heads_kv, self.keys = name, batch, heads, heads_kv, keys
        self.head_dim, self.queries, self.page, self.lengths, self.dtype = head_dim, queries, page, lengths, dtype

    def cache_bytes(self, keys=None):
        total = sum(self.lengths) if self.lengths else self.batch * (keys or self.keys)
        return 2 * 2 * total * self.heads_kv * self.head_dim

    def text(self):
        where = f" page {self.page}" if self.page else ""
        kind = f" q {self.queries}" if self.queries > 1 else ""
        return f"b{self.batch} {self.heads}/{self.heads_kv} {self.keys} d{self.head_dim} {self.dtype}{kind}{where}"


ISSUE = [(1, 32, 8, 1024), (1, 32, 8, 8192), (1, 32, 8, 131072), (16, 32, 8, 8192), (64, 32, 8, 4096),
         (64, 64, 8, 8192), (128, 32, 32, 2048), (128, 128, 8, 4096)]


def points_of(sets):
    points = []
    if "decode" in sets:
        points += [Point("decode", *p) for p in ISSUE]
    if "paged" in sets:
        points += [Point("paged", 64, 32, 8, 4096, page=page) for page in (256, 64, 16, 3, 1)]
        points += [Point("paged", 16, 32, 8, 8192, page=page) for page in (256, 16, 1)]
    if "skewed" in sets:
        points += [Point("skewed", 64, 32, 8, 65536, page=16, lengths=[1024] * 63 + [65536]),
                   Point("skewed", 64, 32, 8, 2048, page=16)]
    if "more" in sets:
        points += [Point("more", 64, 32, 8, 4096, head_dim=64), Point("more", 64, 16, 8, 4096, head_dim=256),
                   Point("more", 64, 32, 8, 4096, queries=4), Point("more", 16, 32, 8, 8192, queries=16),
                   Point("more", 64, 32, 8, 4096, dtype="f16")]
    return points


class Call:
    """The caches of a point, as many as the L2 must not hold, and calls on each in turn."""

    def __init__(self, torch, ours, point, kernel):
        self.torch, self.point = torch, point
        dtype = getattr(torch, tw.DTYPES[point.dtype][2])
        code = tw.DTYPES[point.dtype][0]
        copies = max(1, -(-ROTATED_BYTES // point.cache_bytes()) if point.cache_bytes() < ROTATED_BYTES else 2)
        free = torch.cuda.mem_get_info()[0]
        make = lambda *shape: torch.randn(shape, device="cuda", dtype=dtype)
        lengths = point.lengths or [point.keys] * point.batch
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self.table = None
        if point.page:
            pages = [-(-n // point.page) for n in lengths]
            order = torch.randperm(sum(pages)) + 1
            table = torch.full((point.batch, max(pages)), -1, dtype=torch.int32)
            at = 0
            for b, n in enumerate(pages):
                table[b, :n] = order[at:at + n].int()
                at += n
            self.table = table.cuda()
            shape = (at + 1, point.page, point.heads_kv, point.head_dim)
        else:
            shape = (point.batch, point.keys, point.heads_kv, point.head_dim)
        bytes_of = 2 * 2 * shape[0] * shape[1] * shape[2] * shape[3]
        copies = max(1, min(copies, int(free * 0.8) // bytes_of))
        self.q = make(point.batch, point.queries, point.heads, point.head_dim)
        self.caches = [(make(*shape), make(*shape)) for _ in range(copies)]
        self.o = torch.empty_like(self.q)
        problem = ours.problem()
        problem.batch, problem.seqlen_q, problem.seqlen_kv = point.batch, point.queries, point.keys
        problem.heads_q, problem.heads_kv = point.heads, point.heads_kv
        problem.head_dim = problem.head_dim_v = point.head_dim
        problem.dtype_q = problem.dtype_k = problem.dtype_v = problem.dtype_o = code
        problem.causal, problem.alignment = int(point.queries > 1), 16
        if point.page:
            problem.page_size, problem.max_pages, problem.num_pages = point.page, self.table.shape[1], shape[0]
            problem.features |= ours.has_kv_lengths
        self.plan, limits = tw.Plan(), tw.Limits(-1, 0, kernel.encode() if kernel else None)
        ours.call("tilewise_plan_for_context", ours.context, c.byref(problem), c.byref(limits), c.byref(self.plan))
        ours.call("tilewise_prepare", ours.context, c.byref(self.plan))
        self.memory = torch.zeros(self.plan.workspace_bytes, dtype=torch.uint8, device="cuda")
        self.ours, self.tensors = ours, []
        for k, v in self.caches:
            tensors = tw.Tensors()
            for field, tensor, kind in (("q", self.q, code), ("k", k, code), ("v", v, code), ("o", self.o, code)):
                self.set(tensors, field, tensor, kind)
            if point.page:
                self.set(tensors, "page_table", self.table, ours.i32)
                self.set(tensors, "kv_lengths", self.lengths, ours.i32)
            self.tensors.append(tensors)

    def set(self, tensors, field, tensor, kind):
        view = tw.view(tensor, kind)
        view.device_kind = gpu_bench.CUDA
        setattr(tensors, field, view)

    def run(self, n):
        stream = c.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        workspace = tw.Workspace(self.memory.data_ptr(), self.plan.workspace_bytes)
        if self.ours.library.tilewise_forward(self.ours.context, c.byref(self.plan),
                                              c.byref(self.tensors[n % len(self.tensors)]), workspace, stream,
                                              c.byref(self.ours.error)):
            raise RuntimeError(self.ours.error.message.decode())
        return self.o

    def rivals(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        if self.point.page or self.point.queries > 1:  # bottom-right causal and pages are not PyTorch's
            return []
        q = self.q.transpose(1, 2)
        theirs = [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in self.caches]
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        options = {"enable_gqa": True} if self.point.heads != self.point.heads_kv else {}
        found = []
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            def once(n, backend=backend):
                with sdpa_kernel(backend):
                    return sdpa(q, *theirs[n % len(theirs)], **options).transpose(1, 2)
            found.append((name, once))
        return found

    def reference(self):
        """fp32 attention of the first sequence that has the mean length or more, for the first two heads."""
        torch, p = self.torch, self.point
        b = p.batch - 1
        n = int(self.lengths[b])
        k, v = self.caches[0]
        if self.table is not None:
            rows = torch.arange(n, device="cuda")
            pages = self.table[b].long()[rows // p.page]
            k, v = k[pages, rows % p.page], v[pages, rows % p.page]
        else:
            k, v = k[b, :n], v[b, :n]
        k, v = k[:, 0].float(), v[:, 0].float()
        s = self.q[b, :, 0].float() @ k.T / p.head_dim ** 0.5
        if p.queries > 1:
            position = torch.arange(n - p.queries, n, device="cuda")[:, None]
            s = s.masked_fill(torch.arange(n, device="cuda")[None] > position, float("-inf"))
        return s.softmax(-1) @ v, b


class Timed:
    def __init__(self, torch, call, copies):
        self.samples, self.torch = [], torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for n in range(2):
                call(n)
        torch.cuda.synchronize()
        self.calls = max(LEAST_CALLS, copies)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for n in range(self.calls):
                call(n)
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.replay()

    def replay(self):
        self.start.record()
        self.graph.replay()
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end) / self.calls


class Reads:
    """The best of several kernels that only read."""

    def __init__(self, torch, path):
        self.torch, self.library = torch, c.CDLL(path)
        self.data = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device="cuda")
        self.sink = torch.zeros(256, device="cuda")
        self.names = list(range(self.library.read_kernels()))

    def best(self):
        rates = []
        for n in self.names:
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            stream = c.c_void_p(self.torch.cuda.current_stream().cuda_stream)
            for _ in range(2):
                start.record()
                self.library.read_kernel(n, c.c_void_p(self.data.data_ptr()), c.c_int64(self.data.numel()),
                                         c.c_void_p(self.sink.data_ptr()), stream)
                end.record()
                end.synchronize()
            rates.append(self.data.numel() / start.elapsed_time(end) * 1e-9)
        return rates


def run_point(torch, ours, point, o):
    call = Call(torch, ours, point, o.kernel)
    expected, b = call.reference()
    apart = (call.run(0)[b, :, 0].float() - expected).abs().max().item()
    if not apart <= 2e-2:
        raise RuntimeError(f"{point.text()}: the result differs from fp32 by {apart:.3g}")
    timed = {"": Timed(torch, call.run, len(call.caches))}
    reasons = {}
    for name, once in call.rivals() if o.rivals else []:
        try:
            timed[name] = Timed(torch, once, len(call.caches))
        except RuntimeError as e:
            reasons[name] = str(e).splitlines()[0][:100]
    round_ms = sum(t.replay() * t.calls for t in timed.values())
    peaks = []
    for _ in range(int(min(21, max(3, 1e3 * o.seconds / round_ms)))):
        for t in timed.values():
            t.samples.append(t.replay())
        if o.peak:
            peaks.append(max(o.peak.best()))
    peak = statistics.median(peaks) if peaks else None
    bytes_ideal = point.cache_bytes() + 2 * 2 * call.q.numel()
    for name, t in timed.items():
        median = statistics.median(t.samples)
        rate = bytes_ideal / median * 1e-9
        yield {"schema": 1, "device": "cuda:0", "kernel": call.plan.kernel.decode() if not name else None,
               "direction": "decode", "dtype": point.dtype, "batch": point.batch, "heads_q": point.heads,
               "heads_kv": point.heads_kv, "head_dim": point.head_dim, "seqlen_q": point.queries,
               "seqlen_kv": point.keys, "page_size": point.page, "causal": point.queries > 1, "set": point.name,
               "ms_min": min(t.samples), "ms_median": median, "ms_max": max(t.samples), "gbps": 1e3 * rate,
               "peak_gbps": peak and 1e3 * peak, "percent_of_peak": peak and 100 * rate / peak,
               "bytes_ideal": bytes_ideal, "workspace_bytes": call.plan.workspace_bytes if not name else None,
               "rival": name or None, "calls_a_graph": t.calls, "caches": len(call.caches), "largest_difference": apart,
               "times_ours": median / statistics.median(timed[""].samples) if name else None, "not_run": reasons or None}


def table_line(point, rows):
    ours = rows[0]
    share = f' {ours["percent_of_peak"]:5.1f} %' if ours["percent_of_peak"] else ""
    line = f'{point.text():<34}{1e3 * ours["ms_median"]:>9.2f} us {ours["gbps"] * 1e-3:5.2f} TB/s{share}'
    for r in rows[1:]:
        line += f'  {r["rival"]} {1e3 * r["ms_median"]:.2f} ({r["times_ours"]:.2f}x)'
    return line


def main():
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(root / "build/lib/libtilewise.so"))
    parser.add_argument("--output", default="")
    parser.add_argument("--sets", default="decode,paged,skewed,more")
    parser.add_argument("--only", default="", help="points whose text contains one of these, separated by commas")
    parser.add_argument("--reads", default="")
    parser.add_argument("--kernel", default="", help="of ours; empty: the planner's choice")
    parser.add_argument("--seconds", type=float, default=0.1, help="of replays for each point")
    parser.add_argument("--no-rivals", dest="rivals", action="store_false")
    o = parser.parse_args()
    import torch
    torch.manual_seed(1)
    ours = gpu_bench.Ours(o.library)
    ours.i32, ours.has_kv_lengths = I32, HAS_KV_LENGTHS
    o.peak = Reads(torch, o.reads) if o.reads else None
    if o.peak:
        print("read-only kernels, TB/s:", " ".join(f"{rate:.2f}" for rate in o.peak.best()))
    output = open(o.output, "w") if o.output else None
    with torch.no_grad():
        for point in points_of(o.sets.split(",")):
            if o.only and not any(text in point.text() for text in o.only.split(",")):
                continue
            try:
                rows = list(run_point(torch, ours, point, o))
            except (RuntimeError, SystemExit) as e:
                print(f"{point.text()}: {e}")
                continue
            for row in rows if output else []:
                print(json.dumps(row), file=output, flush=True)
            print(table_line(point, rows), flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

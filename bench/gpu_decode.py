#!/usr/bin/env python3
"""Times this library's CUDA forward of few queries over long caches beside cuDNN and PyTorch's flash backend.

"cudnn" is cuDNN through PyTorch's operator, "cudnn_own" by its own front end where that is installed (cudnn_rival.py), in pages
and with several causal queries too.

    bench/gpu_decode.py [--output decode.json] [--sets decode,paged,skewed,more,wide,quantised] [--only TEXT,...]
                        [--kernel NAME] [--seconds S] [--no-rivals] [--no-reads]

All in one process, in turns, on random data: graphs of at least 50 calls that walk caches of more than 256 MB in all,
so that every call finds nothing of its cache in L2. Among the rivals are kernels that only read the same caches, in several
ways (bench/read_only.cu, build/lib/libtilewise_read.so): the fastest of them, "read", is what a point could take at best. One
JSON object a line, the keys of gpu_bench.py.
"""

import ctypes as c
import itertools
import statistics
from pathlib import Path

import cudnn_rival
import gpu_common as gpu
import torch_rival as tw

ROTATED_BYTES, LEAST_CALLS = 272 << 20, 50


class Point(gpu.Point):
    """`page` rows of keys a page, 0 = not paged; `lengths` of the sequences, or None: all have `keys`; `stored` is the
    type of a quantised cache, which has a scale for each head and page or sequence. Where head_dim_v is not head_dim, v is
    the beginning of k's rows (latent attention), which are read once."""

    def __init__(self, name, batch, heads, heads_kv, keys, head_dim=128, queries=1, page=0, lengths=None, dtype="bf16", stored="",
                 head_dim_v=None):
        super().__init__(name, batch, heads, head_dim, queries, queries > 1, heads_kv, head_dim_v, dtype=dtype, seqlen_kv=keys)
        self.page, self.lengths, self.stored = page, lengths or [keys] * batch, stored

    def cache_bytes(self, rows=0):
        """Of k and v: of `rows` rows of keys, 0 = the sequences'."""
        size = (tw.DTYPES | tw.STORED)[self.stored or self.dtype][1]
        columns = 2 * self.head_dim if self.head_dim_v == self.head_dim else self.head_dim
        return size * (rows or sum(self.lengths)) * self.heads_kv * columns

    def flops(self):
        """Of pairs that are seen, where all queries see nearly all keys."""
        return 2 * sum(self.lengths) * self.seqlen * self.heads * (self.head_dim + self.head_dim_v)

    def text(self):
        where = f" page {self.page}" if self.page else ""
        kind = f" q {self.seqlen}" if self.seqlen > 1 else ""
        dtype = f"{self.dtype} over {self.stored}" if self.stored else self.dtype
        return f"b{self.batch} {self.heads}/{self.heads_kv} {self.seqlen_kv} d{self.head_dim} {dtype}{kind}{where}"


DECODE = [(1, 32, 8, 1024), (1, 32, 8, 8192), (1, 32, 8, 131072), (16, 32, 8, 8192), (64, 32, 8, 4096),
          (64, 64, 8, 8192), (128, 32, 32, 2048), (128, 128, 8, 4096)]


def points_of(sets):
    points = []
    if "decode" in sets:
        points += [Point("decode", *p) for p in DECODE]
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
    if "wide" in sets:
        latent = dict(head_dim=576, head_dim_v=512)
        points += [Point("wide", 16, 32, 8, 8192, queries=n) for n in (8, 16, 32, 64)]
        points += [Point("wide", *p, head_dim=256) for p in ((1, 16, 8, 8192), (64, 16, 8, 4096), (16, 32, 4, 8192))]
        points += [Point("wide", 64, 16, 8, 4096, head_dim=256, page=16)]
        points += [Point("wide", *p, **latent) for p in ((1, 16, 1, 8192), (1, 128, 1, 32768), (64, 16, 1, 4096), (64, 64, 1, 4096),
                                                         (64, 128, 1, 4096), (128, 16, 1, 8192))]
        points += [Point("wide", 64, 16, 1, 4096, page=64, **latent), Point("wide", 64, 16, 1, 4096, queries=4, **latent)]
    if "quantised" in sets:
        points += [Point("quantised", *p, stored="f8e4m3") for p in DECODE]
        points += [Point("quantised", 64, 32, 8, 4096, page=16, stored="f8e4m3"), Point("quantised", 64, 32, 8, 4096, stored="i8")]
    return points


class Reads:
    """The kernels that only read, by name: (k, v) -> None on torch's current stream."""

    def __init__(self, torch, library):
        self.ways, self.torch = {}, torch
        path = Path(library).parent / "libtilewise_read.so"
        if not library or not path.exists():
            return
        self.library, self.sink = c.CDLL(str(path)), torch.zeros(1, device="cuda")
        self.library.tilewise_read_name.restype = c.c_char_p
        run = self.library.tilewise_read_run
        run.argtypes = [c.c_int, c.c_void_p, c.c_void_p, c.c_int64, c.c_void_p, c.c_void_p]
        for way in itertools.count():
            name = self.library.tilewise_read_name(way)
            if name is None:
                break
            self.ways["read: " + name.decode()] = lambda k, v, way=way: self.read(run, way, k, v)

    def read(self, run, way, k, v):
        halves = (k.data_ptr(), v.data_ptr(), k.nbytes)
        if halves[0] == halves[1]:  # v is in k
            halves = (halves[0], halves[0] + k.nbytes // 2, k.nbytes // 2)
        error = run(way, *halves, self.sink.data_ptr(), self.torch.cuda.current_stream().cuda_stream)
        if error:
            raise RuntimeError(f"CUDA error {error}")


def paged(torch, point):
    """A page table in random order, page 0 unused, and how many pages there are."""
    pages = [-(-n // point.page) for n in point.lengths]
    order = torch.randperm(sum(pages)) + 1
    table = torch.full((point.batch, max(pages)), -1, dtype=torch.int32)
    at = 0
    for b, n in enumerate(pages):
        table[b, :n] = order[at:at + n].int()
        at += n
    return table.cuda(), at + 1


class Call:
    """The caches of a point, as many as the L2 must not hold, and calls on each in turn."""

    def __init__(self, torch, ours, point, kernel):
        self.torch, self.point = torch, point
        dtype = getattr(torch, tw.DTYPES[point.dtype][2])
        make = lambda *shape: torch.randn(shape, device="cuda", dtype=dtype)
        self.lengths = torch.tensor(point.lengths, dtype=torch.int32, device="cuda")
        self.table, blocks = paged(torch, point) if point.page else (None, point.batch)
        shape = (blocks, point.page or point.seqlen_kv, point.heads_kv, point.head_dim)
        fit = int(torch.cuda.mem_get_info()[0] * 0.8) // point.cache_bytes(shape[0] * shape[1])
        wanted = -(-ROTATED_BYTES // point.cache_bytes()) if point.cache_bytes() < ROTATED_BYTES else 2
        self.q = make(point.batch, point.seqlen, point.heads, point.head_dim)
        stored = (lambda x: x) if not point.stored else lambda x: (x * 24).to(getattr(torch, tw.STORED[point.stored][2]))
        self.caches = [(stored(make(*shape)), stored(make(*shape))) for _ in range(max(1, min(wanted, fit)))]
        self.scales = [(torch.rand(blocks, point.heads_kv, device="cuda") + 0.5) / 24 for _ in "kv"]
        if point.head_dim_v != point.head_dim:
            self.caches = [(k, k[..., :point.head_dim_v]) for k, _ in self.caches]
        self.o = make(point.batch, point.seqlen, point.heads, point.head_dim_v)
        problem, self.tensors = ours.problem_of(point), []
        if point.page:
            problem.page_size, problem.max_pages, problem.num_pages = point.page, self.table.shape[1], blocks
            problem.features |= tw.HAS_KV_LENGTHS
        problem.features |= tw.HAS_KV_SCALES if point.stored else 0
        for k, v in self.caches:
            tensors = tw.Tensors()
            gpu.fill(problem, tensors, point.dtype, q=self.q, o=self.o)
            gpu.fill(problem, tensors, point.stored or point.dtype, k=k, v=v)
            if point.stored:
                tensors.k_scales, tensors.v_scales = (tw.view(x, tw.DTYPES["f32"][0]) for x in self.scales)
            if point.page:
                tensors.page_table, tensors.kv_lengths = (tw.view(x, tw.INT32) for x in (self.table, self.lengths))
            self.tensors.append(tensors)
        self.plan = ours.plan(problem, kernel)
        self.enqueue = ours.launcher(torch, self.plan)

    def run(self, n):
        self.enqueue(c.byref(self.tensors[n]))
        return self.o

    def in_turn(self, call):
        """Calls of call(n) for the n-th cache, one after the other."""
        turns = itertools.cycle(range(len(self.caches)))
        return lambda: call(next(turns))

    def rivals(self):
        """{name: call of the n-th cache, or why not}; bytes are nobody's here, bottom-right causal and pages not PyTorch's."""
        point = self.point
        if point.stored:
            return {}
        q = self.q.transpose(1, 2)
        theirs = [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in self.caches]
        names = ("cudnn", "flash") if not point.page and not point.causal else ()
        calls = {name: gpu.sdpa_of(self.torch, point, name) for name in names}
        paged = {"lengths": self.lengths, "table": self.table.clamp(min=0), "rows_kv": point.seqlen_kv} if point.page else {}
        try:
            calls[cudnn_rival.NAME] = cudnn_rival.Attention(self.torch, q, *theirs[0], causal=point.causal, **paged)
        except RuntimeError as e:
            calls[cudnn_rival.NAME] = gpu.reason_of(e)
        return {name: call if isinstance(call, str) else lambda n, call=call: call(q, *theirs[n]) for name, call in calls.items()}

    def reference(self):
        """fp32 attention of the last sequence's first head, and which sequence that is."""
        torch, p = self.torch, self.point
        b = p.batch - 1
        n = int(self.lengths[b])
        k, v = self.caches[0]
        if p.stored:
            k, v = (x.float() * of[:, None, :, None] for x, of in zip((k, v), self.scales))
        if self.table is not None:
            rows = torch.arange(n, device="cuda")
            pages = self.table[b].long()[rows // p.page]
            k, v = k[pages, rows % p.page], v[pages, rows % p.page]
        else:
            k, v = k[b, :n], v[b, :n]
        k, v = k[:, 0].float(), v[:, 0].float()
        s = self.q[b, :, 0].float() @ k.T / p.head_dim ** 0.5
        if p.causal:
            position = torch.arange(n - p.seqlen, n, device="cuda")[:, None]
            s = s.masked_fill(torch.arange(n, device="cuda")[None] > position, float("-inf"))
        return s.softmax(-1) @ v, b


def run_point(torch, ours, reads, point, o):
    call = Call(torch, ours, point, o.kernel)
    expected, b = call.reference()
    apart = (call.run(0)[b, :, 0].float() - expected).abs().max().item()
    if not apart <= 2e-2:
        raise RuntimeError(f"{point.text()}: the result differs from fp32 by {apart:.3g}")
    calls = max(LEAST_CALLS, len(call.caches))
    timed, reasons = {"": gpu.Timed(torch, call.in_turn(call.run), calls)}, {}
    for name, once in call.rivals().items() if o.rivals else []:
        try:
            if isinstance(once, str):
                raise RuntimeError(once)
            apart_from_ours = (once(0).transpose(1, 2).float() - call.run(0).float()).abs().max().item()
            if not apart_from_ours <= 2e-2:
                raise RuntimeError(f"its result differs from ours by {apart_from_ours:.2g}")
            timed[name] = gpu.Timed(torch, call.in_turn(once), calls)
        except RuntimeError as e:
            reasons[name] = gpu.reason_of(e)
    if sum(point.lengths) == point.batch * point.seqlen_kv:
        for name, once in reads.ways.items():
            timed[name] = gpu.Timed(torch, call.in_turn(lambda n, once=once: once(*call.caches[n])), calls)
    samples = gpu.in_turns({name: t.replay for name, t in timed.items()}, gpu.rounds_of(timed.values(), o.seconds, 21))
    ours_ms = statistics.median(samples[""])
    bytes_ideal = point.cache_bytes() + 2 * 2 * call.q.numel()
    for name in (*timed, *reasons):
        median = statistics.median(samples[name]) if name in samples else None
        yield gpu.row_of(point, "decode", call.plan, name, samples.get(name), reasons.get(name), page_size=point.page,
                         gbps=median and gpu.figure(bytes_ideal / median * 1e-6), bytes_ideal=bytes_ideal, calls_a_graph=calls,
                         tflops=median and gpu.figure(point.flops() / median * 1e-9),
                         caches=len(call.caches), largest_difference=apart,
                         times_ours=gpu.figure(median / ours_ms) if name and median else None, text=point.text())


def table_line(rows):
    ours = rows[0]
    line = f'{ours["text"]:<34}{1e3 * ours["ms_median"]:>9.2f} us {ours["gbps"] * 1e-3:5.2f} TB/s {ours["tflops"]:4.0f} TFLOP/s'
    reads = [r for r in rows if (r["rival"] or "").startswith("read: ")]
    if reads:
        best = min(reads, key=lambda r: r["ms_median"])
        line += f'  read {1e3 * best["ms_median"]:.2f} ({100 * best["times_ours"]:.1f} %, {best["rival"][6:]})'
    for r in rows[1:]:
        if r in reads:
            continue
        line += f'  {r["rival"]} {1e3 * r["ms_median"]:.2f} ({r["times_ours"]:.2f}x)' if r["ms_median"] else f'  {r["rival"]} -'
    return line


def main():
    parser = gpu.parser_of(__doc__)
    parser.add_argument("--sets", default="decode,paged,skewed,more")
    parser.add_argument("--only", default="", help="points whose text contains one of these, separated by commas")
    parser.add_argument("--seconds", type=float, default=0.1, help="of replays for each point")
    parser.add_argument("--no-rivals", dest="rivals", action="store_false")
    parser.add_argument("--no-reads", dest="reads", action="store_false")
    o = parser.parse_args()
    torch = gpu.torch_on_cuda()
    ours = gpu.Ours(o.library)
    reads = Reads(torch, o.library if o.reads else "")
    points = [p for p in points_of(o.sets.split(",")) if any(text in p.text() for text in o.only.split(","))]
    with torch.no_grad():
        for line in gpu.lines_of(points, lambda point: run_point(torch, ours, reads, point, o), table_line, o.output,
                                 (RuntimeError, SystemExit)):
            print(line, flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

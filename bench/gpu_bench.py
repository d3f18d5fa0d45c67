#!/usr/bin/env python3
"""Times this library's CUDA forward beside cuDNN and PyTorch's flash and memory-efficient backends.

"cudnn" is cuDNN through PyTorch's operator, "cudnn_own" by its own front end where that is installed (cudnn_rival.py).

    bench/gpu_bench.py [--output bench.json] [--sets table,short,batches,more] [--kernel NAME] [--seconds S]

"three-step", for short sequences, is matmul, softmax and matmul of PyTorch.

All in one process, in turns, on random data: graph replays timed by events (at least 50 calls a graph where a call
is short), then eager calls with the host's time. cuBLAS on 8192^3 runs in between, as the clock's witness. One JSON
object a line (the keys of `tilewise bench --json`, schema 1, and `eager_us`); a short table on the terminal last.
FLOPs: 4 head_dim a pair (2 d + 2 d_v), causal squares as half; windows by visible pairs.
"""

import statistics
import time

import cudnn_rival
import gpu_common as gpu
import torch_rival as tw
from gpu_common import Point, figure


def pairs_of(point):
    s = point.seqlen
    if point.window >= 0:
        return sum(min(i, point.window) + 1 for i in range(s))
    return s * s * (0.5 if point.causal else 1.0)


def flops_of(point):
    return 2.0 * (point.head_dim + point.head_dim_v) * pairs_of(point) * point.heads * point.batch


def bytes_ideal_of(point, size):
    return point.batch * point.seqlen * size * (point.heads + point.heads_kv) * (point.head_dim + point.head_dim_v)


def points_of(sets):
    points = []
    if "table" in sets:  # batch x seqlen 16384, 2048 channels
        points += [Point("table", 16384 // s, 2048 // d, d, s, causal)
                   for d in (64, 128, 256) for s in (512, 2048, 8192, 16384) for causal in (False, True)]
    if "short" in sets:
        points += [Point("short", b, 16, 64, s, False) for s in (16, 32, 64, 128, 256) for b in (1, 64, 512)]
        points += [Point("short", 512, 16, 64, 256, True)]
    if "batches" in sets:
        points += [Point("batches", b, 16, 64, s, False) for s in (16, 64, 256) for b in (1, 2, 8, 32, 64, 128, 512, 1024)]
    if "more" in sets:
        points += [Point("gqa", 1, 64, 128, s, True, heads_kv=8) for s in (2048, 8192, 32768)]
        points += [Point("d192/128", 2, 16, 192, 8192, True, head_dim_v=128), Point("d96", 2, 16, 96, 8192, False)]
        points += [Point("window", 1, 64, 64, 32768, True, heads_kv=8, window=1023)]
        points += [Point("f16", 2, 16, 128, 8192, False, dtype="f16"), Point("f32", 2, 32, 64, 8192, False, dtype="f32")]
    return points


def flash_window(torch, point, q, k, v):
    """PyTorch's flash kernel by its own name: scaled_dot_product_attention takes no window."""
    return torch.ops.aten._flash_attention_forward(q, k, v, None, None, point.seqlen, point.seqlen, 0.0, True, False,
                                                   window_size_left=point.window, window_size_right=0)[0].transpose(1, 2)


def three_steps(torch, point, q, k, v):
    weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)) * point.head_dim**-0.5, dim=-1)
    return torch.matmul(weights, v)


def rivals_of(torch, point, q, k, v):
    """(name, call, "") of what PyTorch can run; (name, None, reason) of what it cannot."""
    theirs = [t.transpose(1, 2) for t in (q, k, v)]
    found = []
    for name in gpu.BACKENDS:
        if name == "efficient" and point.name not in ("short", "batches", "f32"):
            continue
        if point.window >= 0 and name != "flash":
            found.append((name, None, "no windows through PyTorch"))
            continue
        sdpa = gpu.sdpa_of(torch, point, name)
        once = (lambda: flash_window(torch, point, q, k, v)) if point.window >= 0 else lambda sdpa=sdpa: sdpa(*theirs)
        try:
            once()
            found.append((name, once, ""))
        except RuntimeError as e:
            found.append((name, None, gpu.reason_of(e)))
    if point.name in ("short", "batches") and not point.causal:
        found.append(("three-step", lambda: three_steps(torch, point, *theirs), ""))
    try:
        own = cudnn_rival.Attention(torch, *theirs, causal=point.causal, window=point.window)
        found.append((cudnn_rival.NAME, lambda: own(*theirs), ""))
    except RuntimeError as e:
        found.append((cudnn_rival.NAME, None, gpu.reason_of(e)))
    return found


def eager_us(torch, call, ms):
    count = 50 if ms < 1 else 3
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / count


def run_point(torch, ours, point, o):
    size, name = tw.DTYPES[point.dtype][1:]
    dtype = getattr(torch, name)
    shape = lambda heads, dim: (point.batch, point.seqlen, heads, dim)
    q = torch.randn(shape(point.heads, point.head_dim), device="cuda").to(dtype)
    k = torch.randn(shape(point.heads_kv, point.head_dim), device="cuda").to(dtype)
    v = torch.randn(shape(point.heads_kv, point.head_dim_v), device="cuda").to(dtype)
    out = torch.empty(shape(point.heads, point.head_dim_v), device="cuda", dtype=dtype)
    problem, tensors = ours.problem_of(point), tw.Tensors()
    gpu.fill(problem, tensors, point.dtype, q=q, k=k, v=v, o=out)
    call, plan = ours.bind(torch, problem, tensors, o.kernel)
    call()
    torch.cuda.synchronize()
    entries = [("", call, "")] + rivals_of(torch, point, q, k, v)
    for i, (rival, once, _) in enumerate(entries):
        if rival and once:
            apart = (once().transpose(1, 2).float() - out.float()).abs().max().item()
            if not apart <= (5e-3 if size == 4 else 5e-2):
                entries[i] = (rival, None, f"its result differs from ours by {apart:.2g}")
    timed = {rival: gpu.Timed(torch, once) for rival, once, _ in entries if once}
    timed["cublas"] = gpu.Timed(torch, o.matmul)
    samples = gpu.in_turns({name: t.replay for name, t in timed.items()}, gpu.rounds_of(timed.values(), o.seconds, 31))
    cublas = 2 * 8192**3 / statistics.median(samples["cublas"]) * 1e-9
    for rival, once, reason in entries:
        t, median = timed.get(rival), statistics.median(samples[rival]) if once else None
        tflops = once and flops_of(point) / median * 1e-9
        yield gpu.row_of(
            point, "forward", plan, rival, samples.get(rival), reason, tflops=once and figure(tflops), peak_tflops=figure(cublas),
            percent_of_peak=once and figure(100 * tflops / cublas), bytes_ideal=bytes_ideal_of(point, size),
            gbps=once and figure(bytes_ideal_of(point, size) / median * 1e-6), calls_a_graph=t and t.calls,
            eager_us=once and figure(eager_us(torch, once, median)),
            times_ours=figure(median / statistics.median(samples[""])) if once and rival else None)


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
    parser = gpu.parser_of(__doc__)
    parser.add_argument("--sets", default="table,short,more")
    parser.add_argument("--seconds", type=float, default=0.2, help="of replays for each point")
    o = parser.parse_args()
    torch = gpu.torch_on_cuda()
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    product = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
    o.matmul = lambda: torch.matmul(a, b, out=product)
    ours = gpu.Ours(o.library)
    with torch.no_grad():
        points = points_of(o.sets.split(","))
        lines = list(gpu.lines_of(points, lambda point: run_point(torch, ours, point, o), table_line, o.output))
    print(f"{gpu.versions(torch)}, {cudnn_rival.versions()}. us and TFLOP/s "
          "of ours; ours over the best rival (above 1: ours is faster); TFLOP/s of the rivals.")
    print(f'{"set":<9}{"type":<5}{"B":>4}{"heads":>7}{"dim":>9}{"S":>7} {"mask":<7}{"us":>11}{"ours":>8}{"ratio":>8}')
    print("\n".join(lines))


if __name__ == "__main__":
    main()

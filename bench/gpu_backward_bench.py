#!/usr/bin/env python3
"""Times this library's CUDA backward, plain and deterministic, beside that of cuDNN and FlashAttention through PyTorch.

    bench/gpu_backward_bench.py [--output bench.json] [--sets table,more] [--dims 64,128] [--lengths 512,2048,8192,16384]
                                [--kernel NAME] [--dtypes bf16,f32] [--rounds N]

All in one process, in turns, on random data: graph replays timed by events, the rivals' of autograd's backward ("eager"
stands beside a rival that cannot be captured: enough calls between two events to hide what a launch costs the host). Each
result is compared with ours. f32: beside PyTorch's memory-efficient kernel, the only one that takes it, and our own row on
plain FMA. table: batch x seqlen is 16384 with 2048 channels of q. more: head_dim 96 and 192/128, 64 heads over 8. One JSON
object a line; a short table on the terminal last. FLOPs: 6 head_dim + 4 head_dim_v a pair, causal squares as half.
"""

import statistics

import gpu_common as gpu
import torch_rival as tw
from gpu_bench import pairs_of
from gpu_common import Point


DETERMINISTIC, SIMT = "tilewise-deterministic", "backward_simt_any_64x64"


def flops_of(point):
    return 2.0 * (3 * point.head_dim + 2 * point.head_dim_v) * pairs_of(point) * point.heads * point.batch


def points_of(o):
    points = gpu.training_points("table", o) if "table" in o.sets else []
    if "more" in o.sets:
        for s in (2048, 8192):
            points += [Point("gqa", 8192 // s, 64, 128, s, True, heads_kv=8)]
            points += [Point("d96", 16384 // s, 16, 96, s, causal) for causal in (False, True)]
            points += [Point("d192/128", 16384 // s, 16, 192, s, causal, head_dim_v=128) for causal in (False, True)]
    return points


def rivals_of(torch, point, stream, q, k, v, dout):
    """name -> a call that returns dq, dk, dv as PyTorch lays them; or the reason why there is none."""
    found = {}
    for name in ("efficient",) if point.dtype == "f32" else ("cudnn", "flash"):
        theirs = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]
        try:
            with torch.cuda.stream(stream):
                out = gpu.sdpa_of(torch, point, name)(*theirs)
            theirs_dout = dout.transpose(1, 2)
            call = lambda out=out, theirs=theirs, theirs_dout=theirs_dout: torch.autograd.grad(
                out, theirs, theirs_dout, retain_graph=True)
            call()
            found[name] = call
        except RuntimeError as e:
            found[name] = gpu.reason_of(e)
    return found


def run_point(torch, ours, point, o):
    dtype = getattr(torch, tw.DTYPES[point.dtype][2])
    of = lambda heads, dim: torch.randn(point.batch, point.seqlen, heads, dim, device="cuda").to(dtype)
    q, k, v, dout = (of(point.heads, point.head_dim), of(point.heads_kv, point.head_dim),
                     of(point.heads_kv, point.head_dim_v), of(point.heads, point.head_dim_v))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    rivals = rivals_of(torch, point, stream, q, k, v, dout)
    forward, problem, tensors, gradients = ours.training_of(torch, point, q, k, v, dout)
    forward()
    torch.cuda.synchronize()
    call, plan = ours.bind(torch, problem, tensors, o.kernel)
    problem.deterministic = 1
    calls = {"": call, DETERMINISTIC: ours.bind(torch, problem, tensors, o.kernel)[0]}
    if point.dtype == "f32" and b"simt" not in plan.kernel:
        calls["tilewise-simt"] = ours.bind(torch, problem, tensors, SIMT)[0]
    reasons = {name: rival for name, rival in rivals.items() if isinstance(rival, str)}
    calls |= {name: rival for name, rival in rivals.items() if name not in reasons}
    for mine in ("", DETERMINISTIC):
        calls[mine]()
        torch.cuda.synchronize()
        for name in set(rivals) & set(calls):
            for (field, got), theirs in zip(gradients.items(), calls[name]()):
                apart = ((theirs.transpose(1, 2).float() - got.float()).abs().max() / got.float().abs().max()).item()
                if not apart <= (2e-4 if point.dtype == "f32" else 2e-2):
                    said = f"{field} differs from {mine or 'ours'} by {apart:.2g} of its maximum; "
                    reasons[name] = reasons.get(name, "") + said
    timed, eager = {}, set()
    for name, one in calls.items():
        try:
            timed[name] = gpu.Timed(torch, one, stream=stream)
        except RuntimeError:
            torch.cuda.synchronize()
            timed[name] = gpu.Eager(torch, one)
            eager.add(name)
    samples = gpu.in_turns({name: t.replay for name, t in timed.items()}, o.rounds)
    for name in list(calls) + [n for n in reasons if n not in calls]:
        times = samples.get(name)
        yield gpu.row_of(point, "backward", plan, name, times, reasons.get(name),
                         deterministic=name == DETERMINISTIC, eager=name in eager,
                         tflops=times and gpu.figure(flops_of(point) / statistics.median(times) * 1e-9))


def table_line(rows):
    mine = rows[0]
    kind = "causal" if mine["causal"] else "full"
    dims = "/".join(dict.fromkeys(str(mine[f]) for f in ("head_dim", "head_dim_v")))
    heads = ":".join(dict.fromkeys(str(mine[f]) for f in ("heads_q", "heads_kv")))
    line = (f'{mine["dtype"]:<5}{heads:<6}d{dims:<8}S{mine["seqlen_q"]:<6}{kind:<7}'
            f'{1e3 * mine["ms_median"]:>9.1f} us {mine["tflops"]:>6.1f}')
    for r in rows[1:]:
        if r["rival"] == DETERMINISTIC:
            line += f'  deterministic {r["tflops"]:.1f} ({100 * mine["ms_median"] / r["ms_median"]:.0f} %)'
        elif r["tflops"]:
            line += f'  {r["rival"]}{" eager" * r["eager"]} {r["tflops"]:.1f} ({r["ms_median"] / mine["ms_median"]:.2f}x)'
        if r["not_run"]:
            line += f'  [{r["rival"]}: {r["not_run"]}]'
    return line


def main():
    parser = gpu.training_parser_of(__doc__, "512,2048,8192,16384")
    parser.add_argument("--sets", default="table")
    o = parser.parse_args()
    o.sets = o.sets.split(",")
    torch = gpu.torch_on_cuda()
    ours = gpu.Ours(o.library)
    print(f"{gpu.versions(torch)}; us and TFLOP/s of ours; deterministic: TFLOP/s, share of the plain speed; rivals: TFLOP/s, "
          "their time over ours", flush=True)
    for line in gpu.lines_of(points_of(o), lambda point: run_point(torch, ours, point, o), table_line, o.output):
        print(line, flush=True)


if __name__ == "__main__":
    main()

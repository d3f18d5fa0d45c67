#!/usr/bin/env python3
"""Times this library's CUDA backward beside that of cuDNN and FlashAttention through PyTorch.

    bench/gpu_backward_bench.py [--output bench.json] [--dims 64,128] [--lengths 512,2048,8192,16384] [--kernel NAME]
                                [--dtypes bf16,f32] [--deterministic] [--rounds N]

All in one process, in turns, on random data: enough calls between two events to hide what a launch costs the host
(the rivals' backward through autograd); each result is compared with ours. f32: beside PyTorch's memory-efficient
kernel, the only one that takes it, and our own row on plain FMA. batch x seqlen is 16384 with 2048 channels of q. One
JSON object a line; a short table on the terminal last. FLOPs: 10 head_dim a pair, causal squares as half.
"""

import statistics

import gpu_common as gpu
import torch_rival as tw
from gpu_bench import flops_of


SIMT = "backward_simt_any_64x64"


def rivals_of(torch, point, q, k, v, dout):
    """name -> a call that returns dq, dk, dv as PyTorch lays them; or the reason why there is none."""
    found = {}
    for name in ("efficient",) if point.dtype == "f32" else ("cudnn", "flash"):
        theirs = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]
        try:
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
    of = lambda heads: torch.randn(point.batch, point.seqlen, heads, point.head_dim, device="cuda").to(dtype)
    q, k, v, dout = of(point.heads), of(point.heads_kv), of(point.heads_kv), of(point.heads)
    rivals = rivals_of(torch, point, q, k, v, dout)
    forward, problem, tensors, gradients = ours.training_of(torch, point, q, k, v, dout)
    forward()
    torch.cuda.synchronize()
    problem.deterministic = int(o.deterministic)
    call, plan = ours.bind(torch, problem, tensors, o.kernel)
    call()
    torch.cuda.synchronize()
    calls, reasons = {"": call}, {}
    if point.dtype == "f32" and b"simt" not in plan.kernel:
        calls["tilewise-simt"] = ours.bind(torch, problem, tensors, SIMT)[0]
    for name, rival in rivals.items():
        if isinstance(rival, str):
            reasons[name] = rival
            continue
        calls[name] = rival
        for (field, mine), theirs in zip(gradients.items(), rival()):
            mine = mine.float()
            apart = ((theirs.transpose(1, 2).float() - mine).abs().max() / mine.abs().max()).item()
            if not apart <= (2e-4 if point.dtype == "f32" else 2e-2):
                reasons[name] = reasons.get(name, "") + f"{field} differs from ours by {apart:.2g} of its maximum; "
    counts = {name: int(min(50, max(1, 3.0 / gpu.elapsed(torch, one, 2)))) for name, one in calls.items()}
    samples = gpu.in_turns({name: lambda one=one, n=counts[name]: gpu.elapsed(torch, one, n) for name, one in calls.items()},
                           o.rounds)
    for name in list(calls) + [n for n in reasons if n not in calls]:
        times = samples.get(name)
        yield gpu.row_of(point, "backward", plan, name, times, reasons.get(name), deterministic=o.deterministic,
                         tflops=times and gpu.figure(2.5 * flops_of(point) / statistics.median(times) * 1e-9))


def table_line(rows):
    mine = rows[0]
    kind = "causal" if mine["causal"] else "full"
    line = f'{mine["dtype"]:<5}d{mine["head_dim"]:<4}S{mine["seqlen_q"]:<6}{kind:<7}{1e3 * mine["ms_median"]:>9.1f} us {mine["tflops"]:>6.1f}'
    for r in rows[1:]:
        if r["tflops"]:
            line += f'  {r["rival"]} {r["tflops"]:.1f} ({r["ms_median"] / mine["ms_median"]:.2f}x)'
        if r["not_run"]:
            line += f'  [{r["rival"]}: {r["not_run"]}]'
    return line


def main():
    parser = gpu.training_parser_of(__doc__, "512,2048,8192,16384")
    parser.add_argument("--deterministic", action="store_true")
    o = parser.parse_args()
    torch = gpu.torch_on_cuda()
    ours = gpu.Ours(o.library)
    print(f"{gpu.versions(torch)}; us and TFLOP/s of ours, TFLOP/s of the rivals and their time over ours", flush=True)
    for line in gpu.lines_of(gpu.training_points("table", o), lambda point: run_point(torch, ours, point, o), table_line, o.output):
        print(line, flush=True)


if __name__ == "__main__":
    main()

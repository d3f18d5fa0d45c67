#!/usr/bin/env python3
"""What recomputation costs: our forward + backward beside a training step that keeps the weights P, time and peak memory.

    bench/gpu_recompute.py [--output recompute.json] [--dims 64,128] [--lengths 1024,2048,4096] [--dtypes bf16,f32] [--rounds N]

The step that keeps P is PyTorch's three-step attention: S = Q K^T, P = softmax(S), O = P V, P saved by autograd, and the
backward that reads it: dV = P^T dO, dP = dO V^T, dS = P (dP - D), dQ = dS K, dK = dS^T Q; its matrix products are cuBLAS's.
fp32: without TF32, which would not be fp32 accuracy. batch x seqlen is 16384 with 2048 channels of q. In turns, one process,
random data; memory: the most allocated during a step, above the tensors that both have. FLOPs: 14 head_dim a pair (4 forward,
10 backward), causal squares as half. One JSON object a line; a table on the terminal.
"""

import statistics

import gpu_common as gpu
import torch_rival as tw
from gpu_bench import flops_of


def kept_step(torch, point, q, k, v, dout):
    """Forward and backward of three steps, P kept; the gradients."""
    scale = point.head_dim ** -0.5
    hidden = torch.ones(point.seqlen, point.seqlen, dtype=torch.bool, device="cuda").triu(1) if point.causal else None
    theirs = [t.transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    theirs_dout = dout.transpose(1, 2).contiguous()

    def step():
        scores = theirs[0] @ theirs[1].transpose(-1, -2) * scale
        if hidden is not None:
            scores = scores.masked_fill_(hidden, float("-inf"))
        return torch.autograd.grad(scores.softmax(-1) @ theirs[2], theirs, theirs_dout)
    return step


def our_step(torch, ours, point, q, k, v, dout):
    forward, problem, tensors, gradients = ours.training_of(torch, point, q, k, v, dout)
    backward, plan = ours.bind(torch, problem, tensors, "")

    def step():
        forward()
        backward()
        return tuple(gradients.values())
    return step, plan


def peak_of(torch, step):
    """MiB above what is allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def run_point(torch, ours, point, o):
    dtype = getattr(torch, tw.DTYPES[point.dtype][2])
    of = lambda: torch.randn(point.batch, point.seqlen, point.heads, point.head_dim, device="cuda").to(dtype)
    tensors = [of() for _ in range(4)]
    before = torch.cuda.memory_allocated()
    step, plan = our_step(torch, ours, point, *tensors)
    mine = step()
    # Ours allocates nothing in a step: what it holds is outputs and workspace.
    peaks = {"": (torch.cuda.memory_allocated() - before) / 2**20}
    steps, reasons = {"": step}, {}
    try:
        kept = kept_step(torch, point, *tensors)
        theirs = kept()
        peaks["kept"] = peak_of(torch, kept)
        apart = max((a.float() - b.transpose(1, 2).float()).abs().max().item() / a.float().abs().max().item()
                    for a, b in zip(mine, theirs))
        if not apart <= (2e-4 if point.dtype == "f32" else 3e-2):
            reasons["kept"] = f"differs from ours by {apart:.2g} of its maximum"
        del theirs
        steps["kept"] = kept
    except torch.cuda.OutOfMemoryError as e:
        reasons["kept"] = gpu.reason_of(e)
    samples = gpu.in_turns({name: lambda one=one: gpu.elapsed(torch, one, 3) for name, one in steps.items()}, o.rounds)
    for name in ["", "kept"]:
        times = samples.get(name)
        yield gpu.row_of(point, "forward+backward", plan, name, times, reasons.get(name), peak_mib=peaks.get(name),
                         tflops=times and gpu.figure(3.5 * flops_of(point) / statistics.median(times) * 1e-9))


def table_line(rows):
    mine, kept = rows
    kind = "causal" if mine["causal"] else "full"
    line = (f'{mine["dtype"]:<5}d{mine["head_dim"]:<4}S{mine["seqlen_q"]:<6}{kind:<7}{mine["ms_median"]:>8.2f} ms'
            f'{mine["tflops"]:>7.1f}{mine["peak_mib"]:>8.0f} MiB')
    if kept["tflops"]:
        line += (f'   P kept {kept["ms_median"]:.2f} ms {kept["tflops"]:.1f} {kept["peak_mib"]:.0f} MiB'
                 f'  ({kept["ms_median"] / mine["ms_median"]:.2f}x time)')
    return line + (f'  [{kept["not_run"]}]' if kept["not_run"] else "")


def main():
    o = gpu.training_parser_of(__doc__, "1024,2048,4096").parse_args()
    torch = gpu.torch_on_cuda()
    torch.backends.cuda.matmul.allow_tf32 = False
    ours = gpu.Ours(o.library)
    print(f"{gpu.versions(torch)}; ours, then PyTorch's three steps with P kept: ms, TFLOP/s, most memory", flush=True)
    for line in gpu.lines_of(gpu.training_points("recompute", o), lambda point: run_point(torch, ours, point, o), table_line, o.output):
        print(line, flush=True)


if __name__ == "__main__":
    main()

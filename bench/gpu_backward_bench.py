#!/usr/bin/env python3
"""Times this library's CUDA backward beside that of cuDNN and FlashAttention through PyTorch.

    bench/gpu_backward_bench.py [--output bench.json] [--dims 64,128] [--lengths 512,2048,8192,16384] [--kernel NAME]

All in one process, in turns, on random data: enough calls between two events to hide what a launch costs the host
(the rivals' backward through autograd); each result is compared with ours. batch x seqlen is 16384 with 2048
channels of q. One JSON object a line; a short table on the terminal last. FLOPs: 10 head_dim a pair, causal squares
as half.
"""

import argparse
import ctypes as c
import json
import statistics
import sys
from pathlib import Path

import torch_rival as tw
from gpu_bench import CUDA, Ours, Point

GRADIENTS = ("dq", "dk", "dv")


def bind_backward(ours, torch, point, tensors_of, deterministic, kernel):
    problem, tensors = ours.problem(), tw.Tensors()
    problem.direction, problem.wants = tw.BACKWARD, 7
    problem.batch, problem.seqlen_q, problem.seqlen_kv = point.batch, point.seqlen, point.seqlen
    problem.heads_q, problem.heads_kv = point.heads, point.heads_kv
    problem.head_dim, problem.head_dim_v = point.head_dim, point.head_dim_v
    for field, tensor in tensors_of.items():
        code = tw.DTYPES["f32" if field == "lse" else point.dtype][0]
        if field != "lse":
            setattr(problem, "dtype_" + field, code)
        view = tw.view(tensor, code)
        view.device_kind = CUDA
        setattr(tensors, field, view)
    problem.causal, problem.alignment, problem.deterministic = int(point.causal), 16, int(deterministic)
    plan, limits = tw.Plan(), tw.Limits(-1, 0, kernel.encode() if kernel else None)
    ours.call("tilewise_plan_for_context", ours.context, c.byref(problem), c.byref(limits), c.byref(plan))
    ours.call("tilewise_prepare", ours.context, c.byref(plan))
    memory = torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    backward = ours.library.tilewise_backward
    workspace = tw.Workspace(memory.data_ptr(), plan.workspace_bytes)

    def once(keep=(memory, plan, tensors)):
        stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
        if backward(ours.context, c.byref(plan), c.byref(tensors), workspace, stream, c.byref(ours.error)):
            raise RuntimeError(ours.error.message.decode())
    return once, plan


def rivals_of(torch, point, q, k, v, dout):
    """name -> a call that returns dq, dk, dv in our layout; or the reason why there is none."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    found = {}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        theirs = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]
        options = {"is_causal": point.causal} | ({"enable_gqa": True} if point.heads_kv != point.heads else {})
        try:
            with sdpa_kernel(backend):
                out = torch.nn.functional.scaled_dot_product_attention(*theirs, **options)
            theirs_dout = dout.transpose(1, 2)
            call = lambda out=out, theirs=theirs, theirs_dout=theirs_dout: torch.autograd.grad(
                out, theirs, theirs_dout, retain_graph=True)
            call()
            found[name] = call
        except RuntimeError as e:
            found[name] = str(e).splitlines()[0][:120]
    return found


def sample(torch, call, calls):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def run_point(torch, ours, point, o):
    dtype = getattr(torch, tw.DTYPES[point.dtype][2])
    of = lambda heads: torch.randn(point.batch, point.seqlen, heads, point.head_dim, device="cuda").to(dtype)
    q, k, v, dout = of(point.heads), of(point.heads_kv), of(point.heads_kv), of(point.heads)
    rivals = rivals_of(torch, point, q, k, v, dout)
    out = torch.empty_like(q)
    lse = torch.empty(point.batch, point.heads, point.seqlen, device="cuda")
    forward_of(ours, torch, point, q, k, v, out, lse)
    gradients = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    call, plan = bind_backward(ours, torch, point, dict(q=q, k=k, v=v, o=out, lse=lse, dout=dout, **gradients),
                               o.deterministic, o.kernel)
    call()
    torch.cuda.synchronize()
    calls, reasons = {"": call}, {}
    for name, rival in rivals.items():
        if isinstance(rival, str):
            reasons[name] = rival
            continue
        calls[name] = rival
        for field, theirs in zip(GRADIENTS, rival()):
            mine = gradients[field].float()
            apart = ((theirs.transpose(1, 2).float() - mine).abs().max() / mine.abs().max()).item()
            if not apart <= 2e-2:
                reasons[name] = reasons.get(name, "") + f"{field} differs from ours by {apart:.2g} of its maximum; "
    counts = {name: int(min(50, max(1, 3.0 / sample(torch, one, 2)))) for name, one in calls.items()}
    samples = {name: [] for name in calls}
    for turn in range(o.rounds):
        names = list(calls)
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            samples[name].append(sample(torch, calls[name], counts[name]))
    flops = 2.5 * point.flops()
    for name in list(calls) + [n for n in reasons if n not in calls]:
        median = statistics.median(samples[name]) if name in samples else None
        yield {"schema": 1, "device": "cuda:0", "kernel": None if name else plan.kernel.decode(), "direction": "backward",
               "dtype": point.dtype, "batch": point.batch, "heads_q": point.heads, "heads_kv": point.heads_kv,
               "head_dim": point.head_dim, "head_dim_v": point.head_dim_v, "seqlen_q": point.seqlen,
               "seqlen_kv": point.seqlen, "causal": point.causal, "ms_min": median and min(samples[name]),
               "ms_median": median, "ms_max": median and max(samples[name]), "tflops": median and flops / median * 1e-9,
               "workspace_bytes": None if name else plan.workspace_bytes, "rival": name or None,
               "deterministic": o.deterministic, "not_run": reasons.get(name)}


def forward_of(ours, torch, point, q, k, v, out, lse):
    problem, tensors = ours.problem(), tw.Tensors()
    problem.batch, problem.seqlen_q, problem.seqlen_kv = point.batch, point.seqlen, point.seqlen
    problem.heads_q, problem.heads_kv = point.heads, point.heads_kv
    problem.head_dim, problem.head_dim_v = point.head_dim, point.head_dim_v
    problem.features, problem.causal, problem.alignment = tw.HAS_LSE, int(point.causal), 16
    for field, tensor in (("q", q), ("k", k), ("v", v), ("o", out), ("lse", lse)):
        code = tw.DTYPES["f32" if field == "lse" else point.dtype][0]
        if field != "lse":
            setattr(problem, "dtype_" + field, code)
        view = tw.view(tensor, code)
        view.device_kind = CUDA
        setattr(tensors, field, view)
    plan, limits = tw.Plan(), tw.Limits(-1, 0, None)
    ours.call("tilewise_plan_for_context", ours.context, c.byref(problem), c.byref(limits), c.byref(plan))
    ours.call("tilewise_prepare", ours.context, c.byref(plan))
    memory = torch.zeros(max(256, plan.workspace_bytes), dtype=torch.uint8, device="cuda")
    workspace = tw.Workspace(memory.data_ptr(), memory.numel())
    stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
    ours.call("tilewise_forward", ours.context, c.byref(plan), c.byref(tensors), workspace, stream)
    torch.cuda.synchronize()


def table_line(rows):
    mine = rows[0]
    kind = "causal" if mine["causal"] else "full"
    line = f'd{mine["head_dim"]:<4}S{mine["seqlen_q"]:<6}{kind:<7}{1e3 * mine["ms_median"]:>9.1f} us {mine["tflops"]:>6.1f}'
    for r in rows[1:]:
        if r["tflops"]:
            line += f'  {r["rival"]} {r["tflops"]:.1f} ({r["ms_median"] / mine["ms_median"]:.2f}x)'
        if r["not_run"]:
            line += f'  [{r["rival"]}: {r["not_run"]}]'
    return line


def main():
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(root / "build/lib/libtilewise.so"))
    parser.add_argument("--output", default="")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--lengths", default="512,2048,8192,16384")
    parser.add_argument("--kernel", default="", help="of ours; empty: the planner's choice")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    o = parser.parse_args()
    import torch
    torch.manual_seed(1)
    ours = Ours(o.library)
    output = open(o.output, "w") if o.output else None
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; us and "
          "TFLOP/s of ours, TFLOP/s of the rivals and their time over ours", flush=True)
    for dim in (int(n) for n in o.dims.split(",")):
        for seqlen in (int(n) for n in o.lengths.split(",")):
            for causal in (False, True):
                point = Point("table", 16384 // seqlen, 2048 // dim, dim, seqlen, causal)
                try:
                    rows = list(run_point(torch, ours, point, o))
                except RuntimeError as e:
                    print(f"head_dim {dim} seqlen {seqlen}: {e}", file=sys.stderr)
                    continue
                for row in rows:
                    if output:
                        print(json.dumps(row), file=output, flush=True)
                print(table_line(rows), flush=True)


if __name__ == "__main__":
    main()

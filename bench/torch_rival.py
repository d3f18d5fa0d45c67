#!/usr/bin/env python3
"""Times PyTorch's CPU flash attention and Tilewise in turns in one process, on the same memory.

    build/rivals/pytorch bench/torch_rival.py [--library build/lib/libtilewise.so] [--direction forward|backward|step]
        [--dtype f32|f16|bf16] [--batch N] [--heads N] [--head-dim N] [--seqlen N,...] [--causal] [--threads N]
        [--kernel NAME] [--seconds S] [--repeats N] [--seed N]

Prints two JSON lines a length with the keys of `tilewise bench --json`: ours (rival null), then PyTorch's (rival
"pytorch"); `tilewise bench --rivals` runs it and shows the ratio of the two. The machine's peak is not measured here, so what
depends on it is null. PyTorch comes from scripts/rivals.sh; the calls are its flash kernels themselves, without dispatch by
scaled_dot_product_attention.
"""

import argparse
import ctypes as c
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

I32, I64, U32, U64 = c.c_int32, c.c_int64, c.c_uint32, c.c_uint64
DTYPES = {"f32": (1, 4, "float32"), "f16": (2, 2, "float16"), "bf16": (3, 2, "bfloat16")}
STORED = {"f8e4m3": (9, 1, "float8_e4m3fn"), "i8": (10, 1, "int8")}  # of a cache's k and v
INT32 = 4
FORWARD, BACKWARD = 0, 1
HAS_KV_LENGTHS, HAS_LSE, HAS_KV_SCALES = 1 << 3, 1 << 10, 1 << 14


class Tensor(c.Structure):  # tilewise_tensor
    _fields_ = [("data", c.c_void_p), ("dtype", I32), ("device_kind", I32), ("device_index", I32), ("flags", U32),
                ("rank", I32), ("reserved", I32), ("shape", I64 * 4), ("stride", I64 * 4)]


class Tensors(c.Structure):  # tilewise_tensors
    _fields_ = [(name, Tensor) for name in
                "q k v o lse bias mask q_lengths kv_lengths kv_starts q_offset page_table cache_batch_idx k_scales v_scales "
                "cu_seqlens_q cu_seqlens_kv segment_ids_q segment_ids_kv kv_ranges alibi_slopes sinks dropout_state "
                "dout dlse delta dq dk dv dbias dsinks".split()
                ] + [("q_offset_value", I64), ("dropout_seed", U64), ("dropout_offset", U64)]


class Problem(c.Structure):  # tilewise_problem
    _fields_ = ([("struct_bytes", U32), ("direction", I32)]
                + [(n, I64) for n in "batch seqlen_q seqlen_kv total_q total_kv heads_q heads_kv head_dim head_dim_v".split()]
                + [(n, I32) for n in "dtype_q dtype_k dtype_v dtype_o dtype_dout dtype_dq dtype_dk dtype_dv dtype_bias "
                                     "dtype_mask dtype_dbias packed_q packed_kv".split()]
                + [(n, I64) for n in "page_size max_pages num_pages cache_slots scale_rows".split()]
                + [("features", U32), ("bias_shape", I64 * 4), ("mask_shape", I64 * 4), ("alibi_per_batch", I32),
                   ("causal", I32), ("window_left", I64), ("window_right", I64), ("position", I32),
                   ("softmax_scale", c.c_float), ("softcap", c.c_float), ("dropout_p", c.c_float)]
                + [(n, I32) for n in "wants accumulate deterministic batch_invariant alignment".split()])


class Limits(c.Structure):  # tilewise_limits
    _fields_ = [("max_workspace_bytes", I64), ("threads", I32), ("kernel", c.c_char_p)]


class Plan(c.Structure):  # tilewise_plan
    _fields_ = [("struct_bytes", U32), ("kernel_index", I32), ("problem", Problem), ("device_kind", I32),
                ("device_index", I32), ("threads", I32), ("tile_m", I32), ("tile_n", I32), ("num_splits", I32), ("from_tuning", I32),
                ("workspace_bytes", I64), ("predicted_ms", c.c_double), ("predicted_bytes", c.c_double),
                ("kernel", c.c_char * 96)]


class Workspace(c.Structure):  # tilewise_workspace
    _fields_ = [("data", c.c_void_p), ("bytes", I64)]


class ContextOptions(c.Structure):  # tilewise_context_options
    _fields_ = [("struct_bytes", U32), ("threads", I32)] + [(n, c.c_void_p) for n in
                "parallel_for parallel_for_user log log_user allocate release allocate_user kernel tuning_text".split()
                ] + [("check_data", I32), ("device_kind", I32), ("device_index", I32)]


class Error(c.Structure):
    _fields_ = [("message", c.c_char * 4096)]


class Tilewise:
    def __init__(self, path, threads=0, device_kind=0):
        self.library, self.threads = c.CDLL(path), threads
        self.error = Error()
        options = ContextOptions()
        self.library.tilewise_context_options_init(c.byref(options))
        if options.struct_bytes != c.sizeof(ContextOptions):
            sys.exit(f"{path}: its tilewise_context_options has {options.struct_bytes} bytes, this script "
                     f"{c.sizeof(ContextOptions)}: the two do not belong together")
        options.threads, options.device_kind = threads, device_kind
        self.context = c.c_void_p()
        self.call("tilewise_context_create", c.byref(options), c.byref(self.context))

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments, c.byref(self.error))
        if code:
            sys.exit(f"{name}: {self.error.message.decode()}")

    def problem(self):
        problem = Problem()
        self.library.tilewise_problem_init(c.byref(problem))
        if problem.struct_bytes != c.sizeof(Problem):
            sys.exit(f"tilewise_problem has {problem.struct_bytes} bytes, this script {c.sizeof(Problem)}: the library "
                     "and the script do not belong together")
        return problem

    def plan(self, problem, kernel):
        """The plan, prepared; `kernel` is a name, or empty."""
        plan, limits = Plan(), Limits(-1, self.threads, kernel.encode() if kernel else None)
        self.call("tilewise_plan_for_context", self.context, c.byref(problem), c.byref(limits), c.byref(plan))
        self.call("tilewise_prepare", self.context, c.byref(plan))
        return plan

    def bind(self, problem, tensors, kernel):
        """A function that runs the planned call, and the plan."""
        plan = self.plan(problem, kernel)
        size = max(plan.workspace_bytes, 256)
        memory = (c.c_char * (size + 256))()
        at = (c.addressof(memory) + 255) // 256 * 256
        run = self.library.tilewise_backward if problem.direction else self.library.tilewise_forward
        arguments = (self.context, c.byref(plan), c.byref(tensors), Workspace(at, size), None, c.byref(self.error))

        def once(keep=(memory, plan, tensors)):
            if run(*arguments):
                sys.exit(self.error.message.decode())
        return once, plan


def view(tensor, dtype):
    """Our view of a torch tensor [batch, seqlen, heads, dim] (or lse)."""
    shape, stride = list(tensor.shape), list(tensor.stride())
    pad = [0] * (4 - len(shape))
    return Tensor(tensor.data_ptr(), dtype, int(tensor.is_cuda), 0, 0, len(shape), 0, (I64 * 4)(*shape, *pad), (I64 * 4)(*stride, *pad))


def measure(calls, seconds, repeats):
    """Milliseconds of each call, in turns; a sample is a mean over enough calls for the clock, after one that warms."""
    inner, spent = [], []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
        inner.append(max(1, int(2e-4 / spent[-1]) + 1) if spent[-1] < 2e-4 else 1)
    if not repeats:
        repeats = int(min(101, max(3, seconds * len(calls) / max(1e-6, sum(s * n for s, n in zip(spent, inner))))))
    samples = [[] for _ in calls]
    for turn in range(repeats):
        for i in range(len(calls)):
            which = (turn + i) % len(calls)
            time.sleep(0.002)  # the other one's threads stop spinning
            if spent[which] < 0.02:
                calls[which]()
            start = time.perf_counter()
            for _ in range(inner[which]):
                calls[which]()
            samples[which].append(1e3 * (time.perf_counter() - start) / inner[which])
    return samples


def main():
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(root / "build/lib/libtilewise.so"))
    parser.add_argument("--direction", choices=["forward", "backward", "step"], default="forward")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="f32")
    for name, value in (("batch", 1), ("heads", 12), ("head-dim", 64), ("threads", 0), ("repeats", 0), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--seqlen", default="1024")
    parser.add_argument("--kernel", default="", help="of ours; empty: the planner's choice")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.4)
    o = parser.parse_args()
    try:
        import torch
    except ImportError as e:
        sys.exit(f"PyTorch is not here ({e}): scripts/rivals.sh pytorch gets it")
    threads = o.threads or os.cpu_count()
    torch.set_num_threads(threads)
    ours = Tilewise(o.library, threads)
    for seqlen in (int(n) for n in o.seqlen.split(",")):
        for row in one_point(torch, ours, o, seqlen):
            print(json.dumps(row), flush=True)


def one_point(torch, ours, o, seqlen):
    code, size, name = DTYPES[o.dtype]
    torch.manual_seed(o.seed)
    shape = (o.batch, seqlen, o.heads, o.head_dim)
    q, k, v, dout = (torch.randn(shape).to(getattr(torch, name)) for _ in range(4))
    o_, dq, dk, dv = (torch.empty_like(q) for _ in range(4))
    lse = torch.empty(o.batch, o.heads, seqlen)
    theirs = [t.transpose(1, 2) for t in (q, k, v)]  # it wants [batch, heads, seqlen, dim]; the memory is the same
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    flash_back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    problem = ours.problem()
    problem.batch, problem.seqlen_q, problem.seqlen_kv = o.batch, seqlen, seqlen
    problem.heads_q = problem.heads_kv = o.heads
    problem.head_dim = problem.head_dim_v = o.head_dim
    for field in ("q", "k", "v", "o", "dout", "dq", "dk", "dv"):
        setattr(problem, "dtype_" + field, code)
    problem.causal = int(o.causal)
    problem.features = HAS_LSE
    tensors = Tensors()
    for field, tensor in (("q", q), ("k", k), ("v", v), ("o", o_)):
        setattr(tensors, field, view(tensor, code))
    tensors.lse = view(lse, DTYPES["f32"][0])
    run, plan = ours.bind(problem, tensors, o.kernel if o.direction == "forward" else "")
    with torch.no_grad():
        run()
        out, their_lse = flash(*theirs, 0.0, o.causal)
        apart = (out.transpose(1, 2).float() - o_.float()).abs().max().item()
        their_run = lambda: flash(*theirs, 0.0, o.causal)
        if o.direction != "forward":
            first, forward_plan = run, plan
            problem.direction, problem.features, problem.wants = BACKWARD, 0, 7
            for field, tensor in (("dout", dout), ("dq", dq), ("dk", dk), ("dv", dv)):
                setattr(tensors, field, view(tensor, code))
            run, plan = ours.bind(problem, tensors, o.kernel if o.direction == "backward" else "")
            run()
            their_dout = dout.transpose(1, 2)
            their_run = lambda: flash_back(their_dout, *theirs, out, their_lse, 0.0, o.causal)
            apart = (their_run()[0].transpose(1, 2).float() - dq.float()).abs().max().item()
        kernel = plan.kernel.decode()
        if o.direction == "step":
            second, kernel = run, forward_plan.kernel.decode() + " + " + kernel
            run = lambda: (first(), second())
            their_run = lambda: flash_back(their_dout, *theirs, *flash(*theirs, 0.0, o.causal), 0.0, o.causal)
        not_run = None if apart <= (1e-3 if size == 4 else 5e-2) else f"its result differs from ours by {apart:.2g}"
        samples = measure([run, their_run], o.seconds, o.repeats)
    pairs = seqlen * seqlen * (0.5 if o.causal else 1.0)
    flops = {"forward": 4, "backward": 10, "step": 14}[o.direction] * o.head_dim * pairs * o.heads * o.batch
    elements = o.batch * seqlen * o.heads * o.head_dim
    tensors_moved, lse_moved = {"forward": (4, 1), "backward": (8, 1), "step": (12, 2)}[o.direction]
    ideal = elements * size * tensors_moved + lse_moved * o.batch * o.heads * seqlen * 4
    for kernel, rival, times in ((kernel, None, samples[0]),
                                 (f"flash of PyTorch {torch.__version__}", "pytorch", samples[1])):
        median = statistics.median(times)
        ran = rival is None or not_run is None
        figure = lambda value: float(f"{value:.6g}") if ran else None
        yield {"schema": 1, "device": "cpu", "kernel": kernel, "direction": o.direction, "dtype": o.dtype,
               "batch": o.batch, "heads_q": o.heads, "heads_kv": o.heads, "head_dim": o.head_dim, "seqlen_q": seqlen,
               "seqlen_kv": seqlen, "causal": o.causal, "ms_min": figure(min(times)), "ms_median": figure(median),
               "ms_max": figure(max(times)), "tflops": figure(flops / median * 1e-9), "peak_tflops": None,
               "percent_of_peak": None, "gbps": figure(ideal / median * 1e-6),
               "workspace_bytes": plan.workspace_bytes if rival is None else 0, "bytes_ideal": ideal, "rival": rival,
               "head_dim_v": o.head_dim, "window_left": -1, "window_right": -1, "threads": ours.threads,
               "repeats": len(times), "cpu_ms_median": None, "percent_of_peak_cpu": None,
               "times_ours": figure(median / statistics.median(samples[0])) if rival else None, "not_run": not_run if rival else None}


if __name__ == "__main__":
    main()

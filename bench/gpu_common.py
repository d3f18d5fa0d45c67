"""What the benchmarks on a GPU share: our calls on a CUDA device, PyTorch's backends beside them, timing in turns, rows of JSON."""

import argparse
import ctypes as c
import json
import statistics
import sys
from pathlib import Path

import torch_rival as tw

CUDA = 1
BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


class Point:
    """Queries over keys: `seqlen` of both unless `seqlen_kv` is given."""

    def __init__(self, name, batch, heads, head_dim, seqlen, causal, heads_kv=None, head_dim_v=None, window=-1,
                 dtype="bf16", seqlen_kv=None):
        self.name, self.batch, self.heads, self.head_dim, self.seqlen, self.causal = name, batch, heads, head_dim, seqlen, causal
        self.heads_kv, self.head_dim_v, self.window, self.dtype = heads_kv or heads, head_dim_v or head_dim, window, dtype
        self.seqlen_kv = seqlen_kv or seqlen


class Ours(tw.Tilewise):
    """The library with a context on CUDA device 0."""

    def __init__(self, path):
        super().__init__(path, device_kind=CUDA)

    def problem_of(self, point, direction=tw.FORWARD):
        problem = self.problem()
        problem.direction = direction
        problem.batch, problem.seqlen_q, problem.seqlen_kv = point.batch, point.seqlen, point.seqlen_kv
        problem.heads_q, problem.heads_kv = point.heads, point.heads_kv
        problem.head_dim, problem.head_dim_v = point.head_dim, point.head_dim_v
        problem.causal, problem.window_left, problem.alignment = int(point.causal), point.window, 16
        return problem

    def launcher(self, torch, plan):
        """A function that enqueues the planned call of c.byref(tensors) on torch's current stream."""
        memory = torch.zeros(max(256, plan.workspace_bytes), dtype=torch.uint8, device="cuda")
        workspace = tw.Workspace(memory.data_ptr(), memory.numel())
        run = self.library.tilewise_backward if plan.problem.direction else self.library.tilewise_forward
        plan_at, error_at = c.byref(plan), c.byref(self.error)

        def enqueue(tensors_at, keep=memory):
            stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
            if run(self.context, plan_at, tensors_at, workspace, stream, error_at):
                raise RuntimeError(self.error.message.decode())
        return enqueue

    def bind(self, torch, problem, tensors, kernel):
        """A function that enqueues the planned call, and the plan."""
        plan = self.plan(problem, kernel)
        enqueue, tensors_at = self.launcher(torch, plan), c.byref(tensors)
        return lambda: enqueue(tensors_at), plan

    def training_of(self, torch, point, q, k, v, dout):
        """Of a training step: a function that enqueues the forward and holds o and lse, of which `tensors` have addresses alone;
        the backward's problem, its tensors, its gradients."""
        forward = {"q": q, "k": k, "v": v, "o": torch.empty_like(dout),
                   "lse": torch.empty(point.batch, point.heads, point.seqlen, device="cuda")}
        problem, tensors = self.problem_of(point), tw.Tensors()
        problem.features = tw.HAS_LSE
        fill(problem, tensors, point.dtype, **forward)
        enqueue, _ = self.bind(torch, problem, tensors, "")
        gradients = {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
        problem, tensors = self.problem_of(point, tw.BACKWARD), tw.Tensors()
        problem.wants = 7
        fill(problem, tensors, point.dtype, **forward, dout=dout, **gradients)
        return lambda held=forward: enqueue(), problem, tensors, gradients


def fill(problem, tensors, dtype, **arrays):
    """Puts torch's tensors into `tensors` and their types into the problem; all are of `dtype` but lse."""
    for field, tensor in arrays.items():
        code = (tw.DTYPES | tw.STORED)["f32" if field == "lse" else dtype][0]
        if field != "lse":
            setattr(problem, "dtype_" + field, code)
        setattr(tensors, field, tw.view(tensor, code))


def sdpa_of(torch, point, name):
    """PyTorch's function by one of BACKENDS or "math", of tensors [batch, heads, seqlen, dim]."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backend = getattr(SDPBackend, "MATH" if name == "math" else BACKENDS[name])
    options = {"is_causal": point.causal} | ({"enable_gqa": True} if point.heads_kv != point.heads else {})

    def call(*tensors):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
    return call


def reason_of(error):
    return str(error).splitlines()[0][:120]


def elapsed(torch, call, times=1):
    """Milliseconds of a call, by events around `times` of them."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / times


class Timed:
    """A call as a graph of `calls` calls, or enough for the clock, replayed between two events. `stream`: where it is to be
    captured (autograd runs a backward in the stream of its forward)."""

    def __init__(self, torch, call, calls=0, stream=None):
        self.torch, self.call = torch, call
        with torch.cuda.stream(stream or torch.cuda.Stream()):
            for _ in range(2):
                call()
            ms = max(elapsed(torch, call), 1e-3)
        torch.cuda.synchronize()
        self.calls = calls or (int(min(100, max(1, 1.0 / ms))) if ms > 0.02 else 50)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for _ in range(self.calls):
                call()
        self.replay()

    def replay(self):
        return elapsed(self.torch, self.graph.replay) / self.calls


class Eager:
    """The same where a call cannot be captured: as many calls that what a launch costs the host is hidden."""

    def __init__(self, torch, call):
        self.torch, self.call = torch, call
        self.calls = int(min(50, max(1, 3.0 / elapsed(torch, call, 2))))

    def replay(self):
        return elapsed(self.torch, self.call, self.calls)


def rounds_of(timed, seconds, most):
    """How many rounds of replays take that long: 3 to `most`."""
    return int(min(most, max(3, 1e3 * seconds / sum(t.replay() * t.calls for t in timed))))


def in_turns(timers, rounds):
    """{name: milliseconds of each round} of functions that return them; who begins changes from round to round."""
    names, samples = list(timers), {name: [] for name in timers}
    for turn in range(rounds):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            samples[name].append(timers[name]())
    return samples


def figure(value):
    return float(f"{value:.6g}")


def row_of(point, direction, plan, rival, samples, not_run, **more):
    """One object of the JSON, with the keys of `tilewise bench --json`; `rival` is "" for ours, samples None where it did not run."""
    return {"schema": 1, "device": "cuda:0", "kernel": None if rival else plan.kernel.decode(), "direction": direction,
            "dtype": point.dtype, "batch": point.batch, "heads_q": point.heads, "heads_kv": point.heads_kv,
            "head_dim": point.head_dim, "head_dim_v": point.head_dim_v, "seqlen_q": point.seqlen,
            "seqlen_kv": point.seqlen_kv, "causal": point.causal, "window_left": point.window,
            "ms_min": samples and figure(min(samples)), "ms_median": samples and figure(statistics.median(samples)),
            "ms_max": samples and figure(max(samples)), "workspace_bytes": None if rival else plan.workspace_bytes,
            "rival": rival or None, "set": point.name, "repeats": samples and len(samples), **more, "not_run": not_run or None}


def parser_of(description):
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(root / "build/lib/libtilewise.so"))
    parser.add_argument("--output", default="")
    parser.add_argument("--kernel", default="", help="of ours; empty: the planner's choice")
    return parser


def training_parser_of(description, lengths):
    """For the benchmarks of training, whose points are a grid."""
    parser = parser_of(description)
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--lengths", default=lengths)
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--rounds", type=int, default=5)
    return parser


def training_points(name, o):
    """The grid of those options: batch x seqlen is 16384 with 2048 channels of q, full and causal."""
    return [Point(name, 16384 // s, 2048 // d, d, s, causal, dtype=dtype) for dtype in o.dtypes.split(",")
            for d in map(int, o.dims.split(",")) for s in map(int, o.lengths.split(",")) for causal in (False, True)]


def torch_on_cuda():
    """PyTorch with a seed, or the end of the program and why."""
    try:
        import torch
    except ImportError as e:
        sys.exit(f"PyTorch is not here ({e}): nothing is timed")
    if not torch.cuda.is_available():
        sys.exit(f"PyTorch {torch.__version__} sees no CUDA device: nothing is timed")
    torch.manual_seed(1)
    return torch


def versions(torch):
    return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"


def lines_of(points, rows_of, line_of, path, passed_over=RuntimeError):
    """A line of text for each point that ran; its rows go to the file at `path`, if any. Points that end so are passed over."""
    output = open(path, "w") if path else None
    for point in points:
        try:
            rows = list(rows_of(point))
        except passed_over as e:
            print(f"{point.name} head_dim {point.head_dim} seqlen {point.seqlen}/{point.seqlen_kv}: {e}", file=sys.stderr)
            continue
        for row in rows if output else []:
            print(json.dumps(row), file=output, flush=True)
        yield line_of(rows)

"""What a call would do, on what machine, and whether it was right."""

from typing import Any

from . import _core
from ._arguments import check_options, complete, flag, integer, number, output_shapes, refused, with_bits
from ._frameworks import describe, framework_of
from ._verify import Verification, to_numpy, verify

__all__ = ["Verification", "attention_weights", "explain", "info", "plan", "verify"]

_ISA_BITS = {1: "scalar", 2: "avx2", 4: "avx512", 8: "neon", 16: "avx512bf16"}


def _planned(ask: Any, q: Any, k: Any, v: Any, return_lse: bool, max_workspace_bytes: int, kernel: str,
             options: dict) -> Any:
    check_options(ask.__name__, options)
    if not isinstance(kernel, str):
        raise TypeError(f'kernel is {describe(kernel)}; accepted: the name of one, or "" for the best')
    max_workspace_bytes = number("max_workspace_bytes", max_workspace_bytes, integer, "bytes, or -1 for any")
    return_lse = flag("return_lse", return_lse)
    arguments = complete(q, k, v, **options)
    arrays = arguments.arrays
    o_shape, lse_shape = output_shapes(arguments)
    if arguments.problem.direction == _core.FORWARD:
        arrays["o"] = arguments.framework.empty(q, o_shape)
        if return_lse:
            arrays["lse"] = arguments.framework.empty(q, lse_shape, "float32")
    setting = arguments.setting
    try:
        return ask(arguments.problem, with_bits(arrays), setting.bhsd, setting.cuda, setting.threads, max_workspace_bytes, kernel)
    except (TypeError, ValueError) as error:
        raise refused(error, arrays) from None


def plan(q: Any, k: Any, v: Any, *, return_lse: bool = False, max_workspace_bytes: int = -1, kernel: str = "",
         **options: Any) -> _core.Plan:
    """Which kernel attention(q, k, v, **options) runs, with which tiles and how much scratch. Nothing is computed.

    max_workspace_bytes  scratch that may be used; -1 = any
    kernel               the one to take; "" = the best

    >>> import numpy as np
    >>> q = np.zeros((1, 512, 4, 64), np.float32)
    >>> plan(q, q, q, causal=True).kernel.split("_")[0]
    'forward'
    """
    return _planned(_core.plan, q, k, v, return_lse, max_workspace_bytes, kernel, options)


def explain(q: Any, k: Any, v: Any, *, return_lse: bool = False, max_workspace_bytes: int = -1, kernel: str = "",
            **options: Any) -> str:
    """One line a kernel: its rank with predicted time, bytes and workspace, or the rule that refused it.

    >>> import numpy as np
    >>> q = np.zeros((1, 512, 4, 64), np.float32)
    >>> "forward_reference_f64" in explain(q, q, q)
    True
    """
    return _planned(_core.explain, q, k, v, return_lse, max_workspace_bytes, kernel, options)


def attention_weights(q: Any, k: Any, rows: Any, **options: Any) -> Any:
    """Exact rows of P, after the softmax, before dropout, for looking at: O(len(rows) * Skv) memory.

    rows           int32 [R], indices of queries within their sequence, on q's device
    options        attention()'s
    Returns fp32 [B, Hq, R, Skv], like q.

    >>> import numpy as np
    >>> q = np.zeros((1, 4, 1, 8), np.float32)
    >>> attention_weights(q, q, np.array([1, 3], np.int32), causal=True)[0, 0].tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    """
    check_options("attention_weights", options)
    if len(framework_of("rows", rows).read(rows).shape) != 1:
        raise ValueError(f"rows is {describe(rows)}; accepted: int32 [R], indices of queries")
    if options.get("v_scales") is None and options.get("k_scales") is not None:
        options["v_scales"] = options["k_scales"]  # which the rule of caches asks for; v is k here
    arguments = complete(q, k, k, **options)
    arrays, framework, setting = arguments.arrays, arguments.framework, arguments.setting
    _, lse_shape = output_shapes(arguments, values="k")
    del arrays["v"]
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        if name in arrays and len(arrays[name].shape) != 1:
            raise ValueError(f"{name} is {describe(arrays[name])}; accepted: [batch + 1]")
    if "cu_seqlens_q" in arrays:
        batch, heads = arrays["cu_seqlens_q"].shape[0] - 1, lse_shape[0]
    else:
        batch, heads = lse_shape[:2]
    if "cu_seqlens_kv" in arrays:
        ends = to_numpy(arrays["cu_seqlens_kv"])
        keys = options.get("seqlen_kv") or int((ends[1:] - ends[:-1]).max(initial=0))
    else:
        keys = k.shape[2 if setting.bhsd else 1]
        if "page_table" in arrays:
            keys = options.get("seqlen_kv") or keys * arrays["page_table"].shape[-1]
    weights = framework.empty(q, (batch, heads, rows.shape[0], keys), "float32")
    try:
        _core.attention_weights(arguments.problem, with_bits(arrays), rows, weights, *setting, arguments.scalars[0])
    except (TypeError, ValueError) as error:
        raise refused(error, {**arrays, "rows": rows, "weights": weights}) from None
    return framework.result(weights)


def info() -> dict[str, Any]:
    """The library's version, this machine's devices as planning sees them, and the default number of threads.

    >>> info()["cpu"]["cores"] > 0
    True
    """
    cpu = _core.device(0, 0)
    cpu["isa"] = [name for bit, name in _ISA_BITS.items() if cpu["isa"] & bit]
    cuda: list | str = []
    try:
        while len(cuda) < 64:
            cuda.append(_core.device(1, len(cuda)))
    except (NotImplementedError, RuntimeError, ValueError) as error:
        cuda = cuda or str(error)
    return {"version": _core.version(), "threads": _core.threads(0), "cpu": cpu, "cuda": cuda}

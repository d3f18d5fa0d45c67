"""The backward below flash_attn's functions, which sequence parallelism and others' own autograd call."""

from . import _core
from ._arguments import number
from ._frameworks import describe
from ._torch_arguments import check_rows, numbers_of, refuse_tensor, rows, tensor
from ._torch_ops import _run
from .torch import torch


@torch.no_grad()
def gradients(dout, q, k, v, out, softmax_lse, written, causal, window, softmax_scale, softcap, deterministic, dropout_p=0.0,
              rng_state=None, seqlens=(0, 0), zero=False, **arrays):
    """Writes those of dq, dk and dv that are given and returns rowsum(dout * out) fp32, of softmax_lse's shape."""
    check_rows(q, k, v)
    for name, x in (("dout", dout), ("out", out), ("softmax_lse", softmax_lse), *written.items()):
        if tensor(name, x) is None and name not in written:
            refuse_tensor(name, x)
    dropout_p = number("dropout_p", dropout_p, float, "a number in [0, 1)")
    if dropout_p and rng_state is None:
        raise ValueError(f"dropout_p is {dropout_p} without rng_state; accepted: the forward's fourth return")
    numbers = numbers_of("bshd", causal, None, False, window, softmax_scale, softcap, dropout_p, *seqlens, deterministic, False, 0)
    dout, q, k, v, out = map(rows, (dout, q, k, v, out))
    softmax_lse = softmax_lse.contiguous()
    given = {"q": q, "k": k, "v": v, "dout": dout, "o": out, "lse": softmax_lse}
    given |= {name: x for name, x in arrays.items() if x is not None}
    if dropout_p:
        given["dropout_state"] = tensor("rng_state", rng_state)
    made = {}
    for name, of in (("dq", q), ("dk", k), ("dv", v)):
        x = written.get(name)
        if x is not None and x.shape != of.shape:
            raise ValueError(f"{name} is {describe(x)}; accepted: {name[1:]}'s shape, {list(of.shape)}")
        if x is None or x.dtype != of.dtype or x.stride(-1) != 1:
            made[name] = torch.empty_like(of)
        given[name] = made.get(name, x)
        if zero:
            given[name].zero_()
    _run(_core.BACKWARD, given, *numbers)
    for name, x in made.items():
        if written.get(name) is not None:
            written[name].copy_(x)
    return torch.linalg.vecdot(dout.float(), out.float()).mT.contiguous()

"""What a user's tensors and numbers become before an operator sees them, or the sentence that says which is wrong."""

from functools import lru_cache

from ._arguments import flag, integer, layout_of, number, position, scale, window
from ._core import BOTTOM_RIGHT
from ._frameworks import describe
from ._pytorch import torch
from ._torch_ops import PLAIN, traced

INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
LEAST, MOST = -(2**31), 2**31 - 1


def refuse_tensor(name, x):
    raise TypeError(f"{name} is {describe(x)}; accepted: a dense tensor on the CPU or a CUDA device")


def check_rows(q, k, v, names=("q", "k", "v")):
    """q, k and v are tensors that have data in rows."""
    for name, x in zip(names, (q, k, v)):
        if type(x) not in PLAIN and not isinstance(x, torch.Tensor):
            refuse_tensor(name, x)
        if x.is_nested or x.layout is not torch.strided:
            raise TypeError(f"{name} is a {'nested' if x.is_nested else 'sparse'} tensor; accepted: a dense one (sequences of "
                            "different lengths are packed, with cu_seqlens)")
        if not (x.is_cpu or x.is_cuda):
            refuse_tensor(name, x)
        if x.dim() not in (3, 4):
            raise ValueError(f"{name} is {describe(x)}; accepted: 4 dimensions = [batch, seqlen, heads, head_dim], or 3 = [total, heads, "
                             "head_dim] with cu_seqlens")


def tensor(name, x):
    if x is not None and (not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_nested):
        refuse_tensor(name, x)
    return x


def int32(name, x, beyond=None):
    """x as int32. What int32 cannot hold is refused on the host. A device's numbers are not looked at: there it becomes the
    nearest that int32 holds, or `beyond`, so that no index turns into another one."""
    if x is None:
        return None
    tensor(name, x)
    if x.dtype is torch.int32:
        return x
    if x.dtype not in INTEGERS:
        raise ValueError(f"{name} is {describe(x)}; accepted: int32, or another type of integers")
    if x.dtype is not torch.int64:
        return x.to(torch.int32)
    if x.is_cpu and x.numel() and not traced(x):
        least, most = map(int, x.aminmax())
        if least < LEAST or most > MOST:
            raise ValueError(f"{name} has {least if least < LEAST else most}; accepted: what int32 holds (given {name}: "
                             f"{describe(x)})")
        return x.to(torch.int32)
    inside = x.clamp(LEAST, MOST)
    return (inside if beyond is None else torch.where(inside == x, x, beyond)).to(torch.int32)


def rows(x):
    return x.contiguous() if x.shape[-1] > 1 and x.stride(-1) != 1 else x


def band(causal, q_offset, is_array, window_size):
    """causal, position, offset, left, right."""
    return *position(causal, q_offset, is_array), *window(window_size)


cached_band = lru_cache(maxsize=64)(band)


def whole(name, value):
    """A number of rows; under torch.compile it may be a symbol."""
    if isinstance(value, torch.SymInt) or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    return number(name, value, integer, "a whole number")


def numbers_of(layout, causal, q_offset, has_offsets, window_size, softmax_scale, softcap, dropout_p, seqlen_q, seqlen_kv,
               deterministic, batch_invariant, scale_rows):
    """The operators' numbers, in the order of their schema."""
    bhsd = layout == "bhsd" if type(layout) is str and layout in ("bshd", "bhsd") else layout_of(layout)
    if q_offset is window_size is None and not has_offsets and (causal is True or causal is False):
        where, offset, left, right = BOTTOM_RIGHT, 0, -1, -1
    else:
        given = causal, q_offset, has_offsets, window_size
        if torch.compiler.is_compiling():  # which does not look into a cache
            causal, where, offset, left, right = band(*given)
        else:
            try:
                causal, where, offset, left, right = cached_band(*given)
            except TypeError:  # a list, or wrong: then this says how
                causal, where, offset, left, right = band(*given)
    if softmax_scale is not None:
        softmax_scale = scale(softmax_scale)
    if type(softcap) is not float:
        softcap = number("softcap", softcap, float, "0 (none) or a positive number")
    if type(dropout_p) is not float:
        dropout_p = number("dropout_p", dropout_p, float, "a number in [0, 1)")
    if deterministic is not False:
        deterministic = flag("deterministic", deterministic)
    if batch_invariant is not False:
        batch_invariant = flag("batch_invariant", batch_invariant)
    return (bhsd, offset, bool(causal), where, left, right, softmax_scale, softcap, dropout_p,
            whole("seqlen_q", seqlen_q), whole("seqlen_kv", seqlen_kv),
            deterministic or torch.are_deterministic_algorithms_enabled(), batch_invariant, whole("scale_rows", scale_rows))

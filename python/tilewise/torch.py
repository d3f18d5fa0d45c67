"""Attention for PyTorch: differentiable, under torch.compile and autocast; and PyTorch's own function on top of it.

    from tilewise.torch import attention, scaled_dot_product_attention

flash_attn's functions are in `tilewise.flash_attn` and `tilewise.flash_attn_interface`. PyTorch's own function runs on tilewise after
`torch.nn.attention.activate_flash_attention_impl("tilewise")`, on CUDA tensors.
"""

from typing import Any

from ._pytorch import torch

try:
    from torch.nn.attention.bias import CausalBias
except ImportError:  # before torch 2.3
    CausalBias = None

from ._arguments import called_otherwise, flag
from ._frameworks import describe
from ._torch_arguments import LEAST, MOST, check_rows, int32, numbers_of, refuse_tensor, rows, tensor
from ._torch_ops import apply, apply_plain
from ._torch_sdpa import register

__all__ = ["attention", "scaled_dot_product_attention"]
Tensor = torch.Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, *, layout: str = "bshd", causal: bool | str = False,
              window_size: tuple[int, int] | None = None, softmax_scale: float | None = None, softcap: float = 0.0,
              bias: Tensor | None = None, mask: Tensor | None = None, q_lengths: Tensor | None = None,
              kv_lengths: Tensor | None = None, kv_starts: Tensor | None = None, q_offset: int | Tensor | None = None,
              page_table: Tensor | None = None, cache_batch_idx: Tensor | None = None,
              cu_seqlens_q: Tensor | None = None, cu_seqlens_kv: Tensor | None = None, seqlen_q: int = 0, seqlen_kv: int = 0,
              segment_ids_q: Tensor | None = None, segment_ids_kv: Tensor | None = None, kv_ranges: Tensor | None = None,
              alibi_slopes: Tensor | None = None, sinks: Tensor | None = None, dropout_p: float = 0.0,
              dropout_state: Tensor | None = None, generator: torch.Generator | None = None,
              batch_invariant: bool = False, deterministic: bool = False, k_scales: Tensor | None = None,
              v_scales: Tensor | None = None, scale_rows: int = 0, return_lse: bool = False) -> Any:
    """tilewise.attention() for tensors, with gradients of q, k, v, bias and sinks, also through lse.

    Arguments and shapes are those of tilewise.attention(), with these differences:
    - lengths, indices and offsets may be of any integer type, sinks of any float type, q, k and v of any strides. What int32
      cannot hold is refused on the CPU; on a device, which nothing waits for, it becomes the nearest that int32 holds;
    - under autocast q, k, v and bias are cast to its type;
    - dropout_p draws its seed from `generator`, or torch's own; dropout_state int64 [2] gives it;
    - `deterministic` or torch.use_deterministic_algorithms asks for a deterministic backward (the CPU's always is).

    >>> import torch
    >>> q = torch.zeros(1, 2, 1, 4, requires_grad=True)
    >>> v = torch.ones(1, 2, 1, 4, requires_grad=True)
    >>> attention(q, q, v, causal=True).sum().backward()
    >>> v.grad[0, :, 0, 0].tolist()
    [1.5, 0.5]
    """
    check_rows(q, k, v)
    if return_lse is not True and return_lse is not False:
        return_lse = flag("return_lse", return_lse)
    if torch.is_autocast_enabled("cuda" if q.is_cuda else q.device.type):
        to = torch.get_autocast_dtype(q.device.type)
        q = q.to(to)
        k, v = (x if x.dtype in STORED else x.to(to) for x in (k, v))
        bias = None if bias is None else tensor("bias", bias).to(to)
    offsets = q_offset if isinstance(q_offset, torch.Tensor) else None
    numbers = numbers_of(layout, causal, None if offsets is not None else q_offset, offsets is not None, window_size,
                         softmax_scale, softcap, dropout_p, seqlen_q, seqlen_kv, deterministic, batch_invariant, scale_rows)
    if dropout_p and dropout_state is None:
        dropout_state = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=q.device, generator=generator)
    if not 1 == q.stride(-1) == k.stride(-1) == v.stride(-1):
        q, k, v = rows(q), rows(k), rows(v)
    if (bias is sinks is mask is q_lengths is kv_lengths is kv_starts is offsets is page_table is cache_batch_idx is cu_seqlens_q
            is cu_seqlens_kv is segment_ids_q is segment_ids_kv is kv_ranges is alibi_slopes is dropout_state is k_scales
            is v_scales is None):
        o, lse = apply_plain(return_lse, q, k, v, *numbers)
    else:
        if not (k_scales is v_scales is None) and torch.is_grad_enabled() and any(
                x is not None and x.requires_grad for x in (q, k, v, tensor("bias", bias), tensor("sinks", sinks))):
            raise ValueError("q, bias or sinks wants a gradient, and a cache with k_scales and v_scales gives none; accepted: "
                             "detached tensors, or a call under torch.no_grad()")
        o, lse = apply(return_lse, q, k, v, tensor("bias", bias), fp32("sinks", sinks), tensor("mask", mask),
                       int32("q_lengths", q_lengths), int32("kv_lengths", kv_lengths), int32("kv_starts", kv_starts),
                       int32("q_offset", offsets), int32("page_table", page_table), int32("cache_batch_idx", cache_batch_idx),
                       tensor("cu_seqlens_q", cu_seqlens_q), tensor("cu_seqlens_kv", cu_seqlens_kv),
                       int32("segment_ids_q", segment_ids_q, LEAST), int32("segment_ids_kv", segment_ids_kv, MOST),
                       int32("kv_ranges", kv_ranges), tensor("alibi_slopes", alibi_slopes),
                       tensor("dropout_state", dropout_state), fp32("k_scales", k_scales), fp32("v_scales", v_scales), *numbers)
    return (o, lse) if return_lse else o


STORED = (torch.int8, torch.float8_e4m3fn) if hasattr(torch, "float8_e4m3fn") else (torch.int8,)  # a cache stays as it is


def fp32(name, x):
    return None if x is None else tensor(name, x).float()


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, same arguments: query [..., Hq, L, E], is_causal top-left.

    attn_mask: bool (True = may attend), float (added), or a bias of torch.nn.attention.bias.

    >>> import torch
    >>> q = torch.randn(2, 4, 5, 8)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> torch.allclose(scaled_dot_product_attention(q, q, q, is_causal=True), theirs, atol=1e-6)
    True
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if tensor(name, x) is None:
            refuse_tensor(name, x)
    if is_causal is not False:
        is_causal = flag("is_causal", is_causal)
    if enable_gqa is not False:
        enable_gqa = flag("enable_gqa", enable_gqa)
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask comes with is_causal=True; accepted: one of the two, as in PyTorch "
                         "(tilewise.torch.attention applies both)")
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(f"query is {list(query.shape)}, key {list(key.shape)}; accepted: [..., L, E] and [..., S, E]")
    causal = "top-left" if is_causal else False
    if attn_mask is not None:
        variant = causal_variant(attn_mask)
        if variant is not None:
            causal, attn_mask = variant, None
        tensor("attn_mask", attn_mask)
    lead = query.shape[:-2]
    if not enable_gqa and not lead == key.shape[:-2] == value.shape[:-2]:
        try:
            lead = torch.broadcast_shapes(lead, key.shape[:-2], value.shape[:-2])
        except RuntimeError:
            raise ValueError(f"query is {describe(query)}, key {describe(key)}, value {describe(value)}; accepted: batches and heads that "
                             "broadcast, or fewer heads of key and value with enable_gqa=True") from None
        query, key, value = (x.expand(*lead, *x.shape[-2:]) for x in (query, key, value))
    query, key, value = four_dimensions(query), four_dimensions(key), four_dimensions(value)
    if attn_mask is not None:
        attn_mask = mask_of(attn_mask, lead, query.shape[-2], key.shape[-2])
    kind = {} if attn_mask is None else {"mask" if attn_mask.dtype == torch.bool else "bias": attn_mask}
    try:
        o = attention(query, key, value, layout="bhsd", causal=causal, softmax_scale=scale, dropout_p=dropout_p, **kind)
    except (TypeError, ValueError) as error:
        raise called_otherwise(error, _NAMES) from None
    return o if len(lead) == 2 else o.reshape(*lead, *o.shape[-2:])


_NAMES = {"q": "query", "k": "key", "v": "value", "mask": "attn_mask", "bias": "attn_mask", "softmax_scale": "scale"}


def four_dimensions(x):
    """[..., H, L, E] with all before H in one dimension."""
    if x.dim() == 4:
        return x
    return x.reshape((1,) * (4 - x.dim()) + tuple(x.shape)) if x.dim() < 4 else x.flatten(0, -4)


def mask_of(mask, lead, rows, keys):
    """`mask`, which broadcasts to [*lead, rows, keys], as something that broadcasts to four dimensions."""
    if mask.dim() <= 2 or mask.dim() == len(lead) + 2 <= 4:
        return mask
    if len(lead) <= 2:
        return mask.reshape((1,) * (len(lead) + 2 - mask.dim()) + tuple(mask.shape))
    return four_dimensions(mask.expand(*lead, rows, keys))


def causal_variant(mask):
    """The causal= of a torch.nn.attention.bias.CausalBias, else None."""
    if CausalBias is None or not isinstance(mask, CausalBias):
        return None
    return "top-left" if mask.variant.name == "UPPER_LEFT" else "bottom-right"


register()

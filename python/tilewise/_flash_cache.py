"""What the caches of flash_attn's two versions share: appending, attending, and what is refused."""

from operator import index

from ._arguments import called_otherwise, flag, number, window
from ._frameworks import describe
from ._torch_append import append_attention
from ._torch_arguments import MOST, check_rows, int32, numbers_of, refuse_tensor, rows, tensor, whole
from .rotary import apply_rotary_emb
from .torch import attention, fp32, torch

# Of options that tilewise calls otherwise, in what it says.
NAMES = {"k": "k_cache", "v": "v_cache", "k_new": "k", "v_new": "v", "starts": "cache_seqlens", "kv_lengths": "cache_seqlens",
         "kv_starts": "cache_leftpad", "k_scales": "k_descale", "v_scales": "v_descale"}


@torch.no_grad()
def over_cache(table_name, q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, page_table,
               rotary_interleaved, cache_leftpad, return_lse, causal, window_size, softmax_scale, softcap, seqlen_q=0, **arrays):
    """Rotates, appends, attends; `arrays` are tilewise.torch.attention's, `table_name` is what the caller calls page_table."""
    names = {**NAMES, "page_table": table_name}
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("k", k), ("v", v), ("rotary_cos", rotary_cos),
                    ("rotary_sin", rotary_sin), (table_name, page_table), ("cache_batch_idx", cache_batch_idx)):
        tensor(name, x)
    check_rows(q, k_cache, v_cache, ("q", "k_cache", "v_cache"))
    if k is not None and v is not None:
        check_rows(k, k, v, ("k", "k", "v"))
    return_lse = flag("return_softmax_lse", return_lse)
    if cache_seqlens is not None and not isinstance(cache_seqlens, torch.Tensor):
        filled = number("cache_seqlens", cache_seqlens, index, "a number, or int32 [batch]: how many rows of each cache are filled")
        of = next(x for x in (page_table, cache_batch_idx, k_cache) if x is not None)
        if not 0 <= filled <= MOST:
            raise ValueError(f"cache_seqlens is {filled}; accepted: 0 to {MOST}, and no more than the cache's rows")
        cache_seqlens = torch.full((len(of),), filled, dtype=torch.int32, device=k_cache.device)
    cache_seqlens = int32("cache_seqlens", cache_seqlens)
    if (k is None) != (v is None):
        raise ValueError(f"{'v' if v is None else 'k'} is missing; accepted: k and v, or neither")
    if k is not None and cache_seqlens is None:
        raise ValueError("k and v are given without cache_seqlens; accepted: how many rows of each cache are filled")
    if rotary_cos is not None:
        if k is None:
            raise ValueError("rotary_cos is given without k and v; accepted: rotary embedding of the rows that are appended")
        q = turned(q, rotary_cos, rotary_sin, rotary_interleaved, cache_seqlens, causal or window(window_size) != (-1, -1))
    arrays |= {"page_table": int32(table_name, page_table), "cache_batch_idx": int32("cache_batch_idx", cache_batch_idx),
               "kv_starts": int32("cache_leftpad", cache_leftpad)}
    if k is None:
        return attend(names, q, k_cache, v_cache, kv_lengths=cache_seqlens, return_lse=return_lse, causal=causal, window_size=window_size,
                      softmax_scale=softmax_scale, softcap=softcap, seqlen_q=seqlen_q, **arrays)
    numbers = numbers_of("bshd", causal, None, False, window_size, softmax_scale, softcap, 0.0, seqlen_q, 0, False, False, 0)
    arrays |= {name: fp32(name, arrays.get(name)) for name in ("k_scales", "v_scales")}
    arrays["kv_lengths"] = cache_seqlens + k.shape[1]
    new = (rows(k), rows(v), cache_seqlens, *(None if x is None else rows(x) for x in (rotary_cos, rotary_sin)))
    turns_pairs = flag("rotary_interleaved", rotary_interleaved) and rotary_cos is not None
    o, lse = append_attention(names, turns_pairs, new, rows(q), k_cache, v_cache, arrays, numbers)
    return (o, lse) if return_lse else o


def turned(q, cos, sin, interleaved, cache_seqlens, row_by_row):
    """q by the angles of the new rows' positions, or all rows by the first's, as if they were heads of one row."""
    if cos is None or sin is None:
        raise ValueError("rotary_cos comes without rotary_sin; accepted: both, or neither")
    if q.dim() != 4:
        raise ValueError(f"q is {describe(q)} with rotary_cos; accepted: [batch, seqlen, heads, head_dim], as packed rows are not "
                         "rotated (tilewise.rotary.apply_rotary_emb rotates them)")
    if cache_seqlens.shape != (len(q),):
        raise ValueError(f"cache_seqlens has shape {list(cache_seqlens.shape)}; accepted: [{len(q)}] = [batch]")
    if row_by_row:
        return apply_rotary_emb(q, cos, sin, interleaved, seqlen_offsets=cache_seqlens)
    return apply_rotary_emb(q.flatten(1, 2)[:, None], cos, sin, interleaved, seqlen_offsets=cache_seqlens).view_as(q)


def attend(names, *inputs, **options):
    """attention(), whose refusals say the caller's `names`."""
    try:
        return attention(*inputs, **options)
    except (TypeError, ValueError) as error:
        raise called_otherwise(error, names) from None


def unpacked(name, x, packed, parts):
    """The tensors that x [batch, seqlen, parts, heads, head_dim] or, packed, [total, parts, heads, head_dim] consists of."""
    if not isinstance(x, torch.Tensor):
        refuse_tensor(name, x)
    if x.is_nested or x.layout is not torch.strided or x.dim() != (4 if packed else 5) or x.shape[-3] != parts:
        rows = "[total" if packed else "[batch, seqlen"
        raise ValueError(f"{name} is {describe(x)}; accepted: {rows}, {parts}, heads, head_dim]")
    return x.unbind(-3)


def longest(name, value):
    return 0 if value is None else whole(name, value)


def lengths_of(name, ends):
    if ends is None:
        refuse_tensor(name, ends)
    return tensor(name, ends).diff()


REASONS = {
    "qv": "there is no second product for the scores; concatenate qv to q and v to k",
    "attention_chunk": "chunked attention is segment ids here: tilewise.torch.attention(segment_ids_q=..., segment_ids_kv=...)",
    "q_descale": "q is never in 8 bits; multiply q by it, in 16 bits or fp32",
    "cu_seqlens_k_new": "new keys come as [batch, rows, heads, head_dim]",
    "rotary_seqlens": "rows are rotated at their place in the cache; rotate them first (tilewise.rotary.apply_rotary_emb)",
}


def unserved(**arguments):
    """Refuses what is given of these, each with its reason."""
    given = [f"{name}: {REASONS[name]}" for name, value in arguments.items() if value is not None]
    if given:
        raise NotImplementedError("tilewise does not serve " + "; ".join(given))


def descales(k, k_descale, v_descale, cu_seqlens_k=None, blocks=False):
    """k_scales and v_scales of attention() for scales a sequence and head; `blocks`: k lies in pages or slots."""
    given = {name: x for name, x in (("k_descale", k_descale), ("v_descale", v_descale)) if x is not None}
    if not given:
        return {}
    for name, x in (("k", k), ("cu_seqlens_k", cu_seqlens_k)):
        if tensor(name, x) is None and name == "k" or x is not None and x.dim() < (1 if name != "k" else 2):
            refuse_tensor(name, x)
    batch, heads = len(k) if cu_seqlens_k is None else len(cu_seqlens_k) - 1, k.shape[-2]
    reasons = []
    for name, x in given.items():
        tensor(name, x)
        if k.dtype != getattr(torch, "float8_e4m3fn", None):
            reasons.append(f"{name}: k and v are {str(k.dtype).removeprefix('torch.')}, and scales are of float8_e4m3fn")
        if blocks:
            reasons.append(f"{name}: scales of pages and slots are theirs, as sequences may share them "
                           "(tilewise.torch.attention(k_scales=..., v_scales=...))")
        elif tuple(x.shape) != (batch, heads):
            reasons.append(f"{name}: it has shape {list(x.shape)}, and scales are [{batch}, {heads}] = [batch, heads_kv]")
    if reasons:
        raise NotImplementedError("tilewise does not serve " + "; ".join(reasons))
    ones = torch.ones(batch, heads, dtype=torch.float32, device=k.device)
    return {"k_scales": ones if k_descale is None else k_descale, "v_scales": ones if v_descale is None else v_descale}

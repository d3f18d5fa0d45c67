"""attention() and its backward: arguments completed, outputs made, one call of the library."""

from typing import Any, NamedTuple

from . import _core
from ._arguments import Setting, check_options, complete, flag, layout_of, output_shapes, plain_problem, refused, with_bits
from ._frameworks import describe, framework_of


def attention(q: Any, k: Any, v: Any, *, layout: str = "bshd", causal: bool | str = False,
              window_size: tuple[int, int] | None = None, softmax_scale: float | None = None, softcap: float = 0.0,
              bias: Any = None, mask: Any = None, q_lengths: Any = None, kv_lengths: Any = None, kv_starts: Any = None,
              q_offset: Any = None, page_table: Any = None, cache_batch_idx: Any = None, cu_seqlens_q: Any = None,
              cu_seqlens_kv: Any = None, seqlen_q: int = 0, seqlen_kv: int = 0, segment_ids_q: Any = None,
              segment_ids_kv: Any = None, kv_ranges: Any = None, alibi_slopes: Any = None, sinks: Any = None,
              dropout_p: float = 0.0, dropout_seed: int | None = None, dropout_offset: int = 0, dropout_state: Any = None,
              batch_invariant: bool = False, k_scales: Any = None, v_scales: Any = None, scale_rows: int = 0, out: Any = None,
              return_lse: bool = False) -> Any:
    """softmax(scale q k^T + ...) v, exactly, without the scores in memory.

    Shapes: B batch, Sq and Skv rows, Hq and Hkv heads (Hq a multiple of Hkv), D and Dv head dimensions.

    q              [B, Sq, Hq, D]; fp32, fp16 or bf16, k and v of the same type. layout="bhsd": [B, Hq, Sq, D], likewise all
    k              [B, Skv, Hkv, D]
    v              [B, Skv, Hkv, Dv]
    causal         True or "bottom-right": the last query sees the last key. "top-left": query 0 sees key 0
    window_size    (left, right): keys p - left to p + right of a query at p, both inclusive, -1 = unbounded
    softmax_scale  None = 1/sqrt(D); 0 and negative are legal
    softcap        cap * tanh(score / cap); 0 = none
    bias           float, added to the scores; broadcasts to [B, Hq, Sq, Skv] from the right; -inf hides
    mask           bool, likewise; True = may attend. uint8: its bits, np.packbits(mask, axis=-1, bitorder="little")
    q_lengths, kv_lengths, kv_starts  int32 [B]: rows before q_lengths are queries, [kv_starts, kv_lengths) keys
    q_offset       position of query 0: an integer, or int32 [B]
    page_table     int32 [B, max_pages]: k and v are pages of any size, [num_pages, page_size, Hkv, ...]; key j of sequence b is
                   row j % page_size of page page_table[b, j // page_size]. Pages that nothing is read from need not exist.
                   New keys: cache_append()
    cache_batch_idx  int32 [B]: k and v are slots, [cache_slots, Skv, Hkv, ...]; the slot of each sequence
    k_scales, v_scales  fp32: k and v are int8 or float8_e4m3fn, times a scale for each head and page, slot or sequence,
                   [blocks, Hkv]; with scale_rows = n for each n rows of one, [blocks, ceil(rows / n), Hkv].
                   Nothing may want a gradient
    cu_seqlens_q, cu_seqlens_kv       int32 or int64 [B + 1]: packed sequences; q is [total_q, Hq, D], k and v
                   [total_kv, Hkv, ...]; seqlen_q and seqlen_kv the longest of them (0: read here; needed on CUDA).
                   Rows of o past the last sequence are not written
    segment_ids_q, segment_ids_kv     int32 [B, Sq] and [B, Skv] (packed: [total]): a query sees keys of its own id
    kv_ranges      int32 [B, Sq, 2] (packed: [total_q, 2]): a query sees keys in [first, last)
    alibi_slopes   fp32 [Hq] or [B, Hq]: adds -slope * |p - key|
    sinks          fp32 [Hq]: a key without a value, unscaled
    dropout_p      in [0, 1), with dropout_seed and dropout_offset, or dropout_state uint64 [2] = both, on q's device
    out            an array like o, written and returned
    return_lse     also the log-sum-exp of each row: fp32 [B, Hq, Sq], packed [Hq, total_q]; natural logarithm

    Returns o [B, Sq, Hq, Dv] of q's framework, type and device (packed: [total_q, Hq, Dv]), or (o, lse). Of PyTorch's
    tensors that require a gradient it is tilewise.torch.attention(); the gradients of others are attention_backward().
    Raises TypeError or ValueError for an argument, NotImplementedError with every kernel's reason where none can run it.

    >>> import numpy as np
    >>> q = np.zeros((1, 3, 2, 4), np.float32)
    >>> v = np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1)
    >>> o, lse = attention(q, q[:, :, :1], v, causal=True, return_lse=True)
    >>> o[0, :, 0, 0].tolist()
    [0.0, 0.5, 1.0]
    >>> np.exp(lse[0, 0]).round(3).tolist()
    [1.0, 2.0, 3.0]
    """
    if return_lse is not True and return_lse is not False:
        return_lse = flag("return_lse", return_lse)
    # What costs as much as a small call is to carry absent arrays along.
    if type(q) is type(k) is type(v) and (
            bias is mask is q_lengths is kv_lengths is kv_starts is q_offset is page_table is cache_batch_idx
            is cu_seqlens_q is cu_seqlens_kv is segment_ids_q is segment_ids_kv is kv_ranges is alibi_slopes is sinks
            is dropout_state is dropout_seed is k_scales is v_scales is None):
        framework = framework_of("q", q)
        if len(q.shape) == len(k.shape) == len(v.shape) == 4 and not framework.tracks(q, k, v):
            return _plain(framework, q, k, v, out, return_lse, layout, causal, window_size, softmax_scale, softcap, dropout_p,
                          seqlen_q, seqlen_kv, batch_invariant, scale_rows)
    arguments = complete(q, k, v, layout, causal, window_size, softmax_scale, softcap, bias, mask, q_lengths, kv_lengths,
                         kv_starts, q_offset, page_table, cache_batch_idx, cu_seqlens_q, cu_seqlens_kv, seqlen_q,
                         seqlen_kv, segment_ids_q, segment_ids_kv, kv_ranges, alibi_slopes, sinks, dropout_p, dropout_seed,
                         dropout_offset, dropout_state, batch_invariant, k_scales=k_scales, v_scales=v_scales,
                         scale_rows=scale_rows)
    framework, arrays = arguments.framework, arguments.arrays
    o_shape, lse_shape = output_shapes(arguments)
    if framework.tracks(q, k, v, bias, sinks):
        return _differentiable(q, k, v, out, return_lse, dropout_state, dropout_seed, dropout_offset, layout=layout,
                               causal=causal, window_size=window_size, softmax_scale=softmax_scale, softcap=softcap, bias=bias,
                               mask=mask, q_lengths=q_lengths, kv_lengths=kv_lengths, kv_starts=kv_starts,
                               q_offset=q_offset, page_table=page_table, cache_batch_idx=cache_batch_idx,
                               cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, seqlen_q=seqlen_q,
                               seqlen_kv=seqlen_kv, segment_ids_q=segment_ids_q, segment_ids_kv=segment_ids_kv,
                               kv_ranges=kv_ranges, alibi_slopes=alibi_slopes, sinks=sinks,
                               dropout_p=dropout_p, batch_invariant=batch_invariant, k_scales=k_scales, v_scales=v_scales,
                               scale_rows=scale_rows)
    if out is None:
        arrays["o"] = framework.empty(q, o_shape)
    else:
        arrays["o"] = writable("out", out)
    if return_lse:
        arrays["lse"] = framework.empty(q, lse_shape, "float32")
    try:
        _core.attention(arguments.problem, with_bits(arrays), *arguments.setting, *arguments.scalars)
    except (TypeError, ValueError) as error:
        raise refused(error, arrays, {"o": "out"}) from None
    o = out if out is not None else framework.result(arrays["o"])
    return (o, framework.result(arrays["lse"])) if return_lse else o


def _plain(framework: Any, q: Any, k: Any, v: Any, out: Any, return_lse: bool, layout: str, *scalars: Any) -> Any:
    """attention() of q, k and v of one framework, nothing else."""
    problem = plain_problem(layout, *scalars)
    arrays = {"q": framework.read(q), "k": framework.read(k), "v": framework.read(v)}
    shape, columns, bhsd, cuda = q.shape, v.shape[-1], layout == "bhsd", framework.is_cuda(q)
    if out is None:
        arrays["o"] = framework.empty(q, shape if shape[-1] == columns else (*shape[:-1], columns))
    else:
        arrays["o"] = writable("out", out)
    if return_lse:
        arrays["lse"] = framework.empty(q, shape[:3] if bhsd else (shape[0], shape[2], shape[1]), "float32")
    try:
        _core.attention(problem, arrays, bhsd, cuda, framework.stream(q) if cuda else 0, 0 if cuda else framework.threads(), 0, 0, 0)
    except (TypeError, ValueError) as error:
        raise refused(error, arrays, {"o": "out"}) from None
    o = out if out is not None else framework.result(arrays["o"])
    return (o, framework.result(arrays["lse"])) if return_lse else o


def _differentiable(q: Any, k: Any, v: Any, out: Any, return_lse: bool, dropout_state: Any, seed: int | None, offset: int,
                    **options: Any) -> Any:
    """A tensor of PyTorch that wants a gradient gets one."""
    from .torch import attention as torch_attention
    from .torch import torch

    if out is not None:
        raise ValueError(f"out is {describe(out)}, and q, k, v, bias or sinks require a gradient; accepted: no out, or a call "
                         "under torch.no_grad()")
    if seed is not None and dropout_state is None:
        dropout_state = torch.tensor([(x + 2**63) % 2**64 - 2**63 for x in (seed, offset)], device=q.device)
    return torch_attention(q, k, v, dropout_state=dropout_state, return_lse=return_lse, **options)


def writable(name: str, array: Any) -> Any:
    framework = framework_of(name, array)
    if framework.name == "jax":
        raise TypeError(f"{name} is {describe(array)}; accepted: an array that can be written (JAX's cannot)")
    return framework.read(array)


class Gradients(NamedTuple):
    """What attention_backward() returns; None for what was not wanted."""

    dq: Any = None
    dk: Any = None
    dv: Any = None
    dbias: Any = None
    dsinks: Any = None


def attention_backward(dout: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *, dlse: Any = None, delta: Any = None,
                       wants: tuple[str, ...] | None = None, out: dict[str, Any] | None = None, accumulate: bool = False,
                       deterministic: bool = False, **options: Any) -> Gradients:
    """Gradients of attention(q, k, v, **options), from its o and lse; the scores are computed again, tile by tile.

    dout           [B, Sq, Hq, Dv], in the layout of q
    o, lse         attention()'s, with return_lse=True. o may be None where delta is given
    dlse           fp32 like lse: a gradient that arrives through lse
    delta          fp32 like lse: rowsum(dout * o)
    wants          of "dq", "dk", "dv", "dbias", "dsinks"; None = all that there are
    out            arrays to write, by those names; others are made like q, k, v, bias, sinks
    accumulate     add to dq, dk and dv of `out`, which must be fp32

    >>> import numpy as np
    >>> q = k = v = np.zeros((1, 2, 1, 4), np.float32)
    >>> o, lse = attention(q, k, v, return_lse=True)
    >>> attention_backward(np.ones_like(o), q, k, v, o, lse).dv[0, :, 0].tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    """
    check_options("attention_backward", options)
    arguments = complete(q, k, v, direction=_core.BACKWARD, accumulate=accumulate, deterministic=deterministic, **options)
    framework, arrays = arguments.framework, arguments.arrays
    output_shapes(arguments)
    for name, array in (("dout", dout), ("o", o), ("lse", lse), ("dlse", dlse), ("delta", delta)):
        if array is not None:
            arrays[name] = framework_of(name, array).read(array)
    given = {"dq": q, "dk": k, "dv": v, "dbias": options.get("bias"), "dsinks": options.get("sinks")}
    if out is not None and not hasattr(out, "keys"):
        raise TypeError(f"out is {describe(out)}; accepted: arrays to write, by the names of gradients")
    outputs = dict(out or {})
    if wants is None:
        wants = tuple(name for name, of in given.items() if of is not None)
    elif isinstance(wants, str) or hasattr(wants, "shape") or not hasattr(wants, "__iter__"):
        raise TypeError(f"wants is {describe(wants)}; accepted: names of gradients, as (\"dq\", \"dk\")")
    for argument, names in (("out", outputs), ("wants", wants)):
        for name in names:
            if not isinstance(name, str) or name not in given:
                raise ValueError(f"{argument} has {name!r}, which is no gradient; accepted: {', '.join(given)}")
    made = {}
    for name in wants:
        if given[name] is None:
            raise ValueError(f"wants has {name} without {name[1:]}; accepted: gradients of arrays that are given")
        if name in outputs:
            arrays[name] = writable(name, outputs[name])
        else:
            made[name] = arrays[name] = framework.empty(q, tuple(given[name].shape), given[name].dtype)
    try:
        _core.attention(arguments.problem, with_bits(arrays), *arguments.setting, *arguments.scalars)
    except (TypeError, ValueError) as error:
        raise refused(error, arrays) from None
    return Gradients(**{name: outputs[name] if name in outputs else framework.result(made[name]) for name in wants})


def merge(o: Any, lse: Any, o_part: Any, lse_part: Any, *, layout: str = "bshd") -> None:
    """Folds a part into (o, lse), in place: softmax over both key sets. A part whose lse is -inf changes nothing.

    o, o_part      [B, Sq, Hq, Dv], layout="bhsd": [B, Hq, Sq, Dv], packed: [total, Hq, Dv]; o best in fp32
    lse, lse_part  fp32 [B, Hq, Sq], packed [Hq, total]

    >>> import numpy as np
    >>> q = np.ones((1, 1, 1, 4), np.float32)
    >>> k = v = np.arange(24, dtype=np.float32).reshape(1, 6, 1, 4) / 24
    >>> o, lse = attention(q, k[:, :2], v[:, :2], return_lse=True)
    >>> merge(o, lse, *attention(q, k[:, 2:], v[:, 2:], return_lse=True))
    >>> np.allclose(o, attention(q, k, v))
    True
    """
    bhsd = layout_of(layout)
    arrays = {"o": writable("o", o), "lse": writable("lse", lse), "o_part": framework_of("o_part", o_part).read(o_part),
              "lse_part": framework_of("lse_part", lse_part).read(lse_part)}
    framework = framework_of("o", o)
    cuda = framework.is_cuda(o)
    setting = Setting(bhsd, cuda, framework.stream(o) if cuda else 0, framework.threads())
    try:
        _core.merge(*arrays.values(), *setting)
    except (TypeError, ValueError) as error:
        raise refused(error, arrays) from None

"""The operators that torch sees: forward and backward as custom ops, so that autograd, torch.compile and fake tensors work.

An operator's arguments are tensors and plain numbers; `tilewise.torch.attention` makes them from a user's.
"""

from typing import Optional

import torch
from torch import Tensor

from . import _core
from ._arguments import refused

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_OPTIONAL = ("bias", "sinks", "mask", "q_lengths", "kv_lengths", "kv_starts", "q_offset", "cu_seqlens_q", "cu_seqlens_kv",
             "segment_ids_q", "segment_ids_kv", "kv_ranges", "alibi_slopes", "dropout_state")


def _run(direction: int, arrays: dict, bhsd: bool, causal: bool, position: int, offset: int, left: int, right: int,
         scale: Optional[float], softcap: float, dropout_p: float, seqlen_q: int, seqlen_kv: int,
         deterministic: bool, batch_invariant: bool) -> None:
    problem = _core.Problem()
    problem.direction, problem.causal, problem.position = direction, int(causal), position
    problem.window_left, problem.window_right = left, right
    if scale is not None:
        problem.softmax_scale = scale
    problem.softcap, problem.dropout_p, problem.deterministic = softcap, dropout_p, int(deterministic)
    problem.seqlen_q, problem.seqlen_kv, problem.batch_invariant = seqlen_q, seqlen_kv, int(batch_invariant)
    q = arrays["q"]
    stream = torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else 0
    try:
        _core.attention(problem, {name: None if x is None else x.detach() for name, x in arrays.items()}, bhsd, q.is_cuda,
                        stream, torch.get_num_threads(), offset, 0, 0)
    except (TypeError, ValueError) as error:
        raise refused(error, arrays) from None


def _empty_o(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _empty_lse(q: Tensor, packed: bool, bhsd: bool) -> Tensor:
    if packed:
        shape = (q.shape[1], q.shape[0])
    else:
        shape = q.shape[:3] if bhsd else (q.shape[0], q.shape[2], q.shape[1])
    return q.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("tilewise::attention", mutates_args=())
def attention_op(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor], mask: Optional[Tensor],
                 q_lengths: Optional[Tensor], kv_lengths: Optional[Tensor], kv_starts: Optional[Tensor],
                 q_offset: Optional[Tensor], cu_seqlens_q: Optional[Tensor], cu_seqlens_kv: Optional[Tensor],
                 segment_ids_q: Optional[Tensor], segment_ids_kv: Optional[Tensor], kv_ranges: Optional[Tensor],
                 alibi_slopes: Optional[Tensor], dropout_state: Optional[Tensor], bhsd: bool, causal: bool, position: int,
                 offset: int, left: int, right: int, scale: Optional[float], softcap: float, dropout_p: float,
                 seqlen_q: int, seqlen_kv: int, deterministic: bool, batch_invariant: bool) -> tuple[Tensor, Tensor]:
    """o and lse."""
    o, lse = _empty_o(q, v), _empty_lse(q, cu_seqlens_q is not None, bhsd)
    arrays = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "bias": bias, "sinks": sinks, "mask": mask,
              "q_lengths": q_lengths, "kv_lengths": kv_lengths, "kv_starts": kv_starts, "q_offset": q_offset,
              "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv, "segment_ids_q": segment_ids_q,
              "segment_ids_kv": segment_ids_kv, "kv_ranges": kv_ranges, "alibi_slopes": alibi_slopes,
              "dropout_state": dropout_state}
    _run(_core.FORWARD, arrays, bhsd, causal, position, offset, left, right, scale, softcap, dropout_p, seqlen_q, seqlen_kv,
         deterministic, batch_invariant)
    return o, lse


@attention_op.register_fake
def _(q, k, v, bias, sinks, mask, q_lengths, kv_lengths, kv_starts, q_offset, cu_seqlens_q, cu_seqlens_kv, segment_ids_q,
      segment_ids_kv, kv_ranges, alibi_slopes, dropout_state, bhsd, *numbers):
    return _empty_o(q, v), _empty_lse(q, cu_seqlens_q is not None, bhsd)


@torch.library.custom_op("tilewise::attention_backward", mutates_args=())
def backward_op(dout: Tensor, dlse: Optional[Tensor], o: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor,
                bias: Optional[Tensor], sinks: Optional[Tensor], mask: Optional[Tensor], q_lengths: Optional[Tensor],
                kv_lengths: Optional[Tensor], kv_starts: Optional[Tensor], q_offset: Optional[Tensor],
                cu_seqlens_q: Optional[Tensor], cu_seqlens_kv: Optional[Tensor], segment_ids_q: Optional[Tensor],
                segment_ids_kv: Optional[Tensor], kv_ranges: Optional[Tensor], alibi_slopes: Optional[Tensor],
                dropout_state: Optional[Tensor], wants_dbias: bool, wants_dsinks: bool, bhsd: bool, causal: bool,
                position: int, offset: int, left: int, right: int, scale: Optional[float], softcap: float,
                dropout_p: float, seqlen_q: int, seqlen_kv: int,
                deterministic: bool, batch_invariant: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, dbias, dsinks; the last two empty where they are not wanted."""
    dq, dk, dv, dbias, dsinks = _empty_gradients(q, k, v, bias if wants_dbias else None, sinks if wants_dsinks else None)
    arrays = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "dout": dout, "dlse": dlse, "bias": bias, "sinks": sinks,
              "mask": mask, "q_lengths": q_lengths, "kv_lengths": kv_lengths, "kv_starts": kv_starts, "q_offset": q_offset,
              "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv, "segment_ids_q": segment_ids_q,
              "segment_ids_kv": segment_ids_kv, "kv_ranges": kv_ranges, "alibi_slopes": alibi_slopes,
              "dropout_state": dropout_state, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias if wants_dbias else None,
              "dsinks": dsinks if wants_dsinks else None}
    _run(_core.BACKWARD, arrays, bhsd, causal, position, offset, left, right, scale, softcap, dropout_p, seqlen_q,
         seqlen_kv, deterministic, batch_invariant)
    return dq, dk, dv, dbias, dsinks


def _empty_gradients(q, k, v, bias, sinks):
    return tuple(q.new_empty(0) if x is None else x.new_empty(x.shape) for x in (q, k, v, bias, sinks))


@backward_op.register_fake
def _(dout, dlse, o, lse, q, k, v, bias, sinks, mask, q_lengths, kv_lengths, kv_starts, q_offset, cu_seqlens_q,
      cu_seqlens_kv, segment_ids_q, segment_ids_kv, kv_ranges, alibi_slopes, dropout_state, wants_dbias, wants_dsinks,
      *numbers):
    return _empty_gradients(q, k, v, bias if wants_dbias else None, sinks if wants_dsinks else None)


_TENSORS = 3 + len(_OPTIONAL)


def _setup_context(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *inputs[:_TENSORS])
    ctx.numbers = inputs[_TENSORS:]


def _backward(ctx, dout, dlse):
    o, lse, *inputs = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(o)
    if dout.shape[-1] > 1 and dout.stride(-1) != 1:
        dout = dout.contiguous()
    needs = ctx.needs_input_grad
    gradients = backward_op(dout, dlse, o, lse, *inputs, needs[3], needs[4], *ctx.numbers)
    used = [gradient if need else None for gradient, need in zip(gradients, needs)]
    return (*used, *[None] * (_TENSORS - 5 + len(ctx.numbers)))


attention_op.register_autograd(_backward, setup_context=_setup_context)


def _refuse_vmap(*_):
    raise RuntimeError("tilewise's attention has no rule for torch.vmap; accepted: fold the mapped dimension into batch, which "
                       "costs nothing, or loop over it")


attention_op.register_vmap(_refuse_vmap)
backward_op.register_vmap(_refuse_vmap)

"""The operators that torch sees: forward and backward as custom ops, so that autograd, torch.compile and fake tensors work.

Their arguments are tensors, None where absent, then plain numbers, in the order of the two schemas; `tilewise.torch` makes
them from a user's.
"""

from functools import lru_cache

from . import _core
from ._arguments import refused, with_bits
from ._pytorch import torch

OPTIONAL = ("bias", "sinks", "mask", "q_lengths", "kv_lengths", "kv_starts", "q_offset", "page_table", "cache_batch_idx",
            "cu_seqlens_q", "cu_seqlens_kv", "segment_ids_q", "segment_ids_kv", "kv_ranges", "alibi_slopes", "dropout_state", "k_scales",
            "v_scales")
INPUTS = ("q", "k", "v", *OPTIONAL)
_GRADIENTS = ("dq", "dk", "dv", "dbias", "dsinks")
TENSORS = "Tensor q, Tensor k, Tensor v, " + ", ".join(f"Tensor? {name}" for name in OPTIONAL)
NUMBERS = ("bool bhsd, SymInt offset, bool causal, int position, SymInt left, SymInt right, float? scale, float softcap, "
            "float dropout_p, SymInt seqlen_q, SymInt seqlen_kv, bool deterministic, bool batch_invariant, SymInt scale_rows")


@lru_cache(maxsize=256)
def _problem(direction, causal, position, left, right, scale, softcap, dropout_p, seqlen_q, seqlen_kv, deterministic,
             batch_invariant, scale_rows):
    problem = _core.Problem()
    problem.direction, problem.causal, problem.position = direction, int(causal), position
    problem.window_left, problem.window_right = left, right
    if scale is not None:
        problem.softmax_scale = scale
    problem.softcap, problem.dropout_p = softcap, dropout_p
    problem.seqlen_q, problem.seqlen_kv = seqlen_q, seqlen_kv
    problem.deterministic, problem.batch_invariant = int(deterministic), int(batch_invariant)
    problem.scale_rows = scale_rows
    return problem


# Where the version has DLPack's C exchange, tensors are read as they are; __dlpack__ refuses those that require a gradient.
_DETACHES = not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def _given(arguments):
    """The tensors that are there, by name."""
    return {name: x for name, x in zip(INPUTS, arguments) if x is not None}


def _run(direction, arrays, bhsd, offset, *numbers):
    q = arrays["q"]
    cuda = q.is_cuda
    stream = torch._C._cuda_getCurrentRawStream(q.get_device()) if cuda else 0
    threads = 0 if cuda else torch.get_num_threads()
    if _DETACHES:
        arrays.update((name, x.detach()) for name, x in arrays.items() if x.requires_grad)
    try:
        _core.attention(_problem(direction, *numbers), with_bits(arrays), bhsd, cuda, stream, threads, offset, 0, 0)
    except (TypeError, ValueError) as error:
        raise refused(error, arrays) from None


def _empty_outputs(arrays, bhsd, wants_lse=True):
    """o and lse, or None where it is not wanted."""
    q, columns = arrays["q"], arrays["v"].shape[-1]
    shape = q.shape
    if "cu_seqlens_q" in arrays:
        stats = (shape[1], shape[0])
    else:
        stats = shape[:3] if bhsd else (shape[0], shape[2], shape[1])
    # empty_like is 3 us faster than new_empty, and keeps the order of q's dimensions in memory, as PyTorch's own function does.
    o = torch.empty_like(q) if shape[-1] == columns else q.new_empty((*shape[:-1], columns))
    # Sizes by place are half a microsecond faster than as a tuple.
    return o, torch.empty(*stats, dtype=torch.float32, device=q.device) if wants_lse else None


def forward(*arguments):
    """o and lse."""
    return _forward(arguments, True)


def _forward(arguments, wants_lse):
    return _computed(_given(arguments), arguments[len(INPUTS):], wants_lse)


def _computed(arrays, numbers, wants_lse):
    arrays["o"], lse = _empty_outputs(arrays, numbers[0], wants_lse)
    if wants_lse:
        arrays["lse"] = lse
    _run(_core.FORWARD, arrays, *numbers)
    return arrays["o"], lse


def _empty_gradients(arrays, wants_dbias, wants_dsinks):
    """dq, dk, dv, dbias, dsinks; the last two have no element where they are not wanted."""
    of = [arrays.get(name) for name in INPUTS[:5]]
    wants = (True, True, True, wants_dbias, wants_dsinks)
    return *map(torch.empty_like, of[:3]), *(x.new_empty(x.shape) if want else of[0].new_empty(0) for x, want in zip(of[3:], wants[3:]))


def backward(dout, dlse, o, lse, wants_dbias, wants_dsinks, *arguments):
    """The five gradients."""
    arrays, numbers = _given(arguments), arguments[len(INPUTS):]
    gradients = _empty_gradients(arrays, wants_dbias, wants_dsinks)
    arrays.update(dout=dout, o=o, lse=lse)
    if dlse is not None:
        arrays["dlse"] = dlse
    wants = (True, True, True, wants_dbias, wants_dsinks)
    arrays.update((name, x) for name, x, want in zip(_GRADIENTS, gradients, wants) if want)
    _run(_core.BACKWARD, arrays, *numbers)
    return gradients


attention_op = torch.library.custom_op("tilewise::attention", forward, mutates_args=(),
                                       schema=f"({TENSORS}, {NUMBERS}) -> (Tensor, Tensor)")
backward_op = torch.library.custom_op(
    "tilewise::attention_backward", backward, mutates_args=(),
    schema=f"(Tensor dout, Tensor? dlse, Tensor o, Tensor lse, bool wants_dbias, bool wants_dsinks, {TENSORS}, {NUMBERS}) "
           "-> (Tensor, Tensor, Tensor, Tensor, Tensor)")


@attention_op.register_fake
def _(*arguments):
    return _empty_outputs(_given(arguments), arguments[len(INPUTS)])


@backward_op.register_fake
def _(dout, dlse, o, lse, wants_dbias, wants_dsinks, *arguments):
    return _empty_gradients(_given(arguments), wants_dbias, wants_dsinks)


def _setup_context(ctx, inputs, output):
    """Keeps the tensors that are there: a place for each that is not costs as much as for one that is."""
    ctx.set_materialize_grads(False)
    ctx.places = [n for n, x in enumerate(inputs[:len(INPUTS)]) if x is not None]
    ctx.save_for_backward(*output, *[inputs[n] for n in ctx.places])
    ctx.numbers = inputs[len(INPUTS):]


def _gradients(ctx, dout, dlse, run):
    o, lse, *given = ctx.saved_tensors
    inputs = [None] * len(INPUTS)
    for n, x in zip(ctx.places, given):
        inputs[n] = x
    if dout is None:
        dout = torch.zeros_like(o)
    if dout.shape[-1] > 1 and dout.stride(-1) != 1:
        dout = dout.contiguous()
    needs = (*ctx.needs_input_grad, False)  # _Plain has neither bias nor sinks
    gradients = run(dout, dlse, o, lse, needs[3], needs[4], *inputs, *ctx.numbers)
    used = [gradient if need else None for gradient, need in zip(gradients, needs)]
    return *used[:len(ctx.needs_input_grad)], *[None] * (len(ctx.needs_input_grad) - len(used))


def _refuse_vmap(*_):
    raise RuntimeError("tilewise's attention has no rule for torch.vmap; accepted: fold the mapped dimension into batch, which "
                       "costs nothing, or loop over it")


def _refuse_second(*_):
    raise NotImplementedError("tilewise's attention has no second derivatives; accepted: a backward without create_graph=True, or "
                              "the formula in PyTorch's own operators where its gradient is differentiated again")


def _refuse_tangents(*_):
    raise NotImplementedError("tilewise's attention has no forward-mode derivatives (torch.func.jvp, jacfwd, "
                              "torch.autograd.forward_ad); accepted: reverse mode (torch.func.vjp, backward)")


attention_op.register_autograd(lambda ctx, *douts: _gradients(ctx, *douts, backward_op), setup_context=_setup_context)
attention_op.register_vmap(_refuse_vmap)
backward_op.register_autograd(_refuse_second)
backward_op.register_vmap(_refuse_vmap)


def _first_gradients(ctx, *douts):
    """The engine enables gradients in a backward with create_graph=True: what it returned would count as constant."""
    if torch.is_grad_enabled():
        _refuse_second()
    return _gradients(ctx, *douts, backward)


class _Eager(torch.autograd.Function):
    """The same two functions without the dispatcher, whose way through Python costs more than a small call."""

    @staticmethod
    def forward(ctx, q, k, v, bias, sinks, others):
        arguments = q, k, v, bias, sinks, *others
        output = forward(*arguments)
        _setup_context(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx, *douts):
        return _first_gradients(ctx, *douts)


class _Plain(torch.autograd.Function):
    """Of q, k and v alone."""

    @staticmethod
    def forward(ctx, q, k, v, numbers):
        o, lse = _computed({"q": q, "k": k, "v": v}, numbers, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(o, lse, q, k, v)
        ctx.places, ctx.numbers = (0, 1, 2), numbers
        return o, lse

    @staticmethod
    def backward(ctx, *douts):
        return _first_gradients(ctx, *douts)


class _Transformed(torch.autograd.Function):
    """Within torch.func's transforms and forward-mode AD, which compose what they are given whole."""

    @staticmethod
    def forward(*arguments):
        return forward(*arguments)

    setup_context = staticmethod(_setup_context)
    jvp = staticmethod(_refuse_tangents)
    vmap = staticmethod(_refuse_vmap)

    @staticmethod
    def backward(ctx, *douts):
        return _gradients(ctx, *douts, _TransformedBackward.apply)


class _TransformedBackward(torch.autograd.Function):
    """torch.func.grad lets each gradient be differentiated, so that only a second derivative that is asked for is refused."""

    @staticmethod
    def forward(*arguments):
        return backward(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(_refuse_second)
    jvp = staticmethod(_refuse_tangents)
    vmap = staticmethod(_refuse_vmap)


PLAIN = (torch.Tensor, torch.nn.Parameter)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


_forward_ad = torch.autograd.forward_ad


def traced(x):
    """Whether nobody may look at x's numbers."""
    return torch.compiler.is_compiling() or type(x) not in PLAIN or _modes() or _transforms()


def _long_way(q):
    """None for plain tensors outside of any tracing; else what takes the operator's arguments."""
    if torch.compiler.is_compiling():
        if _forward_ad._current_level >= 0:
            _refuse_tangents()
        return attention_op
    if _transforms() or _forward_ad._current_level >= 0:
        return _Transformed.apply
    return attention_op if type(q) not in PLAIN or _modes() else None


def apply(wants_lse, *arguments):
    """o and lse, which may be None where it is not wanted."""
    q, k, v, bias, sinks, *others = arguments
    way = _long_way(q)
    if way is not None:
        return way(*arguments)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or bias is not None and bias.requires_grad
                                    or sinks is not None and sinks.requires_grad):
        return _Eager.apply(q, k, v, bias, sinks, others)
    return _forward(arguments, wants_lse)


_ABSENT = (None,) * len(OPTIONAL)


def apply_plain(wants_lse, q, k, v, *numbers):
    """apply() without optional tensors: what costs as much as a small call is to carry them along."""
    way = _long_way(q)
    if way is not None:
        return way(q, k, v, *_ABSENT, *numbers)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Plain.apply(q, k, v, numbers)
    return _computed({"q": q, "k": k, "v": v}, numbers, wants_lse)

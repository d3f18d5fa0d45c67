"""Append to a cache and attend over it, as one call of the library: where either is refused, nothing is written."""

from . import _core
from ._arguments import refused, with_bits
from ._pytorch import torch
from ._torch_ops import INPUTS, NUMBERS, OPTIONAL, TENSORS, _empty_outputs, _given, _problem, traced

ROWS = ("k_new", "v_new", "starts", "rotary_cos", "rotary_sin")


def run(names, rotary_interleaved, *arguments):
    """o and lse; `names` are the caller's own for the library's. Arguments are ROWS, then those of the forward operator."""
    new, arguments = arguments[:len(ROWS)], arguments[len(ROWS):]
    arrays, (bhsd, offset, *numbers) = _given(arguments), arguments[len(INPUTS):]
    appended = {name: x for name, x in zip(ROWS, new) if x is not None}
    for name in ("k", "v", "page_table", "cache_batch_idx", "k_scales", "v_scales"):
        if name in arrays:
            appended[name] = arrays[name]
    arrays["o"], arrays["lse"] = _empty_outputs(arrays, bhsd)
    cuda = arrays["q"].is_cuda
    for of in (arrays, appended):
        of.update((name, x.detach()) for name, x in of.items() if x.requires_grad)
    stream = torch._C._cuda_getCurrentRawStream(arrays["q"].get_device()) if cuda else 0
    try:
        _core.append_attention(appended, rotary_interleaved, _problem(_core.FORWARD, *numbers), with_bits(arrays), bhsd, cuda, stream,
                               0 if cuda else torch.get_num_threads(), offset)
    except (TypeError, ValueError) as error:
        raise refused(error, {**appended, **arrays}, names) from None
    return arrays["o"], arrays["lse"]


_OF_ROWS = "Tensor k_new, Tensor v_new, Tensor starts, Tensor? rotary_cos, Tensor? rotary_sin"
_WRITTEN = TENSORS.replace("Tensor k,", "Tensor(a!) k,").replace("Tensor v,", "Tensor(b!) v,")
append_op = torch.library.custom_op("tilewise::append_attention", lambda *arguments: run({}, *arguments), mutates_args=("k", "v"),
                                    schema=f"(bool rotary_interleaved, {_OF_ROWS}, {_WRITTEN}, {NUMBERS}) -> (Tensor, Tensor)")


@append_op.register_fake
def _(rotary_interleaved, *arguments):
    arguments = arguments[len(ROWS):]
    return _empty_outputs(_given(arguments), arguments[len(INPUTS)])


def append_attention(names, rotary_interleaved, new, q, k, v, options, numbers):
    """New rows (of ROWS) into k and v, then attention of q over them; `options` of OPTIONAL by name."""
    arguments = (rotary_interleaved, *new, q, k, v, *(options.get(name) for name in OPTIONAL), *numbers)
    return append_op(*arguments) if traced(q) else run(names, *arguments)

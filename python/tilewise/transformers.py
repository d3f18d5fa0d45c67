"""Hugging Face: `attn_implementation="tilewise"`, after `import tilewise.transformers`.

Registered are the attention and its mask: an implementation with only the first silently gets no mask. Masks arrive compact:
not at all where causal order says everything; padding as lengths, windows as windows, packed sequences as cu_seqlens,
prefixes, image blocks and chunks as the interval of keys that each row sees (`kv_ranges`); a mask whose rows have several
intervals as boolean [batch, 1, queries, keys]. Softcaps, sinks (`s_aux`) and position biases keep their own arguments.

    import tilewise.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tilewise")
"""

import inspect

try:
    import transformers
    from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask
except ImportError:
    raise ImportError("tilewise.transformers needs Hugging Face's transformers 5 (pip install transformers)") from None

from ._transformers_masks import ATTRIBUTE, NotKnown, compact_mask, leaves, ranges_of
from .torch import attention, torch

NAME = "tilewise"


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, softcap=None,
                      s_aux=None, position_bias=None, **kwargs):
    """query [B, Hq, Sq, D], key and value [B, Hkv, Skv, D]. Returns o [B, Sq, Hq, D] and, with output_attentions, P.

    Without a mask, causal modules attend from the top-left corner: longer keys are a static cache's empty rest.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    options = {"softmax_scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux, "bias": position_bias}
    weigh = kwargs.get("output_attentions")
    if attention_mask is None:
        options["causal"] = "top-left" if is_causal and query.shape[2] > 1 else False
    elif attention_mask.dtype == torch.int32:
        options |= compact_options(attention_mask, query, packs=position_bias is None and not weigh)
    elif attention_mask.dtype == torch.bool:
        options["mask"] = attention_mask
    else:
        options["bias"] = attention_mask if position_bias is None else position_bias + attention_mask
    if "cu_seqlens_q" in options:  # all batches in a row
        rows = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        return attention(*rows, dropout_p=dropout, **options).unflatten(0, (query.shape[0], -1)), None
    o = attention(query, key, value, layout="bhsd", dropout_p=dropout, **options)
    weights = probabilities(query, key, options) if weigh else None
    return o.transpose(1, 2).contiguous(), weights


def compact_options(mask, query, packs):
    """attention()'s options of an int32 mask: those it carries where they are of this call, else the ranges that it is."""
    batch, _, rows, _ = query.shape
    if mask.dim() != 4 or mask.shape[0] not in (1, batch) or tuple(mask.shape[1:]) != (1, rows, 2):
        raise ValueError(f"attention_mask is int32 {list(mask.shape)}; accepted: [{batch}, 1, {rows}, 2], the keys [first, last) that "
                         "each row sees, as tilewise.transformers makes it; a model that calculates with its mask needs "
                         "tilewise.transformers.register(compact=False)")
    options = None if torch.compiler.is_compiling() else getattr(mask, ATTRIBUTE, None)
    if options is None or mask.shape[0] != batch or ("cu_seqlens_q" in options and not packs):
        return {"kv_ranges": mask[:, 0].expand(batch, -1, -1)}
    return options


def probabilities(query, key, options):
    """P [B, Hq, Sq, Skv], exact and dense: the slow path of output_attentions. Without a gradient, made on the host."""
    from ._looking import attention_weights

    host = {name: x.detach().cpu() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    if host["sinks"] is not None:
        host["sinks"] = host["sinks"].float()
    rows = torch.arange(query.shape[2], dtype=torch.int32, device="cpu")
    q, k = (x.detach().cpu().contiguous() for x in (query, key))
    return attention_weights(q, k, rows, layout="bhsd", **host).to(query.device, query.dtype)


def _shape_only(batch_idx, head_idx, q_idx, kv_idx):
    return q_idx.new_ones((1, 1, 1, 1), dtype=torch.bool)


def mask_of(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=causal_mask_function, attention_mask=None,
            allow_is_causal_skip=True, allow_is_bidirectional_skip=False, use_vmap=False, device="cpu", **kwargs):
    """sdpa_mask() of the same arguments, in its compact form where there is one."""
    given = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset,
             "attention_mask": attention_mask, "allow_is_causal_skip": allow_is_causal_skip,
             "allow_is_bidirectional_skip": allow_is_bidirectional_skip, "device": device, **kwargs}
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing() or type(attention_mask) not in (torch.Tensor, type(None))
    if tracing or asks_for_dense(mask_function, q_length, allow_is_causal_skip or allow_is_bidirectional_skip, use_vmap):
        return sdpa_mask(mask_function=mask_function, use_vmap=use_vmap, **given)
    needed = sdpa_mask(mask_function=_shape_only, **given)  # None where transformers does without; else padding, not expanded
    if needed is None:
        return None
    seen = None if attention_mask is None else needed[:, 0, 0]
    try:
        mask = compact_mask(mask_function, batch_size, q_length, kv_length, q_offset, kv_offset, seen, needed.device)
        if mask is not None:
            return mask
    except NotKnown:
        pass
    dense = sdpa_mask(mask_function=mask_function, use_vmap=use_vmap, **given)
    ranges = ranges_of(dense)
    return dense if ranges is None else ranges


def asks_for_dense(mask_function, q_length, skips, use_vmap):
    """Whether the model wants to calculate with the mask: transformers says so by allowing no skip, which it also does for
    unusual functions, and for single queries of caches that are compiled, whose mask is one row."""
    if skips or use_vmap:
        return False
    try:
        names = {name for name, _ in leaves(mask_function)}
    except NotKnown:
        return True
    return q_length == 1 or not names & {"packed_sequence_mask_function", "or_masks"}


def register(compact=True):
    """Done by the import; again after something else took the name, or with compact=False for boolean masks."""
    transformers.AttentionInterface.register(NAME, attention_forward)
    knows = "q_offset" in inspect.signature(sdpa_mask).parameters
    AttentionMaskInterface.register(NAME, mask_of if compact and knows else sdpa_mask)


register()

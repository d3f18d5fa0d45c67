"""Hugging Face: `attn_implementation="tilewise"`, after `import tilewise.transformers`.

Registered are the attention and its mask: an implementation with only the first silently gets no mask. Masks arrive as
boolean [batch, 1, queries, keys], or not at all where causal order says everything; padding, windows, packed sequences,
prefixes and image blocks are in them. Softcaps, sinks (`s_aux`) and position biases keep their own arguments.

    import tilewise.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tilewise")
"""

try:
    import transformers
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
except ImportError:
    raise ImportError("tilewise.transformers needs Hugging Face's transformers 5 (pip install transformers)") from None

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
    if attention_mask is None:
        options["causal"] = "top-left" if is_causal and query.shape[2] > 1 else False
    elif attention_mask.dtype == torch.bool:
        options["mask"] = attention_mask
    else:
        options["bias"] = attention_mask if position_bias is None else position_bias + attention_mask
    o = attention(query, key, value, layout="bhsd", dropout_p=dropout, **options)
    weights = probabilities(query, key, options) if kwargs.get("output_attentions") else None
    return o.transpose(1, 2).contiguous(), weights


def probabilities(query, key, options):
    """P [B, Hq, Sq, Skv], exact and dense: the slow path of output_attentions. Without a gradient, made on the host."""
    from ._looking import attention_weights

    host = {name: x.detach().cpu() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    if host["sinks"] is not None:
        host["sinks"] = host["sinks"].float()
    rows = torch.arange(query.shape[2], dtype=torch.int32, device="cpu")
    q, k = (x.detach().cpu().contiguous() for x in (query, key))
    return attention_weights(q, k, rows, layout="bhsd", **host).to(query.device, query.dtype)


def register():
    """Done by the import; again only after something else took the name."""
    transformers.AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


register()

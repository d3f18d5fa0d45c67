"""Hugging Face models of random weights: logits, gradients and generation against attn_implementation="eager"."""

import unittest
from importlib.util import find_spec
from unittest import mock

from devices import WithTorch, on_every_device

if not find_spec("torch") or not find_spec("transformers"):
    raise unittest.SkipTest("PyTorch and transformers are not both installed: tilewise.transformers is not tested")

import torch
import transformers as hf
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import tilewise.transformers

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50}
DECODER = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0,
           "eos_token_id": None, "bos_token_id": 1}
ROWS = [[3, 7, 11, 4, 9, 22, 31, 8, 5, 40, 2, 6], [12, 5, 33, 8, 4, 6, 17, 3, 29, 1, 44, 13]]


def pair(kind, config, **extra):
    """The same random weights under both implementations."""
    torch.manual_seed(0)
    experts = {"experts_implementation": "eager"}  # the grouped ones have no fp64
    eager = kind._from_config(config, attn_implementation="eager", **experts).eval()
    ours = kind._from_config(type(config).from_dict(config.to_dict()), attn_implementation="tilewise", **experts).eval()
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def causal_models():
    yield "Llama", hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER)
    yield "Mistral", hf.MistralForCausalLM, hf.MistralConfig(**DECODER, sliding_window=5)
    yield "Qwen2", hf.Qwen2ForCausalLM, hf.Qwen2Config(**DECODER)
    yield "Gemma2", hf.Gemma2ForCausalLM, hf.Gemma2Config(**DECODER, sliding_window=5, attn_logit_softcapping=2.0)
    yield "Gemma3", hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**DECODER, sliding_window=5)
    yield "GPT-2", hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, eos_token_id=None, bos_token_id=1)
    yield "gpt-oss", hf.GptOssForCausalLM, hf.GptOssConfig(**DECODER, sliding_window=5, num_local_experts=2, num_experts_per_tok=2)


def exactly(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, position_bias=None, dropout=0.0,
            is_causal=None, **kwargs):
    """Attention in fp64 by its formula: eager's own softmax is fp32, and its mask is NaN in fp64."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = torch.tanh(scores / softcap) * softcap if softcap else scores
    scores = scores if position_bias is None else scores + position_bias
    if attention_mask is None and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        scores = scores + attention_mask
    elif attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(torch.float64).min)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
    return (scores.softmax(-1)[..., :key.shape[2]] @ value).transpose(1, 2).contiguous(), None


hf.AttentionInterface.register("exactly", exactly)
AttentionMaskInterface.register("exactly", sdpa_mask)
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def run(model, rows, inputs):
    """The output at the rows that are not padding, and the gradient of every parameter."""
    model.zero_grad()
    out = model(**inputs)
    out = next(out[name] for name in ("logits", "last_hidden_state", "logits_per_image") if name in out)
    out = out if rows is None else out[rows]
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return {"output": out.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


def norm(found, exact):
    """Of the errors of all gradients."""
    return sum(((found[name] - ref).square().sum() for name, ref in exact.items() if name != "output"), start=torch.zeros(())).sqrt()


@on_every_device
class Models(WithTorch):
    def setUp(self):
        super().setUp()
        self.ids = torch.tensor(ROWS)

    def compare(self, eager, ours, rows=None, dtypes=UNIT, together=False, **inputs):
        """By the rule of numerics.md in every type of the device: an error is at most twice the naive one against fp64.

        A whole model has no formula for the sum of magnitudes A; its place has the tensor's largest element, of gradients
        that of all parameters. In 16 bits, where a tensor's largest error is one element's chance, the naive one is the larger of
        eager's and SDPA's; where the model has none, or `together` says that SDPA is eager's arithmetic, gradients in 16 bits are
        held by the norm of all their errors.
        """
        for dtype in (torch.float32,) if self.device == "cpu" else dtypes:
            eager.to(dtype), ours.to(dtype)
            given = self.cast(inputs, dtype)
            eager.double().set_attn_implementation("exactly")
            exact = run(eager, rows, self.cast(given, torch.float64))
            exact = {name: x.clone() for name, x in exact.items()}
            eager.to(dtype)
            with mock.patch.object(tilewise.transformers, "attention", wraps=tilewise.transformers.attention) as seen:
                naive = self.errors(eager, rows, given, exact, ("eager",) if dtype == torch.float32 else ("eager", "sdpa"))
                self.assertEqual(seen.call_count, 0)
                got = run(ours, rows, given)
                self.assertGreater(seen.call_count, 1)
            self.assertEqual(got.keys(), exact.keys())
            largest = max((exact[name].abs().max() for name in exact if name != "output"), default=0)
            if dtype != torch.float32 and (together or naive["draws"] == 1):
                self.assertLessEqual(norm(got, exact), 2 * naive["norm"], f"gradients in {dtype}")
                exact = {"output": exact["output"]}
            for name, ref in exact.items():
                terms = ref.abs().max() if name == "output" else largest
                allowed = 2 * naive[name] + UNIT[dtype] * ref.abs() + 8 * UNIT[torch.float32] * terms
                share = ((got[name] - ref).abs() / allowed).max()
                self.assertLessEqual(share, 1, f"{name} in {dtype}")

    def errors(self, model, rows, given, exact, names):
        """The largest error of each tensor and of the gradients' norm, over those of `names` that the model has: "draws"."""
        errors = []
        for name in names:
            try:
                model.set_attn_implementation(name)
                found = run(model, rows, given)
            except ValueError:  # SDPA has no softcap, no sinks
                continue
            errors.append({"norm": norm(found, exact), **{key: (found[key] - ref).abs().max() for key, ref in exact.items()}})
        return {"draws": len(errors), **{key: max(of[key] for of in errors) for key in errors[0]}}

    def cast(self, inputs, dtype):
        return {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}

    def test_decoders(self):
        for name, kind, config in causal_models():
            eager, ours = pair(kind, config)
            with self.subTest(name):
                self.compare(eager, ours, input_ids=self.ids)
            for side, mask in (("left", [[0] * 4 + [1] * 8, [1] * 12]), ("right", [[1] * 9 + [0] * 3, [1] * 12])):
                mask = torch.tensor(mask)
                with self.subTest(name, padding=side):
                    self.compare(eager, ours, rows=mask.bool(), input_ids=self.ids, attention_mask=mask)

    def test_packed_sequences(self):
        positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
        for name, kind, config in causal_models():
            if name in ("Llama", "Gemma2"):
                with self.subTest(name):
                    self.compare(*pair(kind, config), input_ids=self.ids[:1], position_ids=positions)

    def test_generation_with_left_padding(self):
        mask = torch.tensor([[0] * 4 + [1] * 8, [1] * 12])
        for name, kind, config in causal_models():
            with self.subTest(name):
                eager, ours = pair(kind, config)
                options = {"max_new_tokens": 8, "do_sample": False}
                batch = ours.generate(self.ids, attention_mask=mask, **options)[:, 12:]
                self.assertTrue(torch.equal(batch, eager.generate(self.ids, attention_mask=mask, **options)[:, 12:]))
                alone = ours.generate(self.ids[:1, 4:], attention_mask=mask[:1, 4:], **options)[:, 8:]
                self.assertTrue(torch.equal(batch[:1], alone))

    def test_generation_with_a_static_cache(self):
        eager, ours = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER))
        options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "disable_compile": True,
                   "attention_mask": torch.ones_like(self.ids)}
        self.assertTrue(torch.equal(ours.generate(self.ids, **options), eager.generate(self.ids, **options)))

    def test_bert(self):
        mask = torch.tensor([[1] * 9 + [0] * 3, [1] * 12])
        eager, ours = pair(hf.BertModel, hf.BertConfig(**SMALL))
        self.compare(eager, ours, rows=mask.bool(), input_ids=self.ids, attention_mask=mask)

    def test_t5(self):
        """Both feed-forward layers; where a rounding moves a ReLU's sign the whole gradient moves, so that is for fp32."""
        mask = torch.tensor([[1] * 9 + [0] * 3, [1] * 12])
        for kind, dtypes in (("relu", (torch.float32,)), ("gated-gelu", UNIT)):
            config = hf.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
                                 feed_forward_proj=kind)
            with self.subTest(kind):
                self.compare(*pair(hf.T5ForConditionalGeneration, config), dtypes=dtypes, together=True, input_ids=self.ids,
                             attention_mask=mask, decoder_input_ids=self.ids[:, :7])

    def clip(self):
        tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        config = hf.CLIPConfig(text_config={**tower, "vocab_size": 50, "eos_token_id": 49, "bos_token_id": 1, "pad_token_id": 0},
                               vision_config={**tower, "image_size": 16, "patch_size": 4}, projection_dim=16)
        return *pair(hf.CLIPModel, config), torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16)

    def test_clip(self):
        eager, ours, pixels = self.clip()
        self.compare(eager, ours, input_ids=self.ids, pixel_values=pixels)

    def test_whisper(self):
        config = hf.WhisperConfig(vocab_size=50, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                  decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
                                  max_source_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                  decoder_start_token_id=1)
        sound = torch.linspace(-1, 1, 2 * 8 * 32).view(2, 8, 32).sin()
        self.compare(*pair(hf.WhisperForConditionalGeneration, config), input_features=sound, decoder_input_ids=self.ids)

    def follow(self, models, share, **inputs):
        """50 steps of AdamW: the loss falls below that share of its first, and ours is eager's."""
        losses = []
        for model in models:
            optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3)
            steps = []
            for _ in range(50):
                loss = model(**inputs).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps.append(loss.item())
            losses.append(torch.tensor(steps))
        self.assertLess(losses[1][-1], losses[1][0] * share)
        torch.testing.assert_close(losses[1], losses[0], atol=5e-3, rtol=5e-3)

    def test_training_a_decoder(self):
        self.follow(pair(hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER)), 0.5, input_ids=self.ids, labels=self.ids)

    def test_training_clip(self):
        *models, pixels = self.clip()
        self.follow(models, 0.9, input_ids=self.ids, pixel_values=pixels, return_loss=True)

    def test_attentions(self):
        eager, ours = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER))
        layer, q, k, v = ours.model.layers[0].self_attn, *(torch.randn(1, heads, 6, 8) for heads in (4, 2, 2))
        o, p = tilewise.transformers.attention_forward(layer, q, k, v, None, scaling=0.3, output_attentions=True)
        torch.testing.assert_close(p.sum(-1), torch.ones(1, 4, 6))
        torch.testing.assert_close(o, (p @ v.repeat_interleave(2, 1)).transpose(1, 2), atol=1e-6, rtol=1e-5)


if __name__ == "__main__":
    unittest.main()

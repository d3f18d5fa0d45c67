"""Hugging Face models of random weights: logits, gradients and generation against attn_implementation="eager"."""

import unittest
from importlib.util import find_spec
from unittest import mock

if not find_spec("torch") or not find_spec("transformers"):
    raise unittest.SkipTest("PyTorch and transformers are not both installed: tilewise.transformers is not tested")

import torch
import transformers as hf

import tilewise.transformers

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50}
DECODER = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0,
           "eos_token_id": None, "bos_token_id": 1}
IDS = torch.tensor([[3, 7, 11, 4, 9, 22, 31, 8, 5, 40, 2, 6], [12, 5, 33, 8, 4, 6, 17, 3, 29, 1, 44, 13]])


def pair(kind, config, **extra):
    """The same random weights under both implementations."""
    torch.manual_seed(0)
    eager = kind._from_config(config, attn_implementation="eager").eval()
    ours = kind._from_config(type(config).from_dict(config.to_dict()), attn_implementation="tilewise").eval()
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def causal_models():
    yield "Llama", hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER)
    yield "Mistral", hf.MistralForCausalLM, hf.MistralConfig(**DECODER, sliding_window=5)
    yield "Qwen2", hf.Qwen2ForCausalLM, hf.Qwen2Config(**DECODER)
    yield "Gemma2", hf.Gemma2ForCausalLM, hf.Gemma2Config(**DECODER, sliding_window=5, attn_logit_softcapping=2.0)
    yield "Gemma3", hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**DECODER, sliding_window=5)
    yield "GPT-2", hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, eos_token_id=None, bos_token_id=1)
    yield "gpt-oss", hf.GptOssForCausalLM, hf.GptOssConfig(**DECODER, sliding_window=5, num_local_experts=2, num_experts_per_tok=1)


class Models(unittest.TestCase):
    def compare(self, eager, ours, rows=None, **inputs):
        """Outputs, and the gradient of every parameter, at the rows that are not padding."""
        results = []
        for model in (eager, ours):
            model.zero_grad()
            out = model(**inputs)
            out = next(out[name] for name in ("logits", "last_hidden_state", "logits_per_image") if name in out)
            if rows is not None:
                out = out[rows]
            weight = torch.linspace(-1, 1, out.numel()).view_as(out)
            (out * weight).sum().backward()
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            results.append((out.detach(), gradients))
            wraps = tilewise.transformers.attention
            with mock.patch.object(tilewise.transformers, "attention", wraps=wraps) as seen, torch.no_grad():
                model(**inputs)
            self.assertEqual(seen.call_count > 1, model is ours)
        (want, want_gradients), (got, got_gradients) = results
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)
        self.assertEqual(got_gradients.keys(), want_gradients.keys())
        for name, gradient in want_gradients.items():
            torch.testing.assert_close(got_gradients[name], gradient, atol=3e-4, rtol=1e-3,
                                       msg=lambda text, name=name: f"{name}: {text}")

    def test_decoders(self):
        for name, kind, config in causal_models():
            eager, ours = pair(kind, config)
            with self.subTest(name):
                self.compare(eager, ours, input_ids=IDS)
            for side, mask in (("left", [[0] * 4 + [1] * 8, [1] * 12]), ("right", [[1] * 9 + [0] * 3, [1] * 12])):
                mask = torch.tensor(mask)
                with self.subTest(name, padding=side):
                    self.compare(eager, ours, rows=mask.bool(), input_ids=IDS, attention_mask=mask)

    def test_packed_sequences(self):
        positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
        for name, kind, config in causal_models():
            if name in ("Llama", "Gemma2"):
                with self.subTest(name):
                    self.compare(*pair(kind, config), input_ids=IDS[:1], position_ids=positions)

    def test_generation_with_left_padding(self):
        mask = torch.tensor([[0] * 4 + [1] * 8, [1] * 12])
        for name, kind, config in causal_models():
            with self.subTest(name):
                eager, ours = pair(kind, config)
                options = {"max_new_tokens": 8, "do_sample": False}
                batch = ours.generate(IDS, attention_mask=mask, **options)[:, 12:]
                self.assertTrue(torch.equal(batch, eager.generate(IDS, attention_mask=mask, **options)[:, 12:]))
                alone = ours.generate(IDS[:1, 4:], attention_mask=mask[:1, 4:], **options)[:, 8:]
                self.assertTrue(torch.equal(batch[:1], alone))

    def test_generation_with_a_static_cache(self):
        eager, ours = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER))
        options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "disable_compile": True,
                   "attention_mask": torch.ones_like(IDS)}
        self.assertTrue(torch.equal(ours.generate(IDS, **options), eager.generate(IDS, **options)))

    def test_bert(self):
        mask = torch.tensor([[1] * 9 + [0] * 3, [1] * 12])
        eager, ours = pair(hf.BertModel, hf.BertConfig(**SMALL))
        self.compare(eager, ours, rows=mask.bool(), input_ids=IDS, attention_mask=mask)

    def test_t5(self):
        config = hf.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
        mask = torch.tensor([[1] * 9 + [0] * 3, [1] * 12])
        self.compare(*pair(hf.T5ForConditionalGeneration, config), input_ids=IDS, attention_mask=mask,
                     decoder_input_ids=IDS[:, :7])

    def test_clip(self):
        tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        config = hf.CLIPConfig(text_config={**tower, "vocab_size": 50, "eos_token_id": 49, "bos_token_id": 1, "pad_token_id": 0},
                               vision_config={**tower, "image_size": 16, "patch_size": 4}, projection_dim=16)
        pixels = torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16)
        self.compare(*pair(hf.CLIPModel, config), input_ids=IDS, pixel_values=pixels)

    def test_whisper(self):
        config = hf.WhisperConfig(vocab_size=50, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                  decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
                                  max_source_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                  decoder_start_token_id=1)
        sound = torch.linspace(-1, 1, 2 * 8 * 32).view(2, 8, 32).sin()
        self.compare(*pair(hf.WhisperForConditionalGeneration, config), input_features=sound, decoder_input_ids=IDS)

    def test_training_follows_eager(self):
        losses = []
        for model in pair(hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER)):
            optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3)
            steps = []
            for _ in range(50):
                loss = model(input_ids=IDS, labels=IDS).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps.append(loss.item())
            losses.append(torch.tensor(steps))
        self.assertLess(losses[1][-1], losses[1][0] / 2)
        torch.testing.assert_close(losses[1], losses[0], atol=5e-3, rtol=5e-3)

    def test_attentions(self):
        eager, ours = pair(hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER))
        layer, q, k, v = ours.model.layers[0].self_attn, *(torch.randn(1, heads, 6, 8) for heads in (4, 2, 2))
        o, p = tilewise.transformers.attention_forward(layer, q, k, v, None, scaling=0.3, output_attentions=True)
        torch.testing.assert_close(p.sum(-1), torch.ones(1, 4, 6))
        torch.testing.assert_close(o, (p @ v.repeat_interleave(2, 1)).transpose(1, 2), atol=1e-6, rtol=1e-5)


if __name__ == "__main__":
    unittest.main()

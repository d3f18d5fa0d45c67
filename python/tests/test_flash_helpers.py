"""flash_attn's caches where a call is refused or compiled, 8-bit caches, and the functions around attention."""

import unittest
from importlib.util import find_spec

from arrays import Source
from devices import WithTorch, here, on_every_device

if not find_spec("torch"):
    raise unittest.SkipTest("PyTorch is not installed: flash_attn's functions are not tested")

import torch

import tilewise
from tilewise import flash_attn as fa2
from tilewise import flash_attn_interface as fa3
from tilewise import rotary
from tilewise.bert_padding import unpad_input_for_concatenated_sequences
from tilewise.torch import scaled_dot_product_attention


def tensor(source, *shape):
    return here(source.normal(*shape))


def close(a, b, atol=2e-6):
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-5)


@on_every_device
class NothingWritten(WithTorch):
    """What is refused has not touched the cache."""

    def setUp(self):
        super().setUp()
        source = Source(1)
        self.given = {"q": tensor(source, 2, 1, 4, 8), "k_cache": tensor(source, 2, 16, 2, 8), "v_cache": tensor(source, 2, 16, 2, 8),
                      "k": tensor(source, 2, 1, 2, 8), "v": tensor(source, 2, 1, 2, 8), "causal": True,
                      "cache_seqlens": torch.tensor([3, 4], dtype=torch.int32)}

    def refuses(self, kind, words, functions=(fa2, fa3), **changes):
        given = {**self.given, **changes}
        before = [given[name].clone() for name in ("k_cache", "v_cache")]
        for module in functions:
            with self.subTest(module=module.__name__, changes=list(changes)):
                with self.assertRaisesRegex(kind, words):
                    module.flash_attn_with_kvcache(**given)
                for name, bytes_before in zip(("k_cache", "v_cache"), before):
                    self.assertTrue(torch.equal(given[name], bytes_before))

    def test_whatever_is_wrong(self):
        q = self.given["q"]
        self.refuses(ValueError, "^window_left is -5", window_size=(-5, 0))
        self.refuses(ValueError, "^k_cache has shape", q=q[..., :4])
        self.refuses(ValueError, "heads", q=q[:, :, :3])
        self.refuses(ValueError, "^softmax_scale is nan", softmax_scale=float("nan"))
        self.refuses(ValueError, "^softcap is -1", softcap=-1.0)
        self.refuses(TypeError, "^q is NoneType", q=None)
        self.refuses(TypeError, "^k is numpy.ndarray", k=self.given["k"].cpu().numpy())
        self.refuses(ValueError, "^cache_seqlens is .*float32", cache_seqlens=torch.tensor([3.0, 4.0]))
        self.refuses(TypeError, "^cache_seqlens is bool", cache_seqlens=True)
        self.refuses(ValueError, "^cache_seqlens is 4294967299", cache_seqlens=2**32 + 3)
        self.refuses(ValueError, "^alibi_slopes", functions=(fa2,), alibi_slopes=torch.ones(3))
        self.refuses(ValueError, "^cache_seqlens has shape", cache_seqlens=torch.tensor([3, 4, 5], dtype=torch.int32))
        if self.device != "cpu":  # whose lengths nobody waits for
            return
        self.refuses(NotImplementedError, "forward_", q=q.half())
        for bad in ([-3, 4], [16, 4], [2**32 + 3, 4]):
            self.refuses(ValueError, "^cache_seqlens", cache_seqlens=torch.tensor(bad))
        self.refuses(ValueError, r"^cache_leftpad\[0\] is 9; accepted: 0 to 4", cache_leftpad=torch.tensor([9, 0]))
        alone = {"k": None, "v": None}
        self.refuses(ValueError, r"^cache_seqlens\[0\] is 100; accepted: 0 to 16", cache_seqlens=torch.tensor([100, 4]), **alone)
        self.refuses(ValueError, r"^cache_leftpad\[0\] is 9; accepted: 0 to 3.*cache_leftpad: ", cache_leftpad=torch.tensor([9, 0]),
                     **alone)

    def test_pages_that_are_not_there(self):
        if self.device != "cpu":
            self.skipTest("pages are not the host's to look at on a GPU")
        table = torch.tensor([[0], [5]])
        self.refuses(ValueError, "^block_table of sequence 1", functions=(fa2,), block_table=table)
        self.refuses(ValueError, "^page_table of sequence 1", functions=(fa3,), page_table=table)
        self.refuses(ValueError, "^page_table has 4294967297", functions=(fa3,), page_table=torch.tensor([[0], [2**32 + 1]]))

    def test_right_ones_are_written(self):
        o = fa2.flash_attn_with_kvcache(**self.given)
        for name, new in (("k_cache", "k"), ("v_cache", "v")):
            for b, n in enumerate((3, 4)):
                self.assertTrue(torch.equal(self.given[name][b, n], self.given[new][b, 0]))
        lengths = torch.tensor([4, 5], dtype=torch.int32)
        close(o, tilewise.attention(self.given["q"], self.given["k_cache"], self.given["v_cache"], kv_lengths=lengths))

    def test_compiled_in_one_graph(self):
        q, k_cache, v_cache, k, v = (self.given[name] for name in ("q", "k_cache", "v_cache", "k", "v"))
        angles = torch.rand(16, 4)

        def step(module, q, k_cache, v_cache, filled):
            o = module.flash_attn_with_kvcache(q * 2, k_cache, v_cache, k, v, rotary_cos=angles.cos(), rotary_sin=angles.sin(),
                                               cache_seqlens=filled, causal=True)
            return o + 1

        for module in (fa2, fa3):
            caches = [[x.clone() for x in (k_cache, v_cache)] for _ in range(2)]
            want = step(module, q, *caches[0], self.given["cache_seqlens"])
            compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
            close(compiled(module, q, *caches[1], self.given["cache_seqlens"]), want)
            for a, b in zip(*caches):
                close(a, b)


@unittest.skipUnless(hasattr(torch, "float8_e4m3fn"), "this PyTorch has no float8_e4m3fn")
@on_every_device
class EightBits(WithTorch):
    def test_descales(self):
        source = Source(2)
        q = tensor(source, 2, 1, 4, 64).half()
        k, v = (tensor(source, 2, 16, 2, 64).to(torch.float8_e4m3fn) for _ in range(2))
        scales = torch.tensor([[0.5, 0.25], [2.0, 1.0]])
        wide = [x.half() * scales[:, None, :, None].half() for x in (k, v)]
        lengths = torch.tensor([9, 16], dtype=torch.int32)
        want = tilewise.attention(q, *wide, kv_lengths=lengths)
        both = {"k_descale": scales, "v_descale": scales}
        close(fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, **both), want, 4e-3)
        close(fa3.flash_attn_func(q, k, v, **both), tilewise.attention(q, *wide), 4e-3)
        close(fa3.flash_attn_func(q, k, v, k_descale=scales), tilewise.attention(q, wide[0], v.half()), 4e-3)
        cu = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 16, 32], dtype=torch.int32)
        packed = fa3.flash_attn_varlen_func(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *cu, 1, 16, **both)
        close(packed.view_as(q), tilewise.attention(q, *wide), 4e-3)
        new = tensor(source, 2, 1, 2, 64).half()
        fa3.flash_attn_with_kvcache(q, k, v, new, new, cache_seqlens=lengths - 1, **both)
        want = (new[0, 0].float() / scales[0, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        self.assertTrue(torch.equal(k[0, 8].float(), want.float()))

    def test_what_is_not_served_has_its_reasons(self):
        k = torch.zeros(2, 16, 2, 8).to(torch.float8_e4m3fn)
        q, scales = torch.zeros(2, 1, 4, 8), torch.ones(2, 2)
        for words, options in (("k_descale: k and v are float32", {"k_cache": k.float(), "v_cache": k.float(), "k_descale": scales}),
                               (r"k_descale: .*\[2, 4\].*\[2, 2\].*v_descale: .*\[1\]",
                                {"k_descale": torch.ones(2, 4), "v_descale": torch.ones(1)}),
                               ("v_descale: scales of pages", {"v_descale": scales, "page_table": torch.tensor([[0], [1]])}),
                               ("q_descale: q is never in 8 bits", {"q_descale": scales})):
            with self.assertRaisesRegex(NotImplementedError, words):
                fa3.flash_attn_with_kvcache(**{"q": q, "k_cache": k, "v_cache": k, "cache_seqlens": 3, **options})


@on_every_device
class Around(WithTorch):
    def test_combine(self):
        source = Source(3)
        q, k, v = tensor(source, 2, 5, 4, 8), tensor(source, 2, 12, 2, 8), tensor(source, 2, 12, 2, 8)
        parts = [tilewise.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 3), (3, 4), (4, 12), (12, 12))]
        o_parts = torch.stack([o for o, _ in parts])
        lse_parts = torch.stack([lse.transpose(1, 2) for _, lse in parts])
        want, want_lse = tilewise.attention(q, k, v, return_lse=True)
        o, lse = fa3.flash_attn_combine(o_parts, lse_parts)
        close(o, want)
        close(lse, want_lse.transpose(1, 2))
        half = torch.empty_like(o, dtype=torch.bfloat16)
        o, _ = fa3.flash_attn_combine(o_parts, lse_parts, half, torch.bfloat16)
        self.assertIs(o, half)
        close(o.float(), want, 2e-2)
        nothing, lse = fa3.flash_attn_combine(o_parts[3:], lse_parts[3:])
        self.assertTrue((nothing == 0).all() and (lse == -torch.inf).all())
        for bad in ((o_parts.half(), lse_parts), (o_parts, lse_parts[..., :3]), (o_parts[0], lse_parts)):
            with self.assertRaisesRegex(ValueError, "^(out|lse)_partial is torch.Tensor.*accepted: "):
                fa3.flash_attn_combine(*bad)

    def test_scheduler_metadata_changes_nothing(self):
        q, cache = torch.randn(2, 1, 4, 8), torch.randn(2, 16, 2, 8)
        filled = torch.tensor([3, 9], dtype=torch.int32)
        data = fa3.get_scheduler_metadata(2, 1, 16, 4, 2, 8, filled, qkv_dtype=q.dtype, causal=True)
        close(fa3.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=filled, causal=True, scheduler_metadata=data),
              fa3.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=filled, causal=True))

    def test_concatenated_sequences(self):
        x = torch.arange(3 * 6 * 2.0).reshape(3, 6, 2)
        lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
        packed, indices, cu, longest = unpad_input_for_concatenated_sequences(x, lengths)
        self.assertEqual((cu.tolist(), cu.dtype, longest), ([0, 2, 5, 8, 10, 16], torch.int32, 6))
        self.assertEqual(indices.tolist(), [*range(5), *range(6, 11), *range(12, 18)])
        self.assertTrue(torch.equal(packed, torch.cat([x[0, :5], x[1, :5], x[2]])))


@on_every_device
class Refusals(WithTorch):
    """flash_attn's functions say its own names, and what is wrong, of whatever is given in a tensor's or a number's place."""

    def refused(self, kind, words, function, *arguments, **options):
        with self.subTest(function=function.__name__, words=words), self.assertRaisesRegex(kind, words):
            function(*arguments, **options)

    def test_no_tensors(self):
        sparse = torch.ones(2, 5, 4, 8).to_sparse()
        for bad in (None, 3, [1.0], "q", torch.ones(2, 5, 3, 4, 8).cpu().numpy(), sparse):
            self.refused((TypeError, ValueError), "^qkv is ", fa2.flash_attn_qkvpacked_func, bad)
            self.refused((TypeError, ValueError), "^qkv is ", fa3.flash_attn_qkvpacked_func, bad)
            self.refused((TypeError, ValueError), "^kv is ", fa2.flash_attn_kvpacked_func, torch.ones(2, 5, 4, 8), bad)
            self.refused(TypeError, "^k(_cache)? is ", fa3.flash_attn_with_kvcache, torch.ones(2, 1, 4, 8), bad, bad)
            self.refused(TypeError, "^key is ", scaled_dot_product_attention, torch.ones(2, 4, 5, 8), bad, bad)
        nested = torch.nested.nested_tensor([torch.ones(3, 2, 4), torch.ones(5, 2, 4)])
        self.refused(TypeError, "^q is a nested tensor", fa2.flash_attn_func, nested, nested, nested)
        self.refused(TypeError, "^query is torch.Tensor float32 nested", scaled_dot_product_attention, nested, nested, nested)
        self.refused(TypeError, "^softmax_scale is torch.Tensor", fa2.flash_attn_func, *[torch.ones(2, 5, 4, 8)] * 3, softmax_scale=nested)

    def test_shapes(self):
        self.refused(ValueError, r"^qkv is torch.Tensor float32 \[2, 5, 4, 4, 8\].*\[batch, seqlen, 3, heads", fa2.flash_attn_qkvpacked_func,
                     torch.ones(2, 5, 4, 4, 8))
        self.refused(ValueError, r"^kv is .*\[total, 2, heads", fa2.flash_attn_varlen_kvpacked_func, torch.ones(9, 4, 8),
                     torch.ones(12, 3, 2, 8), None, None, 5, 7)
        for heads in (None, 0, 8, 5, -2):
            self.refused(ValueError, "^qkv is .* num_heads_q", fa3.flash_attn_qkvpacked_func, torch.ones(2, 5, 8, 8), num_heads_q=heads)
        for q in (torch.ones(()), torch.ones(2), torch.ones(1, 2, 5, 4, 8)):
            self.refused(ValueError, "^q is torch.Tensor .*accepted: 4 dimensions", fa2.flash_attn_func, q, q, q)
            self.refused(ValueError, "^q is torch.Tensor .*accepted: 4 dimensions", tilewise.torch.attention, q, q, q)
        q = torch.ones(2, 4, 5, 8)
        self.refused(ValueError, "^query is .*enable_gqa", scaled_dot_product_attention, q, q[:, :3], q[:, :3])
        self.refused(ValueError, "^scale is inf", scaled_dot_product_attention, q, q, q, scale=float("inf"))

    def test_numbers_and_names(self):
        q, k = torch.ones(9, 4, 8), torch.ones(12, 2, 8)
        cu = torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([0, 5, 12], dtype=torch.int32)
        for bad in (float("nan"), float("inf"), 5.5, "5", (5,), 2**64, [], torch.ones(2)):
            self.refused(TypeError, "^max_seqlen_q is ", fa2.flash_attn_varlen_func, q, k, k, *cu, bad, 7)
            self.refused(TypeError, "^max_seqlen_k is ", fa3.flash_attn_varlen_func, q, k, k, *cu, 5, bad)
        self.refused(ValueError, "^max_seqlen_k is -1", fa2.flash_attn_varlen_func, q, k, k, *cu, 5, -1)
        self.refused(TypeError, "^cu_seqlens_k is tuple", fa2.flash_attn_varlen_func, q, k, k, cu[0], (0, 5, 12), 5, 7)
        self.refused(ValueError, "^cu_seqlens_k has shape", fa3.flash_attn_varlen_func, q, k, k, cu[0], cu[1][None], 5, 7)
        close(fa2.flash_attn_varlen_func(q, k, k, *cu, torch.tensor(5), torch.tensor(7)), fa2.flash_attn_varlen_func(q, k, k, *cu, 5, 7))
        q = torch.ones(2, 5, 4, 8)
        self.refused(TypeError, "^dropout_p is torch.Tensor", fa2.flash_attn_func, q, q, q, torch.ones(2))
        self.refused(TypeError, "^return_attn_probs is ", fa2.flash_attn_func, q, q, q, return_attn_probs="no")
        self.refused(TypeError, "^return_softmax_lse is ", fa3.flash_attn_with_kvcache, q, q, q, return_softmax_lse=torch.ones(3))

    def test_rotary_tables(self):
        x, cos = torch.ones(2, 5, 4, 8), torch.ones(7, 4)
        self.refused(ValueError, "^cos is torch.Tensor .* and sin ", rotary.apply_rotary_emb, x, cos, cos[:6])
        self.refused(ValueError, "^cos is .*at most head_dim, 8", rotary.apply_rotary_emb, x, torch.ones(7, 5), torch.ones(7, 5))
        self.refused(ValueError, "^seqlen_offsets is 3 with 5 rows of x and 7 of cos", rotary.apply_rotary_emb, x, cos, cos, seqlen_offsets=3)
        self.refused(ValueError, r"^seqlen_offsets is .*\[2\] = \[batch\]", rotary.apply_rotary, x, cos, cos, torch.zeros(3, dtype=torch.int32))
        self.refused(ValueError, "^x is ", rotary.apply_rotary_emb, x[0], cos, cos)
        offsets = torch.tensor([0, 4])
        if self.device == "cpu":
            self.refused(ValueError, "^cos has 7 rows and a row of x stands at position 8", rotary.apply_rotary_emb, x, cos, cos,
                         seqlen_offsets=offsets)
        else:  # whose numbers nobody waits for: the last row's angles
            angles = torch.rand(7, 4)
            got = rotary.apply_rotary_emb(x, angles.cos(), angles.sin(), seqlen_offsets=offsets)
            longer = torch.cat([angles, angles[-1:], angles[-1:]])
            close(got, rotary.apply_rotary_emb(x, longer.cos(), longer.sin(), seqlen_offsets=offsets))


@on_every_device
class Rotary(WithTorch):
    def turned(self, x, angles, interleaved):
        """x [..., H, D] by angles [..., R / 2], as complex numbers."""
        half, n = angles.shape[-1], 2 * angles.shape[-1]
        pairs = (x[..., 0:n:2], x[..., 1:n:2]) if interleaved else (x[..., :half], x[..., half:n])
        z = torch.complex(*(p.double() for p in pairs)) * torch.polar(torch.ones_like(angles), angles)[..., None, :]
        parts = torch.stack([z.real, z.imag], -1).flatten(-2) if interleaved else torch.cat([z.real, z.imag], -1)
        return torch.cat([parts.to(x.dtype), x[..., n:]], -1)

    def test_the_module(self):
        for interleaved in (False, True):
            for offset in (0, 3, torch.tensor([1, 4])):
                module = rotary.RotaryEmbedding(6, base=100.0, interleaved=interleaved)
                qkv = torch.randn(2, 5, 3, 4, 8)
                rows = torch.arange(5) + (offset[:, None] if isinstance(offset, torch.Tensor) else torch.full((2, 1), offset))
                angles = rows[..., None].double() * 100.0 ** (-torch.arange(0, 6, 2).double() / 6)
                want = [self.turned(qkv[:, :, i], angles, interleaved) for i in (0, 1)] + [qkv[:, :, 2].clone()]
                grouped, apart = torch.cat(qkv.unbind(2), 2), [x.clone() for x in (qkv[:, :, 0], qkv[:, :, 1:])]
                longest = {"max_seqlen": 9} if isinstance(offset, torch.Tensor) else {}
                got = module(qkv, seqlen_offset=offset, **longest)
                self.assertEqual(got.data_ptr(), qkv.data_ptr())
                close(got, torch.stack(want, 2))
                close(module(grouped, seqlen_offset=offset, num_heads_q=4, **longest), torch.cat(want, 2))
                q, kv = module(apart[0], apart[1], seqlen_offset=offset, **longest)
                close(q, want[0])
                close(kv, torch.stack(want[1:], 2))
        with self.assertRaisesRegex(ValueError, "without max_seqlen"):
            rotary.RotaryEmbedding(6)(torch.zeros(2, 5, 3, 4, 8), seqlen_offset=torch.tensor([1, 4]))

    def test_tables_grow_and_xpos_cancels(self):
        module = rotary.RotaryEmbedding(8, scale_base=16.0)
        for rows in (4, 9):
            qkv = torch.ones(1, rows, 3, 1, 8)
            q, k, _ = module(qkv.clone()).double().unbind(2)
            plain_q, plain_k, _ = rotary.RotaryEmbedding(8)(qkv.clone()).double().unbind(2)
            close(q * k, plain_q * plain_k, 1e-5)
            self.assertGreater((q - plain_q).abs().max(), 1e-3)
            grown = (torch.arange(0, 8, 2).double() + 3.2) / 11.2
            close(q[0, -1, 0, :4] / plain_q[0, -1, 0, :4], grown ** ((rows - 1 - rows // 2) / 16), 1e-5)

    def test_gradients_are_turned_back(self):
        angles = torch.rand(5, 4)
        x, dout = torch.randn(2, 5, 2, 3, 8, requires_grad=True), torch.randn(2, 5, 2, 3, 8)
        y = rotary.apply_rotary_emb_kv_(x * 1, angles.cos(), angles.sin())
        (dx,) = torch.autograd.grad(y, x, dout)
        back = rotary.apply_rotary_emb_kv_(dout.clone(), angles.cos(), -angles.sin())
        close(dx, back)
        close(rotary.apply_rotary_emb_torch(x[:, :, 0], *(t.expand(2, 5, 4) for t in (angles.cos(), angles.sin()))), y[:, :, 0])


if __name__ == "__main__":
    unittest.main()

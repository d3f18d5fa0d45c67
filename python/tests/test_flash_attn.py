"""flash_attn's functions against tilewise.attention and the formula."""

import unittest
from importlib.util import find_spec
from unittest import mock

from arrays import Source
from devices import WithTorch, here, on_every_device

if not find_spec("torch"):
    raise unittest.SkipTest("PyTorch is not installed: flash_attn's functions are not tested")

import torch

import tilewise
from tilewise import flash_attn as fa2
from tilewise import flash_attn_interface as fa3
from tilewise.bert_padding import pad_input, unpad_input
from tilewise.rotary import apply_rotary_emb


def tensor(source, *shape):
    return here(source.normal(*shape))


def close(a, b, atol=2e-6):
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-5)


@on_every_device
class Dense(WithTorch):
    def setUp(self):
        super().setUp()
        source = Source(1)
        self.q, self.k, self.v = tensor(source, 2, 9, 4, 8), tensor(source, 2, 12, 2, 8), tensor(source, 2, 12, 2, 8)
        self.slopes = torch.rand(4)

    def test_arguments_in_version_2s_order(self):
        got, lse, p = fa2.flash_attn_func(self.q, self.k, self.v, 0.0, 0.3, True, (5, 0), 2.0, self.slopes, True, True)
        want = tilewise.attention(self.q, self.k, self.v, softmax_scale=0.3, causal=True, window_size=(5, 0), softcap=2.0,
                                  alibi_slopes=self.slopes, return_lse=True)
        close(got, want[0])
        close(lse, want[1])
        self.assertEqual((tuple(p.shape), p.dtype), ((0,), self.q.dtype))

    def test_arguments_in_version_3s_order(self):
        got, lse = fa3.flash_attn_func(self.q, self.k, self.v, 0.3, True, None, None, None, None, (5, 0), 0, 2.0, 1, None, True,
                                       0, True)
        want = tilewise.attention(self.q, self.k, self.v, softmax_scale=0.3, causal=True, window_size=(5, 0), softcap=2.0,
                                  return_lse=True)
        close(got, want[0])
        close(lse, want[1])

    def test_deterministic_is_asked_for(self):
        cu = torch.tensor([0, 9, 18], dtype=torch.int32), torch.tensor([0, 12, 24], dtype=torch.int32)
        packed = *(x.flatten(0, 1) for x in (self.q, self.k, self.v)), *cu, 9, 12
        for call in (fa2.flash_attn_func, fa3.flash_attn_func, fa2.flash_attn_varlen_func, fa3.flash_attn_varlen_func):
            arrays, way = (packed, "apply") if "varlen" in call.__name__ else ((self.q, self.k, self.v), "apply_plain")
            for given in (False, True):
                with mock.patch.object(tilewise.torch, way, wraps=getattr(tilewise.torch, way)) as seen:
                    call(*arrays, deterministic=given)
                self.assertEqual(seen.call_args.args[-3], given)

    def test_packed_in_one_tensor(self):
        qkv = torch.stack([self.q, self.q + 1, self.q * 2], dim=2).requires_grad_()
        want = tilewise.attention(*(x.detach() for x in qkv.unbind(2)), causal=True)
        for got in (fa2.flash_attn_qkvpacked_func(qkv, causal=True), fa3.flash_attn_qkvpacked_func(qkv, causal=True)):
            close(got, want)
        got.sum().backward()
        self.assertEqual(qkv.grad.shape, qkv.shape)
        kv = torch.stack([self.k, self.v], dim=2)
        close(fa2.flash_attn_kvpacked_func(self.q, kv), tilewise.attention(self.q, self.k, self.v))
        heads = torch.cat([self.q, self.k[:, :9], self.v[:, :9]], dim=2)
        close(fa3.flash_attn_qkvpacked_func(heads, num_heads_q=4), tilewise.attention(self.q, self.k[:, :9], self.v[:, :9]))
        with self.assertRaisesRegex(ValueError, "num_heads_q"):
            fa3.flash_attn_qkvpacked_func(heads)

    def test_probabilities_with_dropout(self):
        torch.manual_seed(1)
        o, _, p = fa2.flash_attn_func(self.q, self.k, self.v, 0.4, causal=True, return_attn_probs=True)
        self.assertEqual(p.shape, (2, 4, 9, 12))
        close(p.abs().amax(-1), torch.ones(2, 4, 9))
        p = p / p.abs().sum(-1, keepdim=True)
        dropped = torch.where(p > 0, p, 0) / (1 - round(0.4 * 65536) / 65536)
        close(torch.einsum("bhij,bjhd->bihd", dropped, self.v.repeat_interleave(2, 2)), o)

    def test_probabilities_are_those_of_every_option(self):
        cu = torch.tensor([0, 4, 9, 18], dtype=torch.int32), torch.tensor([0, 0, 10, 24], dtype=torch.int32)
        packed = *(x.flatten(0, 1) for x in (self.q, self.k, self.v)), *cu, 9, 14
        pages = self.k.flatten(0, 1).unflatten(0, (6, 4)), torch.tensor([[3, 0, 5], [1, 4, 2]], dtype=torch.int32)
        filled = torch.tensor([0, 7, 19], dtype=torch.int32)
        common = {"softmax_scale": 0.4, "window_size": (6, 2), "softcap": 3.0, "alibi_slopes": self.slopes}
        for given, names in (((fa2.flash_attn_func, self.q, self.k, self.v), {}),
                             ((fa2.flash_attn_func, self.q, self.k, self.v), {"causal": True}),
                             ((fa2.flash_attn_varlen_func, *packed), {"causal": True}),
                             ((fa2.flash_attn_varlen_func, *packed), {}),
                             ((fa2.flash_attn_varlen_func, packed[0], pages[0], pages[0], cu[0][[0, 1, 3]], filled, 14, 12),
                              {"block_table": pages[1]})):
            function, q, k, *rest = given
            p = function(q, k, *rest, dropout_p=0.3, return_attn_probs=True, **common, **names)[2].abs()
            arrays = {}
            if "block_table" in names:
                arrays = {"cu_seqlens_q": cu[0][[0, 1, 3]], "seqlen_q": 14, "page_table": pages[1], "kv_lengths": filled.diff()}
            elif function is fa2.flash_attn_varlen_func:
                arrays = {"cu_seqlens_q": cu[0], "seqlen_q": 9, "cu_seqlens_kv": cu[1], "seqlen_kv": 14}
            want = tilewise.attention_weights(q, k, torch.arange(p.shape[2], dtype=torch.int32), causal=names.get("causal", False),
                                              **common, **arrays)
            close(p, want / want.amax(-1, keepdim=True).clamp_min(1e-30))

    def test_what_is_not_served_has_its_reason(self):
        for function, name, value in ((fa3.flash_attn_func, "qv", self.q), (fa3.flash_attn_func, "attention_chunk", 4),
                                      (fa3.flash_attn_with_kvcache, "rotary_seqlens", torch.zeros(2))):
            with self.assertRaisesRegex(NotImplementedError, f"tilewise does not serve {name}: ."):
                function(self.q, self.k, self.v, **{name: value})


@on_every_device
class Packed(WithTorch):
    def setUp(self):
        super().setUp()
        source = Source(2)
        self.q, self.k, self.v = tensor(source, 10, 4, 8), tensor(source, 13, 2, 8), tensor(source, 13, 2, 8)
        self.cu = torch.tensor([0, 4, 10], dtype=torch.int32), torch.tensor([0, 6, 13], dtype=torch.int32)

    def test_both_versions(self):
        parts = [tilewise.attention(self.q[None, a:b], self.k[None, c:d], self.v[None, c:d], causal=True, return_lse=True)
                 for a, b, c, d in ((0, 4, 0, 6), (4, 10, 6, 13))]
        want = torch.cat([o[0] for o, _ in parts]), torch.cat([lse[0] for _, lse in parts], dim=1)
        arguments = (self.q, self.k, self.v, *self.cu, 6, 7)
        o, lse, _ = fa2.flash_attn_varlen_func(*arguments, 0.0, None, True, return_attn_probs=True)
        close(o, want[0])
        close(lse, want[1])
        o, lse = fa3.flash_attn_varlen_func(*arguments, None, None, None, True, return_attn_probs=True)
        close(o, want[0])
        close(lse, want[1])
        kv = torch.stack([self.k, self.v], dim=1)
        close(fa2.flash_attn_varlen_kvpacked_func(self.q, kv, *self.cu, 6, 7, causal=True), want[0])
        qkv = torch.stack([self.q] * 3, dim=1)
        close(fa2.flash_attn_varlen_qkvpacked_func(qkv, self.cu[0], 6, causal=True),
              tilewise.attention(self.q, self.q, self.q, causal=True, cu_seqlens_q=self.cu[0], cu_seqlens_kv=self.cu[0],
                                 seqlen_q=6, seqlen_kv=6))

    def test_rows_in_use(self):
        used = torch.tensor([2, 5]), torch.tensor([3, 7])
        got = fa3.flash_attn_varlen_func(self.q, self.k, self.v, *self.cu, 6, 7, *used, causal=True)
        close(got[4:9], tilewise.attention(self.q[None, 4:9], self.k[None, 6:], self.v[None, 6:], causal=True)[0])
        self.assertEqual(got[2:4].abs().max(), 0)


@on_every_device
class Cache(WithTorch):
    def test_append_and_attend(self):
        source = Source(3)
        for module in (fa2, fa3):
            q, k, v = tensor(source, 2, 2, 4, 8), tensor(source, 2, 2, 2, 8), tensor(source, 2, 2, 2, 8)
            k_cache, v_cache = tensor(source, 2, 16, 2, 8), tensor(source, 2, 16, 2, 8)
            filled = torch.tensor([5, 9], dtype=torch.int32)
            before = k_cache.clone()
            o, lse, *rest = module.flash_attn_with_kvcache(q, k_cache, v_cache, k=k, v=v, cache_seqlens=filled, causal=True,
                                                           return_softmax_lse=True)
            self.assertEqual([x.numel() for x in rest], [0, 0] if module is fa3 else [])  # version 3 returns its splits' parts
            for b, n in enumerate((5, 9)):
                self.assertTrue(torch.equal(k_cache[b, n:n + 2], k[b]) and torch.equal(k_cache[b, :n], before[b, :n]))
                want = tilewise.attention(q[b:b + 1], k_cache[b:b + 1, :n + 2], v_cache[b:b + 1, :n + 2], causal=True)
                close(o[b:b + 1], want)
            self.assertEqual(lse.shape, (2, 4, 2))

    def test_rotated_and_other_sequences(self):
        source = Source(5)
        q, k, v = tensor(source, 2, 3, 4, 8), tensor(source, 2, 3, 2, 8), tensor(source, 2, 3, 2, 8)
        angles = torch.rand(16, 4)
        turn, filled, which = (angles.cos(), angles.sin()), torch.tensor([5, 9], dtype=torch.int32), torch.tensor([3, 1])
        for causal in (False, True):
            k_cache, v_cache = tensor(source, 4, 16, 2, 8), tensor(source, 4, 16, 2, 8)
            want_k = k_cache.clone()
            o = fa2.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, *turn, filled, which, causal=causal,
                                            rotary_interleaved=False)
            for b, (n, sequence) in enumerate(zip((5, 9), (3, 1))):
                want_k[sequence, n:n + 3] = apply_rotary_emb(k[b:b + 1], *turn, seqlen_offsets=n)[0]
                rows = [apply_rotary_emb(q[b:b + 1, i:i + 1], *turn, seqlen_offsets=n + i * causal) for i in range(3)]
                keys, values = k_cache[sequence][None, :n + 3], v_cache[sequence][None, :n + 3]
                want = tilewise.attention(torch.cat(rows, 1), keys, values, causal=causal)
                close(o[b:b + 1], want)
            close(k_cache, want_k)
        with self.assertRaisesRegex(ValueError, "rotary_cos is given without k and v"):
            fa2.flash_attn_with_kvcache(q, k_cache, v_cache, rotary_cos=turn[0], rotary_sin=turn[1])

    def test_a_number_left_padding_and_a_full_cache(self):
        source = Source(4)
        q, k, v = tensor(source, 2, 1, 4, 8), tensor(source, 2, 16, 2, 8), tensor(source, 2, 16, 2, 8)
        close(fa2.flash_attn_with_kvcache(q, k, v, cache_seqlens=7), tilewise.attention(q, k[:, :7], v[:, :7]))
        close(fa2.flash_attn_with_kvcache(q, k, v), tilewise.attention(q, k, v))
        left = torch.tensor([3, 3], dtype=torch.int32)
        close(fa2.flash_attn_with_kvcache(q, k, v, cache_seqlens=7, cache_leftpad=left, causal=True),
              tilewise.attention(q, k[:, 3:7], v[:, 3:7]))
        before = k.clone()
        if self.device == "cpu":  # a GPU's lengths are not the host's to look at
            with self.assertRaisesRegex(ValueError, r"^cache_seqlens\[0\] is 15; accepted: 0 to 14"):
                fa2.flash_attn_with_kvcache(q, k, v, k=k[:, :2] + 1, v=v[:, :2] + 1, cache_seqlens=15)
            self.assertTrue(torch.equal(k, before))
        with self.assertRaisesRegex(ValueError, "v is missing"):
            fa2.flash_attn_with_kvcache(q, k, v, k=k[:, :2], cache_seqlens=1)


@on_every_device
class Paged(WithTorch):
    """Pages against the same keys in a row."""

    def setUp(self):
        super().setUp()
        self.source = Source(6)
        self.angles = torch.rand(48, 3)

    def caches(self, page_size, dtype=torch.float32):
        """k and v in pages, the table, and k and v [2, 48, 2, 8] in a row."""
        pages = 2 * 48 // page_size + 3
        k, v = (tensor(self.source, pages, page_size, 2, 8).to(dtype) for _ in range(2))
        table = here(self.source.rng.permutation(pages)[:2 * 48 // page_size].reshape(2, -1))
        return k, v, table, *(x[table].flatten(1, 2) for x in (k, v))

    def test_append_rotate_and_attend(self):
        turn = {"rotary_cos": self.angles.cos(), "rotary_sin": self.angles.sin()}
        for page_size in (1, 3, 16):
            for rows, interleaved in ((1, True), (3, False)):
                k, v, table, k_row, v_row = self.caches(page_size)
                q, k_new, v_new = (tensor(self.source, 2, rows, heads, 8) for heads in (4, 2, 2))
                options = {"cache_seqlens": torch.tensor([5, 45]), "causal": True, "rotary_interleaved": interleaved, **turn}
                got = fa2.flash_attn_with_kvcache(q, k, v, k_new, v_new, block_table=table, **options)
                want = fa2.flash_attn_with_kvcache(q, k_row, v_row, k_new, v_new, **options)
                close(got, want)
                self.assertTrue(torch.equal(k[table].flatten(1, 2), k_row) and torch.equal(v[table].flatten(1, 2), v_row))
                got, lse, *_ = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=torch.tensor([5, 45]) + rows, page_table=table,
                                                           causal=True, return_softmax_lse=True)
                want = tilewise.attention(q, k_row, v_row, causal=True, return_lse=True,
                                          kv_lengths=torch.tensor([5 + rows, 45 + rows], dtype=torch.int32))
                close(got, want[0])
                close(lse, want[1])

    def test_sixteen_bits_a_number_and_packed_queries(self):
        k, v, table, k_row, v_row = self.caches(16, torch.bfloat16)
        q = tensor(self.source, 2, 4, 4, 8).bfloat16()
        want = tilewise.attention(q, k_row[:, :40], v_row[:, :40], causal=True)
        close(fa2.flash_attn_with_kvcache(q, k, v, cache_seqlens=40, block_table=table, causal=True), want, 2e-2)
        cu = torch.tensor([0, 4, 8], dtype=torch.int32)
        got = fa3.flash_attn_with_kvcache(q.flatten(0, 1), k, v, cache_seqlens=40, page_table=table, cu_seqlens_q=cu,
                                          max_seqlen_q=4, causal=True)
        close(got.view_as(want), want, 2e-2)
        got = fa2.flash_attn_varlen_func(q.flatten(0, 1), k, v, cu, cu * 10, 4, 40, causal=True, block_table=table)
        close(got.view_as(want), want, 2e-2)

    def test_the_cache_is_not_copied(self):
        k, v, table, k_row, v_row = self.caches(16)
        q, which = tensor(self.source, 2, 1, 4, 8), torch.tensor([1, 1])
        close(fa2.flash_attn_with_kvcache(q, k_row, v_row, cache_seqlens=9, cache_batch_idx=which),
              tilewise.attention(q, k_row[which, :9], v_row[which, :9]))
        large = torch.zeros(1, 1, 1, 1).expand(2, 2**30, 64, 1)  # 512 GiB, were two of its slots copied
        o = fa2.flash_attn_with_kvcache(torch.zeros(2, 1, 64, 1), large, large, cache_seqlens=4, cache_batch_idx=which)
        self.assertEqual(o.shape, (2, 1, 64, 1))

    def test_refusals(self):
        if self.device != "cpu":
            self.skipTest("pages are not the host's to look at on a GPU")
        k, v, table, *_ = self.caches(16)
        q, new = tensor(self.source, 2, 1, 4, 8), tensor(self.source, 2, 1, 2, 8)
        table[1, 0] = len(k)
        with self.assertRaisesRegex(ValueError, "^block_table of sequence 1 entry 0 is 9; accepted: 0 to 8"):
            fa2.flash_attn_with_kvcache(q, k, v, new, new, cache_seqlens=3, block_table=table)
        with self.assertRaisesRegex(ValueError, "^page_table of sequence 1 entry 0 is 9; accepted: 0 to 8"):
            fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=3, page_table=table)
        q.requires_grad_()
        table[1, 0] = 0
        o = tilewise.attention(q, k, v, page_table=table.int())
        with self.assertRaisesRegex(ValueError, "forward only, as caches take no gradient"):
            o.sum().backward()


@on_every_device
class Helpers(WithTorch):
    def test_padding_there_and_back(self):
        x = torch.arange(24.0).reshape(2, 4, 3).requires_grad_()
        mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]])
        packed, indices, cu, longest, used = unpad_input(x, mask)
        self.assertEqual((cu.tolist(), longest, used.tolist(), cu.dtype), ([0, 2, 5], 3, [2, 3], torch.int32))
        back = pad_input(packed, indices, 2, 4)
        torch.testing.assert_close(back, x * mask[..., None])
        back.sum().backward()
        torch.testing.assert_close(x.grad, mask[..., None].expand(2, 4, 3).float())

    def test_rotary(self):
        x, angles = torch.randn(2, 5, 3, 8), torch.rand(9, 2)
        cos, sin = angles.cos(), angles.sin()
        for interleaved, pairs in ((False, ((0, 2), (1, 3))), (True, ((0, 1), (2, 3)))):
            got = apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=torch.tensor([0, 4]))
            for n, (a, b) in enumerate(pairs):
                turned = torch.view_as_complex(torch.stack([x[..., a], x[..., b]], -1))
                angle = torch.stack([angles[:5, n], angles[4:9, n]])[..., None]
                turned = turned * torch.polar(torch.ones_like(angle), angle)
                close(torch.view_as_real(turned), torch.stack([got[..., a], got[..., b]], -1))
            self.assertTrue(torch.equal(got[..., 4:], x[..., 4:]))
        packed = apply_rotary_emb(x[0], cos, sin, cu_seqlens=torch.tensor([0, 2, 5]))
        close(packed[2:], apply_rotary_emb(x[:1, 2:], cos, sin)[0])


if __name__ == "__main__":
    unittest.main()

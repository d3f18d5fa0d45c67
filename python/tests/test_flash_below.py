"""The functions below flash_attn's public ones, as ring attention and inference call them, and its modules without weights."""

import unittest
from importlib.util import find_spec

from arrays import Source
from devices import WithTorch, here, on_every_device

if not find_spec("torch"):
    raise unittest.SkipTest("PyTorch is not installed: flash_attn's functions are not tested")

import torch

import tilewise
from tilewise import _flash_modules as modules
from tilewise import flash_attn as fa2
from tilewise import flash_attn_interface as fa3
from tilewise import rotary


def tensor(source, *shape):
    return here(source.normal(*shape))


def close(a, b, atol=3e-6):
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-5)


def by_autograd(call, dout, *inputs):
    inputs = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(call(*inputs), inputs, dout)


@on_every_device
class Dense(WithTorch):
    def setUp(self):
        super().setUp()
        source = Source(1)
        self.q, self.k, self.v = tensor(source, 2, 9, 4, 8), tensor(source, 2, 12, 2, 8), tensor(source, 2, 12, 2, 8)
        self.dout, self.slopes = tensor(source, 2, 9, 4, 8), torch.tensor([0.5, 0.25, 0.125, 0.0625])

    def test_version_2_is_its_public_function_taken_apart(self):
        options = dict(softmax_scale=0.3, causal=True, window_size_left=5, window_size_right=0, softcap=2.0, alibi_slopes=self.slopes)
        public = dict(options, window_size=(5, 0))
        del public["window_size_left"], public["window_size_right"]
        for dropout_p in (0.0, 0.3):
            torch.manual_seed(3)
            o, lse, p, state = fa2._flash_attn_forward(self.q, self.k, self.v, dropout_p, return_softmax=dropout_p > 0, **options)
            torch.manual_seed(3)
            want = fa2.flash_attn_func(self.q, self.k, self.v, dropout_p, return_attn_probs=True, **public)
            for got, wanted in zip((o, lse, p), want):
                close(got, wanted)
            self.assertEqual((state.dtype, state.shape), (torch.int64, (2,)))
            dq, dk, dv = (torch.full_like(x, 7) for x in (self.q, self.k, self.v))
            delta = fa2._flash_attn_backward(self.dout, self.q, self.k, self.v, o, lse, dq, dk, dv, dropout_p, deterministic=False,
                                             rng_state=state, **options)
            close(delta, (self.dout * o).sum(-1).transpose(1, 2))
            torch.manual_seed(3)
            for got, wanted in zip((dq, dk, dv), by_autograd(lambda q, k, v: fa2.flash_attn_func(q, k, v, dropout_p, **public),
                                                             self.dout, self.q, self.k, self.v)):
                close(got, wanted)

    def test_a_ring_of_two_devices(self):
        """Each device has half of the keys; the forwards' parts are merged, and each backward takes the merged o and lse."""
        plain = (0.0, 8**-0.5, False, -1, -1, 0.0, None)
        halves = [(self.k[:, a:b], self.v[:, a:b]) for a, b in ((0, 5), (5, 12))]
        parts = [fa2._flash_attn_forward(self.q, *half, *plain, False)[:2] for half in halves]
        lse = torch.logaddexp(parts[0][1], parts[1][1])
        o = sum(o * (part - lse).exp().transpose(1, 2)[..., None] for o, part in parts)
        close(o, tilewise.attention(self.q, self.k, self.v))
        dq, dkv = 0, []
        for half in halves:
            grads = [torch.empty_like(x) for x in (self.q, *half)]
            fa2._flash_attn_backward(self.dout, self.q, *half, o, lse, *grads, *plain, False)
            dq, dkv = dq + grads[0], [*dkv, grads[1:]]
        want = by_autograd(fa2.flash_attn_func, self.dout, self.q, self.k, self.v)
        for got, wanted in zip((dq, *(torch.cat(x, 1) for x in zip(*dkv))), want):
            close(got, wanted)

    def test_gradients_go_where_they_are_told(self):
        o, lse, *_ = fa2._flash_attn_forward(self.q, self.k, self.v, 0.0, 0.3, False, -1, -1, 0.0, None, False)
        rest = (0.0, 0.3, False, -1, -1, 0.0, None, False)
        want = by_autograd(lambda *x: fa2.flash_attn_func(*x, softmax_scale=0.3), self.dout, self.q, self.k, self.v)
        packed = torch.full((2, 12, 2, 2, 8), 7.0)
        columns = torch.full((2, 9, 8, 4), 7.0)
        fa2._flash_attn_backward(self.dout, self.q, self.k, self.v, o, lse, columns.mT, packed[:, :, 0], packed[:, :, 1], *rest)
        for got, wanted in zip((columns.mT, packed[:, :, 0], packed[:, :, 1]), want):
            close(got, wanted)
        wide = torch.full((2, 9, 4, 8), 7.0, dtype=torch.float64)
        fa2._flash_attn_backward(self.dout, self.q, self.k, self.v, o, lse, wide, None, None, *rest)
        close(wide.float(), want[0])
        with self.assertRaisesRegex(ValueError, r"^dk is torch.Tensor .*accepted: k's shape, \[2, 12, 2, 8\]"):
            fa2._flash_attn_backward(self.dout, self.q, self.k, self.v, o, lse, None, columns, None, *rest)
        with self.assertRaisesRegex(ValueError, "^dropout_p is 0.2 without rng_state"):
            fa2._flash_attn_backward(self.dout, self.q, self.k, self.v, o, lse, None, None, None, 0.2, *rest[1:])
        with self.assertRaisesRegex(TypeError, "^out is NoneType"):
            fa2._flash_attn_backward(self.dout, self.q, self.k, self.v, None, lse, None, None, None, *rest)
        with self.assertRaisesRegex(ValueError, "^return_softmax is True without dropout_p"):
            fa2._flash_attn_forward(self.q, self.k, self.v, 0.0, 0.3, False, -1, -1, 0.0, None, True)

    def test_version_3(self):
        o, lse, *nothing = fa3._flash_attn_forward(self.q, self.k, self.v, softmax_scale=0.3, causal=True, softcap=2.0)
        want = fa3.flash_attn_func(self.q, self.k, self.v, 0.3, True, softcap=2.0, return_attn_probs=True)
        close(o, want[0])
        close(lse, want[1])
        self.assertEqual([x.numel() for x in nothing], [0, 0])
        out = torch.empty_like(o)
        self.assertIs(fa3._flash_attn_forward(self.q, self.k, self.v, out_=out, causal=True)[0], out)
        close(out, fa3.flash_attn_func(self.q, self.k, self.v, causal=True))
        grads = [torch.empty_like(x) for x in (self.q, self.k, self.v)]
        delta = fa3._flash_attn_backward(self.dout, self.q, self.k, self.v, o, lse, dq=grads[0], dk=grads[1], dv=grads[2],
                                         softmax_scale=0.3, is_causal=True, softcap=2.0)
        close(delta, (self.dout * o).sum(-1).transpose(1, 2))
        for got, wanted in zip(grads, by_autograd(lambda *x: fa3.flash_attn_func(*x, 0.3, True, softcap=2.0), self.dout, self.q,
                                                  self.k, self.v)):
            close(got, wanted)

    def test_version_3s_cache(self):
        pages = torch.arange(6, dtype=torch.int32).reshape(2, 3)
        caches = [x.flatten(0, 1).unflatten(0, (6, 4)) for x in (self.k, self.v)]
        filled = torch.tensor([5, 9], dtype=torch.int32)
        new = tensor(Source(2), 2, 1, 2, 8), tensor(Source(3), 2, 1, 2, 8)
        theirs = [x.clone() for x in caches]
        want = fa3.flash_attn_with_kvcache(self.q, *theirs, *new, cache_seqlens=filled, page_table=pages, causal=True,
                                           return_softmax_lse=True)
        got = fa3._flash_attn_forward(self.q, *caches, *new, seqused_k=filled, page_table=pages, causal=True)
        for a, b in zip((*got[:2], *caches), (*want[:2], *theirs)):
            close(a, b)
        used = torch.tensor([4, 9], dtype=torch.int32)
        got, lse, *_ = fa3._flash_attn_forward(self.q, self.k, self.v, seqused_q=used, seqused_k=filled)
        close(got, tilewise.attention(self.q, self.k, self.v, q_lengths=used, kv_lengths=filled))
        with self.assertRaisesRegex(NotImplementedError, "does not serve qv: "):
            fa3._flash_attn_forward(self.q, self.k, self.v, qv=self.q)

    def test_modules(self):
        qkv = torch.stack([self.q] * 3, 2)
        module = modules.FlashSelfAttention(causal=True, softmax_scale=0.3, window_size=(5, 2), alibi_slopes=self.slopes.double())
        want = fa2.flash_attn_qkvpacked_func(qkv, 0.0, 0.3, True, (5, 2), 0.0, self.slopes)
        close(module(qkv), want)
        self.assertGreater((module(qkv, causal=False) - want).abs().max(), 0)
        cu = torch.tensor([0, 9, 18], dtype=torch.int32)
        close(module(qkv.flatten(0, 1), cu_seqlens=cu, max_seqlen=9), want.flatten(0, 1))
        kv = torch.stack([self.k, self.v], 2)
        cross = modules.FlashCrossAttention(attention_dropout=0.5)
        torch.manual_seed(1)
        dropped = cross(self.q, kv)
        torch.manual_seed(1)
        close(dropped, fa2.flash_attn_kvpacked_func(self.q, kv, 0.5))
        close(cross.eval()(self.q, kv), fa2.flash_attn_kvpacked_func(self.q, kv))
        keys = torch.tensor([0, 12, 24], dtype=torch.int32)
        close(cross(self.q.flatten(0, 1), kv.flatten(0, 1), None, cu, 9, keys, 12), cross(self.q, kv).flatten(0, 1))
        self.assertEqual(list(module.state_dict()), [])

    def test_apply_rotary_turns_and_turns_back(self):
        angles = torch.rand(12, 3)
        cos, sin = angles.cos(), angles.sin()
        for interleaved in (False, True):
            turned = rotary.apply_rotary(self.q, cos, sin, 2, interleaved=interleaved)
            close(turned, rotary.apply_rotary_emb(self.q, cos, sin, interleaved, seqlen_offsets=2))
            close(rotary.apply_rotary(turned, cos, sin, 2, interleaved=interleaved, conjugate=True), self.q)
        x = self.q.clone()
        self.assertIs(rotary.apply_rotary(x, cos, sin, inplace=True), x)


@on_every_device
class Packed(WithTorch):
    def setUp(self):
        super().setUp()
        source = Source(2)
        self.q, self.k, self.v = tensor(source, 12, 4, 8), tensor(source, 15, 2, 8), tensor(source, 15, 2, 8)
        self.dout = tensor(source, 12, 4, 8)
        self.cu = torch.tensor([0, 4, 10], dtype=torch.int32), torch.tensor([0, 6, 13], dtype=torch.int32)  # two rows more

    def test_both_versions(self):
        torch.manual_seed(5)
        o, lse, p, state = fa2._flash_attn_varlen_forward(self.q, self.k, self.v, *self.cu, 6, 7, 0.3, 0.4, True, 3, 0, zero_tensors=True,
                                                          return_softmax=True)
        torch.manual_seed(5)
        arguments = *self.cu, 6, 7, 0.3, 0.4, True, (3, 0)
        want = fa2.flash_attn_varlen_func(self.q, self.k, self.v, *arguments, return_attn_probs=True)
        close(o[:10], want[0][:10])
        close(lse[:, :10], want[1][:, :10])
        close(p, want[2])
        self.assertTrue((o[10:] == 0).all() and (lse[:, 10:] == -torch.inf).all())
        grads = [torch.full_like(x, 7) for x in (self.q, self.k, self.v)]
        delta = fa2._flash_attn_varlen_backward(self.dout, self.q, self.k, self.v, o, lse, *grads, *self.cu, 6, 7, 0.3, 0.4, True, 3, 0,
                                                0.0, None, False, state, True)
        close(delta, (self.dout * o).sum(-1).T)
        torch.manual_seed(5)
        wanted = by_autograd(lambda *x: fa2.flash_attn_varlen_func(*x, *arguments)[:10], self.dout[:10], self.q, self.k, self.v)
        for got, want, rows in zip(grads, wanted, (10, 13, 13)):
            close(got[:rows], want[:rows])
            self.assertTrue((got[rows:] == 0).all())
        o3, lse3, *_ = fa3._flash_attn_forward(self.q, self.k, self.v, cu_seqlens_q=self.cu[0], cu_seqlens_k=self.cu[1], max_seqlen_q=6,
                                               max_seqlen_k=7, causal=True)
        want = fa3.flash_attn_varlen_func(self.q, self.k, self.v, *self.cu, 6, 7, causal=True, return_attn_probs=True)
        close(o3[:10], want[0][:10])
        close(lse3[:, :10], want[1][:, :10])
        grads = [torch.empty_like(x) for x in (self.q, self.k, self.v)]
        fa3._flash_attn_backward(self.dout, self.q, self.k, self.v, o3, lse3, *self.cu, None, None, 6, 7, *grads, is_causal=True)
        wanted = by_autograd(lambda *x: fa3.flash_attn_varlen_func(*x, *self.cu, 6, 7, causal=True)[:10], self.dout[:10], self.q, self.k,
                             self.v)
        for got, want, rows in zip(grads, wanted, (10, 13, 13)):
            close(got[:rows], want[:rows])

    def test_pages_and_used_rows(self):
        pages = torch.tensor([[2, 0], [1, 0]], dtype=torch.int32)
        caches = [x.unflatten(0, (3, 5)) for x in (self.k, self.v)]
        want = fa2.flash_attn_varlen_func(self.q[:10], *caches, *self.cu, 6, 7, causal=True, block_table=pages)
        got = fa2._flash_attn_varlen_forward(self.q[:10], *caches, *self.cu, 6, 7, 0.0, 8**-0.5, True, block_table=pages)
        close(got[0], want)
        used = torch.tensor([3, 5], dtype=torch.int32)
        got = fa2._flash_attn_varlen_forward(self.q[:10], self.k, self.v, *self.cu, 6, 7, 0.0, 8**-0.5, True, seqused_k=used)
        close(got[0], fa3.flash_attn_varlen_func(self.q[:10], self.k, self.v, *self.cu, 6, 7, seqused_k=used, causal=True))


if __name__ == "__main__":
    unittest.main()

"""tilewise.torch: gradients by autograd, torch.compile, autocast, dropout, vmap; and SDPA's function against PyTorch's."""

import unittest
import warnings
from importlib.util import find_spec

from arrays import Source
from devices import WithTorch, here, on_every_device

if not find_spec("torch"):
    raise unittest.SkipTest("PyTorch is not installed: tilewise.torch is not tested")

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as theirs

import tilewise
from tilewise.torch import attention
from tilewise.torch import scaled_dot_product_attention as ours


def tensors(source, *shapes, dtype=torch.float32, grad=True):
    return [here(source.normal(*shape)).to(dtype).requires_grad_(grad) for shape in shapes]


def qkv(source, dtype=torch.float32, grad=True):
    return tensors(source, (2, 9, 4, 8), (2, 12, 2, 8), (2, 12, 2, 6), dtype=dtype, grad=grad)


def by_formula(q, k, v, bias=None, sinks=None, causal=False, softcap=0.0):
    """(o, lse) in fp64 by autograd's own operators."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.double()
    if causal:
        rows, keys = s.shape[-2:]
        s = s.masked_fill(torch.ones(rows, keys, dtype=torch.bool).triu(keys - rows + 1), -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.double()[:, None, None].expand(*s.shape[:-1], 1)], dim=-1)
    lse, p = s.logsumexp(-1), s.softmax(-1)
    if sinks is not None:
        p = p[..., :-1]
    return (p @ v).transpose(1, 2), lse


@on_every_device
class Gradients(WithTorch):
    def compare(self, inputs, options, ours=attention):
        source = Source(9)
        o, lse = ours(*inputs, return_lse=True, **options)
        want_o, want_lse = by_formula(*inputs, **options)
        dout, dlse = here(source.normal(*o.shape)), here(source.normal(*lse.shape))
        leaves = [x for x in (*inputs, *options.values()) if isinstance(x, torch.Tensor)]
        got = torch.autograd.grad((o * dout).sum() + (lse * dlse).sum(), leaves)
        want = torch.autograd.grad((want_o * dout).sum() + (want_lse * dlse).sum(), leaves)
        torch.testing.assert_close(o.double(), want_o, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(lse.double(), want_lse, atol=2e-6, rtol=1e-5)
        for a, b in zip(got, want):
            self.assertEqual((a.shape, a.dtype), (b.shape, b.dtype))
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)

    def test_everything_that_has_one(self):
        source = Source(1)
        for options in ({}, {"causal": True}, {"softcap": 2.0, "causal": True}):
            with self.subTest(options):
                bias, sinks = tensors(source, (1, 4, 9, 12), (4,))
                self.compare(qkv(source), dict(options, bias=bias, sinks=sinks))
                self.compare(qkv(source), options)

    def test_tilewise_attention_is_differentiable_too(self):
        source = Source(2)
        self.compare(qkv(source), {"causal": True}, ours=tilewise.attention)
        q, k, v = qkv(source)
        self.assertIsNone(tilewise.attention(q.detach(), k.detach(), v.detach()).grad_fn)
        with torch.no_grad():
            self.assertIsNone(tilewise.attention(q, k, v).grad_fn)
        with self.assertRaisesRegex(ValueError, "out is torch.Tensor.*no_grad"):
            tilewise.attention(q, k, v, out=torch.empty(2, 9, 4, 6))

    def test_only_what_is_needed(self):
        q, k, v = qkv(Source(3))
        attention(q.detach(), k, v.detach()).sum().backward()
        self.assertIsNotNone(k.grad)
        self.assertIsNone(q.grad)

    def test_lse_alone(self):
        q, k, v = qkv(Source(4))
        _, lse = attention(q, k, v, return_lse=True)
        lse.sum().backward()
        self.assertEqual(v.grad.abs().max(), 0)
        self.assertGreater(q.grad.abs().max(), 0)

    def test_sixteen_bits_and_strides(self):
        for dtype in (torch.float16, torch.bfloat16):
            q, k, v = qkv(Source(5), dtype)
            o = attention(q, k.transpose(1, 2).contiguous().transpose(1, 2), v)
            o.backward(torch.ones(()).to(dtype).expand(o.shape))
            want, _ = by_formula(*(x.detach() for x in (q, k, v)))
            torch.testing.assert_close(o.double(), want, atol=0.02, rtol=0.02)
            self.assertEqual((q.grad.dtype, k.grad.shape), (dtype, k.shape))
        wide = torch.randn(2, 9, 4, 16)[..., ::2].requires_grad_()
        attention(wide, k.float(), v.float()).sum().backward()

    def test_packed(self):
        source = Source(6)
        q, k, v = tensors(source, (10, 2, 8), (13, 2, 8), (13, 2, 8))
        cu_q, cu_kv = torch.tensor([0, 4, 10], dtype=torch.int32), torch.tensor([0, 6, 13], dtype=torch.int32)
        o = attention(q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, seqlen_q=6, seqlen_kv=7)
        dout = here(source.normal(10, 2, 8))
        got = torch.autograd.grad(o, (q, k, v), dout)
        parts = [by_formula(q[None, a:b], k[None, c:d], v[None, c:d], causal=True)[0][0]
                 for a, b, c, d in ((0, 4, 0, 6), (4, 10, 6, 13))]
        want = torch.autograd.grad(torch.cat(parts), (q, k, v), dout.double())
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)

    def test_a_quantised_cache_gives_none(self):
        q = here(Source(11).normal(1, 1, 2, 8)).requires_grad_()
        k = torch.ones(1, 4, 2, 8, dtype=torch.int8, device=q.device)
        scales = {"k_scales": torch.ones(1, 2, device=q.device), "v_scales": torch.ones(1, 2, device=q.device)}
        with self.assertRaisesRegex(ValueError, "wants a gradient.*no_grad"):
            tilewise.attention(q, k, k, **scales)
        with self.assertRaisesRegex(ValueError, "wants a gradient.*no_grad"):
            attention(q, k, k, **scales)
        with torch.no_grad():
            torch.testing.assert_close(tilewise.attention(q, k, k, **scales), torch.ones_like(q))
            torch.testing.assert_close(attention(q, k, k, **scales), torch.ones_like(q))
            grouped = {name: x[:, None].expand(1, 2, 2) * 2 for name, x in scales.items()}
            torch.testing.assert_close(attention(q, k, k, scale_rows=2, **grouped), torch.full_like(q, 2))
            compiled = torch.compile(lambda q: attention(q, k, k, **scales), fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(compiled(q), torch.ones_like(q))


@on_every_device
class Tracing(WithTorch):
    def test_compile_in_one_graph(self):
        q, k, v = qkv(Source(1))
        bias, sinks = tensors(Source(2), (4, 9, 12), (4,))
        lengths = torch.tensor([12, 7])

        def step(q, k, v, bias, sinks):
            o, lse = attention(q * 2, k, v, causal=True, window_size=(8, 0), softcap=3.0, bias=bias, sinks=sinks,
                               kv_lengths=lengths, return_lse=True)
            return o.sum() + lse.square().sum() * 0.1

        leaves = (q, k, v, bias, sinks)
        want = torch.autograd.grad(step(*leaves), leaves)
        got = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(*leaves), leaves)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b)

    def test_compile_in_one_graph_without_gradients(self):
        q, k, v = qkv(Source(1), grad=False)
        step = lambda q: attention(q * 2, k, v, causal=True, softcap=3.0).square()  # noqa: E731
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(q), step(q))

    def test_compile_with_changing_lengths_and_dropout(self):
        compiled = torch.compile(lambda q, k, v: attention(q, k, v, dropout_p=0.5), fullgraph=True,
                                 backend="aot_eager", dynamic=True)
        for rows in (5, 9):
            q = torch.randn(1, rows, 2, 8)
            self.assertEqual(compiled(q, q, q).shape, q.shape)

    def test_the_operators_keep_their_contract(self):
        q, k, v = qkv(Source(3))
        rest = [None] * 18 + [False, 0, True, 0, -1, -1, None, 0.0, 0.0, 0, 0, False, False, 0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.library.opcheck(torch.ops.tilewise.attention.default, (q, k, v, *rest))

    def test_vmap_is_refused(self):
        q = torch.randn(3, 1, 4, 2, 8)
        with self.assertRaisesRegex(RuntimeError, "torch.vmap.*fold the mapped dimension"):
            torch.vmap(attention)(q, q, q)


@on_every_device
class Derivatives(WithTorch):
    """What torch differentiates beyond one backward: right, or refused with a sentence."""

    def refuses(self, words, call):
        with self.assertRaisesRegex(NotImplementedError, words):
            call()

    def test_gradients_of_gradients_are_refused(self):
        q, k, v = qkv(Source(4))
        sinks = torch.zeros(4)
        ones = lambda o: torch.autograd.grad(o, q, torch.ones_like(o), create_graph=True)  # noqa: E731
        for call in (attention, tilewise.attention, lambda *x: attention(*x, sinks=sinks)):
            self.refuses("no second derivatives", lambda call=call: ones(call(q, k, v)))
            self.refuses("no second derivatives", lambda call=call: call(q, k, v).square().sum().backward(create_graph=True))
            self.assertFalse(torch.autograd.grad(call(q, k, v).sum(), q)[0].requires_grad)
        total = lambda x: attention(x, k, v).sum()  # noqa: E731
        self.refuses("no second derivatives", lambda: torch.func.grad(lambda x: torch.func.grad(total)(x).sum())(q.detach()))

    def test_forward_mode_is_refused(self):
        q, k, v = qkv(Source(5), grad=False)
        sinks = torch.zeros(4)
        words = "no forward-mode derivatives.*reverse mode"
        for call in (attention, tilewise.attention, lambda *x: attention(*x, sinks=sinks)):
            of_q, of_v = lambda x, call=call: call(x, k, v), lambda x, call=call: call(q, k, x)
            self.refuses(words, lambda of_q=of_q: torch.func.jvp(of_q, (q,), (q,)))
            self.refuses(words, lambda of_v=of_v: torch.func.jacfwd(of_v)(v))
            self.refuses(words, lambda of_q=of_q: torch.func.jvp(torch.func.grad(lambda x: of_q(x).sum()), (q,), (q,)))
            want = call(q, k, v)
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(v, torch.ones_like(v))
                self.refuses(words, lambda of_v=of_v, dual=dual: of_v(dual))
                torch.testing.assert_close(of_q(q), want)
        compiled = torch.compile(lambda x: torch.func.jvp(lambda y: attention(y, k, v), (x,), (x,))[1], backend="aot_eager")
        self.refuses(words, lambda: compiled(q))

    def test_reverse_mode_of_torch_func(self):
        q, k, v = qkv(Source(6), grad=False)
        (bias,) = tensors(Source(7), (4, 9, 12), grad=False)
        arrays = q, k, v, bias
        ours_of = lambda q, k, v, bias: attention(q, k, v, bias=bias, causal=True)  # noqa: E731
        theirs_of = lambda q, k, v, bias: by_formula(q, k, v, bias, causal=True)[0]  # noqa: E731
        o, back = torch.func.vjp(ours_of, *arrays)
        want_o, want_back = torch.func.vjp(theirs_of, *arrays)
        torch.testing.assert_close(o.double(), want_o, atol=2e-6, rtol=1e-5)
        for a, b in zip(back(o), want_back(o.double())):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
        got = torch.func.grad(lambda *x: ours_of(*x).square().sum(), argnums=(0, 1, 2, 3))(*arrays)
        want = torch.func.grad(lambda *x: theirs_of(*x).square().sum(), argnums=(0, 1, 2, 3))(*arrays)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
        plain = torch.func.grad(lambda x: tilewise.attention(x, k, v).square().sum())(q)
        torch.testing.assert_close(plain, torch.func.grad(lambda x: by_formula(x, k, v)[0].square().sum())(q), atol=2e-5, rtol=1e-4)


@on_every_device
class Modes(WithTorch):
    def test_autocast(self):
        q, k, v = qkv(Source(1))
        with torch.autocast(self.device, torch.bfloat16):
            o = attention(q, k, v.bfloat16(), bias=torch.zeros(9, 12))
        self.assertEqual(o.dtype, torch.bfloat16)
        o.float().sum().backward()
        self.assertEqual(q.grad.dtype, torch.float32)

    def test_dropout_follows_torchs_generator(self):
        q, k, v = qkv(Source(2))

        def draw(**options):
            return attention(q, k, v, dropout_p=0.5, **options)

        torch.manual_seed(7)
        first, second = draw(), draw()
        torch.manual_seed(7)
        torch.testing.assert_close(first, draw(), rtol=0, atol=0)
        self.assertFalse(torch.equal(first, second))
        own, same = (torch.Generator(self.device).manual_seed(3) for _ in range(2))
        torch.testing.assert_close(draw(generator=own), draw(generator=same), rtol=0, atol=0)

    def test_dropout_backward_uses_forwards_mask(self):
        q, k, v = qkv(Source(3))
        state = torch.tensor([5, 6])
        o = attention(q, k, v, dropout_p=0.3, dropout_state=state)
        dout = here(Source(4).normal(*o.shape))
        got = torch.autograd.grad(o, (q, k, v), dout)
        q, k, v = (x.detach() for x in (q, k, v))
        options = {"dropout_p": 0.3, "dropout_seed": 5, "dropout_offset": 6}
        want = tilewise.attention_backward(dout, q, k, v, *tilewise.attention(q, k, v, return_lse=True, **options), **options)
        for a, b in zip(got, want[:3]):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)

    def test_deterministic_algorithms(self):
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        q, k, v = qkv(Source(5))
        with torch.no_grad():
            self.assertTrue(torch.equal(attention(q, k, v), attention(q, k, v)))
        first, second = (torch.autograd.grad(attention(q, k, v).square().sum(), (q, k, v)) for _ in range(2))
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(first, second)))

    def test_refusals(self):
        q, k, v = qkv(Source(6), grad=False)
        with self.assertRaisesRegex(ValueError, r"k.*torch.Tensor float32 \[2, 12, 3, 8\] on " + self.device):
            attention(q, torch.zeros(2, 12, 3, 8), v)
        with self.assertRaisesRegex(ValueError, "layout is 'sbhd'"):
            attention(q, k, v, layout="sbhd")
        with self.assertRaisesRegex(TypeError, "float64"):
            attention(q.double(), k.double(), v.double())


@on_every_device
class Sdpa(WithTorch):
    def same(self, *inputs, **options):
        """PyTorch's own in fp64, which is its three-step formula on every device."""
        exact = {name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in options.items()}
        want = theirs(*(x.double() for x in inputs), **exact)
        torch.testing.assert_close(ours(*inputs, **options).double(), want, atol=3e-6, rtol=1e-5)

    def test_shapes_and_masks(self):
        source = Source(1)
        q, k, v = tensors(source, (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), grad=False)
        self.same(q, k, v)
        self.same(q, k, v, is_causal=True)
        self.same(q, k, v, scale=0.5)
        allowed = here(source.rng.random((2, 1, 5, 7)) < 0.7) | torch.eye(5, 7, dtype=torch.bool)
        self.same(q, k, v, attn_mask=allowed)
        self.same(q, k, v, attn_mask=allowed[0, 0])
        self.same(q, k, v, attn_mask=here(source.normal(4, 5, 7)))
        self.same(q, k[:, :1].expand(-1, 4, -1, -1), v)

    def test_other_ranks(self):
        source = Source(2)
        self.same(*tensors(source, (3, 5, 8), (3, 7, 8), (3, 7, 8)), attn_mask=here(source.normal(3, 5, 7)))
        self.same(*tensors(source, (5, 8), (7, 8), (7, 8)))
        self.same(*tensors(source, (2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 8)),
                  attn_mask=here(source.normal(2, 1, 1, 5, 7)))

    def test_grouped_heads(self):
        q, k, v = tensors(Source(3), (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
        self.same(q, k, v, enable_gqa=True)
        with self.assertRaises(ValueError):
            ours(q, k, v)

    def test_causal_biases(self):
        from torch.nn.attention.bias import causal_lower_right, causal_upper_left

        q, k, v = tensors(Source(4), (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), grad=False)
        for bias, last in ((causal_upper_left(5, 7), 0), (causal_lower_right(5, 7), 2)):
            mask = torch.ones(5, 7, dtype=torch.bool).tril(last)
            torch.testing.assert_close(ours(q, k, v, attn_mask=bias), ours(q, k, v, attn_mask=mask), atol=3e-6, rtol=1e-5)
            self.same(q, k, v, attn_mask=mask)

    def test_gradients(self):
        source = Source(5)
        inputs = tensors(source, (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), (1, 4, 5, 7))
        dout = here(source.normal(2, 4, 5, 8))
        got = torch.autograd.grad(ours(*inputs[:3], attn_mask=inputs[3]), inputs, dout)
        exact = [x.detach().double().requires_grad_() for x in inputs]
        want = torch.autograd.grad(theirs(*exact[:3], attn_mask=exact[3]), exact, dout.double())
        for a, b in zip(got, want):
            torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-4)

    def test_a_mask_in_bits(self):
        source = Source(8)
        q, k, v = qkv(source, grad=False)
        allowed = source.rng.random((2, 1, 9, 12)) < 0.7
        bits = here(np.packbits(allowed, axis=-1, bitorder="little"))
        for call in (attention, tilewise.attention):
            torch.testing.assert_close(call(q, k, v, mask=bits), attention(q, k, v, mask=here(allowed)), atol=1e-6, rtol=1e-6)
        with self.assertRaisesRegex(ValueError, "mask"):
            attention(q, k, v, mask=bits.expand(2, 1, 9, 2).transpose(2, 3))

    def test_the_provider_of_pytorchs_registry(self):
        """Its two functions, as PyTorch would call them: on a GPU it does, see test_gpu.py."""
        from tilewise import _torch_sdpa as provider

        if hasattr(torch.nn.attention, "list_flash_attention_impls"):
            self.assertIn("tilewise", torch.nn.attention.list_flash_attention_impls())
        inputs = tensors(Source(9), (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), grad=False)
        exact = [x.double().requires_grad_() for x in inputs]
        for causal in (False, True):
            want = theirs(*exact, is_causal=causal, enable_gqa=True)
            o, lse, _, _, rows, keys, state, offset, _ = provider.sdpa_forward(*inputs, is_causal=causal)
            torch.testing.assert_close(o.double(), want, atol=3e-6, rtol=1e-5)
            self.assertEqual((lse.shape, rows, keys), ((2, 4, 5), 5, 7))
            dout = here(Source(10).normal(2, 4, 5, 8))
            got = provider.sdpa_backward(dout, *inputs, o, lse, None, None, rows, keys, 0.0, causal, state, offset)
            for a, b in zip(got, torch.autograd.grad(want, exact, dout.double())):
                torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-4)

    def test_rows_that_see_nothing_are_zero(self):
        q, k, v = tensors(Source(6), (1, 1, 2, 8), (1, 1, 3, 8), (1, 1, 3, 8), grad=False)
        o = ours(q, k, v, attn_mask=torch.tensor([[True, True, False], [False, False, False]]))
        self.assertEqual(o[0, 0, 1].abs().max(), 0)

    def test_mask_and_is_causal(self):
        q = torch.zeros(1, 1, 2, 8)
        with self.assertRaisesRegex(ValueError, "is_causal"):
            ours(q, q, q, attn_mask=torch.ones(2, 2, dtype=torch.bool), is_causal=True)


if __name__ == "__main__":
    unittest.main()

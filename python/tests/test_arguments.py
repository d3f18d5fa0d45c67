"""One bad argument at a time: a TypeError or ValueError that names it, says what was given and what is accepted."""

import unittest
from importlib.util import find_spec

import numpy as np
from arrays import Source, integers
from devices import WithTorch, here, on_every_device

import tilewise

if find_spec("torch"):
    import torch

    from tilewise import flash_attn as fa2
    from tilewise.torch import attention as torch_attention

NAN, MANY = float("nan"), np.array([1.0, 2.0])
SCALARS = {"causal": (MANY, [1], "left"), "window_size": (4, (1.5, 0), MANY[:1]), "softmax_scale": (NAN, MANY, "1", [1.0], True),
           "softcap": (MANY, None, "1"), "dropout_p": (MANY, "1"), "seqlen_q": ("3", 1.5, True), "seqlen_kv": ("3", MANY),
           "q_offset": (1.5, "1"), "layout": ("shbd", 3), "batch_invariant": (MANY,), "return_lse": (MANY,),
           "scale_rows": (2**70, 1.5, "1")}
INDICES = ("q_lengths", "kv_lengths", "kv_starts", "cache_batch_idx", "page_table", "segment_ids_q", "segment_ids_kv", "kv_ranges")


class Arguments(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = Source(1).qkv(2, 5, 7, 4, 2, 8, 8)

    def refuses(self, call, name, *arguments, begins=None, **options):
        with self.subTest(function=call.__name__, argument=name, options=str(options)):
            with self.assertRaises((TypeError, ValueError)) as caught:
                call(*arguments, **options)
            self.assertRegex(str(caught.exception), f"^({begins or name}|dtype_{name})\\b")
            self.assertIn("accepted:", str(caught.exception))

    def test_numbers(self):
        calls = [tilewise.attention] + ([torch_attention] if find_spec("torch") else [])
        for call in calls:
            arrays = self.q, self.k, self.v
            if call is not tilewise.attention:
                arrays = map(torch.from_numpy, arrays)
            arrays = tuple(arrays)
            for name, bad in SCALARS.items():
                for value in bad:
                    self.refuses(call, name, *arrays, **{name: value})
        self.refuses(tilewise.attention, "dropout_offset", self.q, self.k, self.v, dropout_p=0.1, dropout_seed=1, dropout_offset=1.5)

    def test_arrays(self):
        names = (*INDICES, "bias", "mask", "alibi_slopes", "sinks", "cu_seqlens_q", "dropout_state", "k_scales")
        for name in names:
            for value in ([1, 2], True, "x"):
                self.refuses(tilewise.attention, name, self.q, self.k, self.v, **{name: value})
        for name in INDICES:
            shape = {"page_table": (2, 1), "segment_ids_q": (2, 5), "segment_ids_kv": (2, 7), "kv_ranges": (2, 5, 2)}.get(name, (2,))
            others = {"segment_ids_q": "segment_ids_kv", "segment_ids_kv": "segment_ids_q"}
            beside = {others[name]: np.zeros((2, 5 if name.endswith("kv") else 7), np.int32)} if name in others else {}
            for dtype in (np.float32, np.int64, bool):
                self.refuses(tilewise.attention, name, self.q, self.k, self.v, **{name: np.ones(shape, dtype)}, **beside)

    def test_lengths_beyond_what_is_there(self):
        slots = {"cache_batch_idx": integers(1, 0)}
        packed = {"cu_seqlens_q": integers(0, 5, 10), "cu_seqlens_kv": integers(0, 7, 14)}
        for where in ({}, slots):
            for name, value in (("kv_lengths", integers(8, 1)), ("kv_lengths", integers(1, -1)), ("kv_starts", integers(8, 0)),
                                ("kv_starts", integers(-1, 0)), ("q_lengths", integers(6, 0)), ("q_lengths", integers(0, -1))):
                self.refuses(tilewise.attention, name, self.q, self.k, self.v, **{name: value}, **where)
            self.refuses(tilewise.attention, "kv_starts", self.q, self.k, self.v, kv_lengths=integers(3, 7),
                         kv_starts=integers(4, 0), **where)
        rows = self.q.reshape(10, 4, 8), self.k.reshape(14, 2, 8), self.v.reshape(14, 2, 8)
        self.refuses(tilewise.attention, "q_lengths", *rows, q_lengths=integers(5, 6), **packed)
        self.refuses(tilewise.attention, "kv_ranges", self.q, self.k, self.v, kv_ranges=np.full((2, 5, 2), 9, np.int32))

    def test_the_others(self):
        q, k, v = self.q, self.k, self.v
        for rows in (None, [0], np.array(0, np.int32), np.zeros((1, 1), np.int32), np.zeros(1)):
            self.refuses(tilewise.attention_weights, "rows", q, k, rows)
        for call in (tilewise.plan, tilewise.explain):
            self.refuses(call, "kernel", q, k, v, kernel=3)
            for value in ("3", 1.5, MANY):
                self.refuses(call, "max_workspace_bytes", q, k, v, max_workspace_bytes=value)
        for name, bad in (("scale_rows", (2**70, 1.5, "1", MANY)), ("write_scales", (MANY,)), ("rotary_interleaved", (MANY,))):
            for value in bad:
                self.refuses(tilewise.cache_append, name, k.copy(), v.copy(), k[:, :1], v[:, :1], integers(0, 0), **{name: value})
        o, lse = tilewise.attention(q, k, v, return_lse=True)
        self.refuses(tilewise.attention_backward, "out", o, q, k, v, o, lse, out=[1])
        for name in ("deterministic", "accumulate"):
            self.refuses(tilewise.attention_backward, name, o, q, k, v, o, lse, **{name: MANY})


@unittest.skipUnless(find_spec("torch"), "PyTorch is not installed")
@on_every_device
class Tensors(WithTorch):
    refuses = Arguments.refuses

    def setUp(self):
        super().setUp()
        self.q, self.k, self.v = map(here, Source(1).qkv(2, 5, 7, 4, 2, 8, 8))

    def test_no_tensors(self):
        q, k, v = self.q, self.k, self.v
        for bad in (None, q.cpu().numpy(), [1], q.to("meta"), q.to_sparse(), torch.nested.nested_tensor([q[0], q[1]])):
            self.refuses(torch_attention, "q", bad, k, v)
            self.refuses(torch_attention, "v", q, k, bad)
            self.refuses(fa2.flash_attn_func, "k", q, bad, v)
        for name in (*INDICES, "bias", "mask", "alibi_slopes", "sinks", "cu_seqlens_q", "dropout_state", "k_scales"):
            for bad in ([1, 2], np.ones(2, np.int32)):
                self.refuses(torch_attention, name, q, k, v, **{name: bad})

    def test_indices_keep_their_values(self):
        """int64 is welcome, and no number becomes another one by losing its upper bits."""
        pages, q = here(Source(2).normal(4, 4, 2, 8)), self.q[:1, :1]
        right = torch_attention(q, pages, pages, page_table=torch.tensor([[1]]))
        for bad in (2**32 + 1, -(2**32) + 1):
            table = torch.tensor([[bad]])
            if self.device == "cpu":
                self.refuses(torch_attention, "page_table", q, pages, pages, page_table=table)
                self.refuses(torch_attention, "kv_lengths", self.q, self.k, self.v, kv_lengths=torch.tensor([bad + 1, 1]))
            else:  # which nobody waits for: the nearest page and length that there are
                self.assertFalse(torch.equal(torch_attention(q, pages, pages, page_table=table), right))
                near = {"kv_lengths": torch.tensor([7 if bad > 0 else 0, 1], dtype=torch.int32)}
                torch.testing.assert_close(torch_attention(self.q, self.k, self.v, kv_lengths=torch.tensor([bad + 1, 1])),
                                           torch_attention(self.q, self.k, self.v, **near))
        for name in ("page_table", "kv_lengths"):
            for dtype in (torch.float32, torch.bool, torch.complex64):
                bad = torch.ones((1, 1) if name == "page_table" else 1, dtype=dtype)
                self.refuses(torch_attention, name, q, pages[:1], pages[:1], **{name: bad})
        table = torch.tensor([[1]], dtype=torch.uint8)
        torch.testing.assert_close(torch_attention(q, pages, pages, page_table=table), right, rtol=0, atol=0)

    def test_segments_beyond_int32_meet_nobody(self):
        if self.device == "cpu":
            self.skipTest("the host refuses them")
        ids = torch.tensor([[2**32, 2**32 + 1, 5, 5, 5]] * 2)
        got = torch_attention(self.q, self.q, self.q, segment_ids_q=ids, segment_ids_kv=ids)
        self.assertEqual(got[:, :2].abs().max(), 0)


if __name__ == "__main__":
    unittest.main()

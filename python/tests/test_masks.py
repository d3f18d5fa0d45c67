"""tilewise.transformers' compact masks against the boolean masks of the same functions: nothing is lost."""

import unittest
from importlib.util import find_spec

from devices import WithTorch, on_every_device

if not find_spec("torch") or not find_spec("transformers"):
    raise unittest.SkipTest("PyTorch and transformers are not both installed: tilewise.transformers is not tested")

import torch
from transformers import masking_utils as hf

from tilewise._transformers_masks import ATTRIBUTE
from tilewise.transformers import attention_forward, mask_of

ROWS = 12
CAUSAL, BIDIRECTIONAL = hf.causal_mask_function, hf.bidirectional_mask_function
WINDOW, BOTH_SIDES = hf.sliding_window_causal_mask_function(5), hf.sliding_window_bidirectional_mask_function(3)
NO_SKIP = {"allow_is_causal_skip": False}
EITHER_WAY = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True}


class Module:
    is_causal = True


@on_every_device
class Masks(WithTorch):
    def setUp(self):
        super().setUp()
        left = torch.tensor([[0] * 3 + [1] * 9, [1] * 12]).bool()
        self.paddings = {"none": None, "left": left, "right": left.flip(1), "all ones": torch.ones_like(left)}
        self.ids = torch.tensor([[-1, -1, 0, 0, 0, -1, 1, 1, -1, -1, 2, 2], [0] * 4 + [-1] * 8])

    def check(self, function, kind, rows=ROWS, keys=ROWS, mask=None, q_offset=0, kv_offset=0, **options):
        """The mask's kind; its ranges are the boolean mask's, and so is what attention makes of it."""
        options |= {"batch_size": 2, "q_length": rows, "kv_length": keys, "q_offset": q_offset, "kv_offset": kv_offset,
                    "mask_function": function, "attention_mask": mask, "device": self.device}
        dense, got = hf.sdpa_mask(**options), mask_of(**options)
        if dense is None:
            self.assertIsNone(got)
            return
        self.assertEqual(kind, "dense" if got.dtype == torch.bool else " ".join(sorted(getattr(got, ATTRIBUTE, {"ranges": 0}))))
        if got.dtype == torch.bool:
            self.assertTrue(torch.equal(got, dense))
            return
        self.assertEqual(tuple(got.shape), (2, 1, rows, 2))
        at = torch.arange(keys)
        self.assertTrue(torch.equal((at >= got[..., :1]) & (at < got[..., 1:]), dense))
        q, k, v = torch.randn(2, 4, rows, 8), torch.randn(2, 2, keys, 8), torch.randn(2, 2, keys, 8)
        exact, _ = attention_forward(Module(), q, k, v, dense)
        for form in (got, got.clone()):  # whose options are lost
            torch.testing.assert_close(attention_forward(Module(), q, k, v, form)[0], exact, atol=1e-6, rtol=1e-5)

    def test_bands_and_padding(self):
        band = "causal q_offset window_size"
        for name, mask in self.paddings.items():
            padding = "" if name in ("none", "all ones") else "kv_lengths kv_starts "
            with self.subTest(name):
                self.check(CAUSAL, "causal kv_lengths kv_starts q_offset window_size", mask=mask)
                self.check(WINDOW, " ".join(sorted(f"{band} {padding}".split())), mask=mask, local_size=5)
                self.check(BIDIRECTIONAL, "causal kv_lengths kv_starts window_size", rows=7, mask=mask, **EITHER_WAY)
                self.check(BOTH_SIDES, " ".join(sorted(f"{band} {padding}".split())), mask=mask, local_size=3, **EITHER_WAY)
                self.check(hf.chunked_causal_mask_function(4, torch.tensor([3, 0])), "ranges", mask=mask, local_size=4)

    def test_caches(self):
        for name, mask in self.paddings.items():
            padding = "" if name in ("none", "all ones") else "kv_lengths kv_starts "
            with self.subTest(name):
                expected = " ".join(sorted(f"causal q_offset window_size {padding}".split()))
                self.check(CAUSAL, expected, rows=1, q_offset=11, mask=mask)
                self.check(CAUSAL, expected, rows=4, q_offset=8, mask=mask)
                padding = "" if mask is None else "kv_lengths kv_starts "  # a static cache's rest is padding
                self.check(CAUSAL, " ".join(sorted(f"causal q_offset window_size {padding}".split())), rows=4, keys=16,
                           q_offset=torch.tensor(8), mask=mask)
        self.check(WINDOW, "causal q_offset window_size", rows=1, keys=5, q_offset=11, kv_offset=7, mask=self.paddings["left"],
                   local_size=5)

    def test_packed(self):
        positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8]])
        ids = hf.find_packed_sequence_indices(positions)
        same = hf.packed_sequence_mask_function(ids)
        kind = "causal cu_seqlens_kv cu_seqlens_q seqlen_kv seqlen_q window_size"
        self.check(hf.and_masks(CAUSAL, same), kind, **NO_SKIP)
        self.check(hf.and_masks(WINDOW, same), kind, local_size=5, **NO_SKIP)
        if hasattr(hf, "remap_positions_for_packed_sequence"):
            def moved(function):
                return hf.remap_positions_for_packed_sequence(function, positions)

            self.check(hf.and_masks(moved(WINDOW), same), kind, local_size=5, **NO_SKIP)
            chunks = hf.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int64))
            self.check(hf.and_masks(moved(chunks), same), "ranges", local_size=4, **NO_SKIP)
            self.check(hf.and_masks(hf.or_masks(moved(CAUSAL), hf.blockwise_overlay(self.ids)), same), "ranges", **NO_SKIP)
            self.check(moved(CAUSAL), "dense", **NO_SKIP)  # positions without the sequences

    def test_prefixes_and_images(self):
        blocks = hf.or_masks(CAUSAL, hf.blockwise_overlay(self.ids))
        for name, mask in self.paddings.items():
            with self.subTest(name):
                self.check(blocks, "ranges", mask=mask, **NO_SKIP)
        self.check(hf.and_masks(blocks, hf.sliding_window_overlay(4)), "ranges", use_vmap=True, **NO_SKIP)
        self.check(hf.or_masks(CAUSAL, lambda b, h, q, k: k < 5), "ranges", use_vmap=True, **NO_SKIP)

    def test_what_stays_dense(self):
        twice = torch.tensor([[0, 0, -1, -1, -1, -1, 0, 0, -1, -1, -1, -1]] * 2)
        self.check(hf.or_masks(CAUSAL, hf.blockwise_overlay(twice)), "dense", **NO_SKIP)
        self.check(hf.and_masks(CAUSAL, lambda b, h, q, k: k % 2 == 0), "dense", use_vmap=True, **NO_SKIP)
        self.check(CAUSAL, "dense", mask=torch.tensor([[1, 1, 0] * 4, [1] * 12]).bool())  # padding with a gap
        self.check(CAUSAL, "dense", **NO_SKIP)  # the model asks for it

    def test_an_int32_mask_of_another_shape_is_refused(self):
        q = torch.zeros(1, 1, 3, 8)
        with self.assertRaisesRegex(ValueError, r"attention_mask is int32 \[1, 1, 3, 3\]; accepted: \[1, 1, 3, 2\]"):
            attention_forward(Module(), q, q, q, torch.zeros(1, 1, 3, 3, dtype=torch.int32))


if __name__ == "__main__":
    unittest.main()

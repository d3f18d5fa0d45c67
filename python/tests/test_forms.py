"""The same keys as a dense cache, packed, in pages, in slots, appended and in parts that are merged: one answer, by the tolerance
rule of docs/numerics.md."""

import unittest
from importlib.util import find_spec

import numpy as np
from arrays import BFLOAT16, Source, integers
from devices import OnDevice, floats, on_every_device

import tilewise
from tilewise._verify import shares_of

BATCH, KEYS, PAGE, HEADS, HEADS_KV, DIM = 2, 320, 16, 8, 2, 64
LENGTHS = integers(KEYS, 213)


@on_every_device
class Forms(OnDevice):
    def setUp(self):
        self.source = Source(21)

    def arrays(self, dtype, rows):
        source = self.source
        return (source.normal(BATCH, rows, HEADS, DIM, dtype=dtype), *(source.normal(BATCH, KEYS, HEADS_KV, DIM, dtype=dtype)
                                                                       for _ in range(2)))

    def in_pages(self, k, v):
        """k and v in pages of any order among pages of garbage, and the table."""
        pages = BATCH * KEYS // PAGE
        table = self.source.rng.permutation(pages + 3)[:pages].reshape(BATCH, -1).astype(np.int32)
        result = []
        for x in (k, v):
            paged = np.full((pages + 3, PAGE, HEADS_KV, DIM), 7, x.dtype)
            paged[table.reshape(-1)] = x.reshape(pages, PAGE, HEADS_KV, DIM)
            result.append(paged)
        return *result, table

    def attend(self, *arrays, **options):
        return tilewise.attention(*map(self.put, arrays), return_lse=True, **{name: self.put(x) for name, x in options.items()})

    def holds(self, form, got, q, k, v):
        """`got`, an o and lse, is the attention of q over the keys below LENGTHS."""
        o, lse = (floats(x) for x in got)
        results = {"o": o.astype(q.dtype), "lse": lse}
        shares = shares_of(results, q, k, v, kv_lengths=LENGTHS, causal=True)
        self.assertLessEqual(max(shares.values()), 1, (form, q.dtype, shares))

    def over(self):
        for dtype in (np.float32, *([BFLOAT16] if BFLOAT16 else [])):
            for rows in (1, 5):
                yield dtype, self.arrays(dtype, rows)

    def test_dense_packed_pages_and_slots(self):
        for _, (q, k, v) in self.over():
            self.holds("dense", self.attend(q, k, v, kv_lengths=LENGTHS, causal=True), q, k, v)
            *paged, table = self.in_pages(k, v)
            self.holds("pages", self.attend(q, *paged, kv_lengths=LENGTHS, page_table=table, causal=True), q, k, v)
            slots = [np.concatenate([x[1:], x[:1] * 0 + 7, x[:1]]) for x in (k, v)]
            self.holds("slots", self.attend(q, *slots, kv_lengths=LENGTHS, cache_batch_idx=integers(2, 0), causal=True), q, k, v)
            rows = [np.concatenate([x[b, :n] for b, n in enumerate(LENGTHS)]) for x in (k, v)]
            cu_q, cu_kv = integers(0, q.shape[1], 2 * q.shape[1]), integers(0, *LENGTHS.cumsum())
            o, lse = self.attend(q.reshape(-1, HEADS, DIM), *rows, cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, seqlen_q=q.shape[1],
                                 seqlen_kv=KEYS, causal=True)
            lse = floats(lse).reshape(HEADS, BATCH, -1).swapaxes(0, 1)
            self.holds("packed", (floats(o).reshape(q.shape), lse), q, k, v)

    def test_appended_then_attended(self):
        for _, (q, k, v) in self.over():
            paged = [self.put(np.full_like(x, 7)) for x in self.in_pages(k, v)[:2]]
            table = self.put(self.in_pages(k, v)[2])
            filled = integers(0, 0)
            for step in (200, 13, 107):
                new = [np.stack([np.roll(x[b], -n, 0)[:step] for b, n in enumerate(filled)]) for x in (k, v)]
                count = np.minimum(step, LENGTHS - filled).astype(np.int32)
                tilewise.cache_append(*paged, *map(self.put, new), self.put(filled), lengths=self.put(count), page_table=table)
                filled = filled + count
            got = tilewise.attention(self.put(q), *paged, page_table=table, kv_lengths=self.put(LENGTHS), causal=True, return_lse=True)
            self.holds("appended", got, q, k, v)

    def test_split_and_merged(self):
        for _, (q, k, v) in self.over():
            for splits in (1, 2, 7, 64):
                whole = None
                for part in range(splits):
                    first, last = LENGTHS * part // splits, LENGTHS * (part + 1) // splits
                    o, lse = self.attend(q, k, v, kv_starts=first.astype(np.int32), kv_lengths=last.astype(np.int32), causal=True,
                                         q_offset=LENGTHS - q.shape[1])
                    if whole is None:
                        whole = self.put(floats(o).copy()), self.put(floats(lse).copy())
                    else:
                        tilewise.merge(*whole, o, lse)
                self.holds(f"split {splits}", whole, q, k, v)


@unittest.skipUnless(find_spec("torch"), "PyTorch is not installed")
@on_every_device
class AppendedInTheCall(Forms):
    """The last rows appended by the call that attends."""

    test_dense_packed_pages_and_slots = test_split_and_merged = test_appended_then_attended = None

    def test_one_call(self):
        import torch

        from tilewise.flash_attn import flash_attn_with_kvcache

        for _, (q, k, v) in self.over():
            rows = q.shape[1]
            host = [np.stack([x[b, n - rows:n] for b, n in enumerate(LENGTHS)]) for x in (k, v)]
            for form in ("plain", "pages"):
                *paged, table = self.in_pages(k, v) if form == "pages" else (k, v, None)
                cache = [put_tensor(x, self.device) for x in paged]
                where = {} if table is None else {"block_table": put_tensor(table, self.device)}
                filled = put_tensor(LENGTHS - rows, self.device)
                got = flash_attn_with_kvcache(put_tensor(q, self.device), *cache, *(put_tensor(x, self.device) for x in host),
                                              cache_seqlens=filled, causal=True, return_softmax_lse=True, **where)
                self.holds(form, got, q, k, v)
                for x, y in zip(cache, paged):
                    self.assertTrue(torch.equal(x, put_tensor(y, self.device)))


def put_tensor(array, device):
    import torch

    array = np.array(array)
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


if __name__ == "__main__":
    unittest.main()

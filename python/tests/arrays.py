"""Random arrays that the tests share."""

import threading

import numpy as np

try:
    import ml_dtypes

    BFLOAT16, FLOAT8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
except ImportError:
    BFLOAT16 = FLOAT8 = None

DTYPES = [np.float32, np.float16] + ([BFLOAT16] if BFLOAT16 else [])


class Source:
    """A seeded generator: normal(2, 3) is float32 [2, 3]."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape, dtype=np.float32):
        return self.rng.standard_normal(shape).astype(dtype)

    def qkv(self, batch=2, seqlen_q=37, seqlen_kv=45, heads_q=4, heads_kv=2, dim=16, dim_v=24, dtype=np.float32):
        return (self.normal(batch, seqlen_q, heads_q, dim, dtype=dtype),
                self.normal(batch, seqlen_kv, heads_kv, dim, dtype=dtype),
                self.normal(batch, seqlen_kv, heads_kv, dim_v, dtype=dtype))


def in_threads(count, call):
    """[call(0), call(1), ...], each in a thread of its own, at once; one that raised left None."""
    results = [None] * count

    def work(n):
        results[n] = call(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def integers(*values):
    return np.array(values, np.int32)

"""cache_append(): new keys into a cache that attention() reads."""

from typing import Any

from . import _core
from ._arguments import Setting, flag, integer, layout_of, number, read, refused
from ._attention import writable
from ._frameworks import framework_of


def cache_append(k: Any, v: Any, k_new: Any, v_new: Any, starts: Any, *, lengths: Any = None, rotary_cos: Any = None,
                 rotary_sin: Any = None, rotary_interleaved: bool = False, page_table: Any = None,
                 cache_batch_idx: Any = None, layout: str = "bshd", k_scales: Any = None, v_scales: Any = None,
                 scale_rows: int = 0, write_scales: bool = False) -> None:
    """Writes new rows of k and v into a cache, in place: row i of sequence b becomes key starts[b] + i.

    k, v           the cache: [B, Skv, Hkv, D] and [B, Skv, Hkv, Dv]; with page_table [num_pages, page_size, Hkv, ...], with
                   cache_batch_idx [cache_slots, Skv, Hkv, ...]. layout="bhsd": dimensions 1 and 2 exchanged, likewise all rows
    k_new, v_new   [B, N, Hkv, D] and [B, N, Hkv, Dv]; fp32, fp16 or bf16, which may differ from the cache's
    starts         int32 [B]: keys that each sequence has already
    lengths        int32 [B]: how many of the N rows are new keys; None = all
    rotary_cos, rotary_sin  float [positions, R / 2]: the first R elements of k are turned by their position's angles
    rotary_interleaved      pairs are (2i, 2i + 1) instead of (i, i + R / 2)
    page_table, cache_batch_idx  attention()'s
    k_scales, v_scales, scale_rows  attention()'s, of a cache in int8 or float8_e4m3fn: rows are divided by them and rounded.
                   write_scales, with scale_rows=1: a new row's scales are made from it and written

    A place that is not there, two new rows with one place and a read-only cache are refused, and nothing is written. On a CUDA
    device, whose indices are not the host's to read, rows that would end outside the cache are left out.

    >>> import numpy as np
    >>> k, v = np.zeros((2, 3, 2, 1, 4), np.float32)              # 3 pages of 2 rows
    >>> new, table = np.ones((1, 3, 1, 4), np.float32), np.array([[2, 0]], np.int32)
    >>> cache_append(k, v, new, new, np.array([1], np.int32), page_table=table)
    >>> k[:, :, 0, 0].tolist()
    [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
    """
    scale_rows = number("scale_rows", scale_rows, integer, "rows that share a scale, or 0 (all of a page, slot or sequence)")
    write_scales, rotary_interleaved = flag("write_scales", write_scales), flag("rotary_interleaved", rotary_interleaved)
    bhsd = layout_of(layout)
    arrays = {"k": writable("k", k), "v": writable("v", v)}
    for name, array in (("k_new", k_new), ("v_new", v_new), ("starts", starts), ("lengths", lengths),
                        ("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin), ("page_table", page_table),
                        ("cache_batch_idx", cache_batch_idx)):
        if array is not None or name in ("k_new", "v_new", "starts"):
            arrays[name] = read(name, array)
    for name, array in (("k_scales", k_scales), ("v_scales", v_scales)):
        if array is not None:
            arrays[name] = writable(name, array) if write_scales else read(name, array)
    framework = framework_of("k", k)
    cuda = framework.is_cuda(k)
    setting = Setting(bhsd, cuda, framework.stream(k) if cuda else 0, framework.threads())
    try:
        _core.cache_append(arrays, rotary_interleaved, scale_rows, write_scales, *setting)
    except (TypeError, ValueError) as error:
        raise refused(error, arrays) from None

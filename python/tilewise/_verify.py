"""verify(): a call held against fp64 by the tolerance rule of docs/numerics.md. NumPy is imported when it is asked for."""

from typing import Any, NamedTuple

from ._arguments import check_options
from ._attention import attention, attention_backward
from ._frameworks import framework_of


class Verification(NamedTuple):
    """The worst element of each output, as a share of the error that the rule allows: above 1 is wrong."""

    shares: dict[str, float]

    @property
    def passed(self) -> bool:
        return all(share <= 1 for share in self.shares.values())


def verify(q: Any, k: Any, v: Any, *, dout: Any = None, dlse: Any = None, **options: Any) -> Verification:
    """Runs attention(q, k, v, **options) and holds o and lse against a dense fp64 computation in NumPy.

    dout           also run attention_backward() with it, and dlse, and hold every gradient against fp64
    O(Sq * Skv) memory and slow: for lengths up to some thousands.

    >>> import numpy as np
    >>> q = np.random.default_rng(1).standard_normal((1, 33, 2, 16), np.float32)
    >>> verify(q, q, q, causal=True).passed
    True
    """
    check_options("verify", options)
    o, lse = attention(q, k, v, return_lse=True, **options)
    results = {"o": o, "lse": lse}
    if dout is not None:
        gradients = attention_backward(dout, q, k, v, o, lse, dlse=dlse, **options)
        results.update((name, array) for name, array in gradients._asdict().items() if array is not None)
    return Verification(shares_of(results, q, k, v, dout=dout, dlse=dlse, **options))


def to_numpy(array: Any) -> Any:
    """Floats as fp64, everything else as it is."""
    import numpy as np

    name = framework_of("array", array).name
    if name == "torch":
        array = array.detach().cpu()
        array = array.double().numpy() if array.is_floating_point() else array.numpy()
    elif name == "cupy":
        array = array.get()
    array = np.asarray(array)
    with np.errstate(invalid="ignore"):  # rows that belong to no sequence may hold anything
        return array if array.dtype.kind in "iub" else array.astype(np.float64)


def dtype_name(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def shares_of(results: dict[str, Any], q: Any, k: Any, v: Any, *, dout: Any = None, dlse: Any = None,
              layout: str = "bshd", **options: Any) -> dict[str, float]:
    """For results by name (o and lse, and gradients): the worst share of the allowance that each uses."""
    import numpy as np

    from ._reference import Call

    def rows(array):
        array = to_numpy(array)
        return array.swapaxes(1, 2) if layout == "bhsd" and array.ndim == 4 else array

    plain = {name: to_numpy(value) if hasattr(value, "shape") else value for name, value in options.items()}
    if getattr(plain.get("mask"), "dtype", None) == np.uint8:
        plain["mask"] = np.unpackbits(plain["mask"], axis=-1, bitorder="little")
    if plain.get("dropout_state") is not None:
        plain["dropout_seed"], plain["dropout_offset"] = (int(x) & (2**64 - 1) for x in plain.pop("dropout_state"))
    table, slots, longest = plain.pop("page_table", None), plain.pop("cache_batch_idx", None), plain.get("seqlen_kv") or None

    def keys(array):
        """The keys of each sequence in a row. An entry that names no page is one that nothing is read from."""
        array = rows(array)
        if table is not None:
            return array[table.clip(0, len(array) - 1)].reshape(len(table), -1, *array.shape[2:])[:, :longest]
        return array if slots is None else array[slots]

    call = Call(rows(q), keys(k), keys(v), dtype_name(q), plain)
    got = {name: rows(x) if name in ("o", "dq", "dk", "dv") else to_numpy(x) for name, x in results.items()}
    dtypes = {name: dtype_name(x) for name, x in results.items()}
    rule = _Rule(call, got, dtypes)
    given = None if dout is None else (rows(dout), None if dlse is None else to_numpy(dlse))
    with np.errstate(all="ignore"):
        for b in range(call.sequences()):
            for h in range(call.q.shape[-2]):
                rule.forward(b, h)
                if given:
                    rule.backward(b, h, *given)
        rule.finish()
    return rule.shares


class _Rule:
    """|x - ref| <= 2 max|naive - ref| + u |ref| + 8 * 2^-24 A + 2^-112, for each (batch, head)."""

    def __init__(self, call: Any, got: dict, dtypes: dict):
        self.call, self.got, self.dtypes = call, got, dtypes
        self.shares = dict.fromkeys(got, 0.0)
        self.sums: dict = {}  # of gradients that several heads add to: name, group -> [ref, naive, A]

    def hold(self, name: str, got: Any, ref: Any, naive: Any, terms: Any) -> None:
        import numpy as np

        from ._reference import SMALLEST, UNIT, rounded

        if np.size(got) == 0:
            return
        dtype = self.dtypes[name]
        naive = rounded(np.asarray(naive), dtype).astype(np.float64)
        stored = rounded(np.asarray(ref, np.float64), dtype)
        finite = np.isfinite(stored)
        both = finite & np.isfinite(naive)
        error = np.abs(naive - ref)[both].max(initial=0.0)
        allowed = (2 * error + UNIT[dtype] * np.maximum(np.abs(ref), SMALLEST[dtype]) + 8 * 2.0**-24 * terms + 2.0**-112)
        share = np.where(finite, np.abs(got - ref) / allowed, np.where(_same_kind(got, stored), 0, np.inf))
        worst = np.where(np.isnan(share), np.inf, share).max()
        self.shares[name] = max(self.shares[name], float(worst))

    def row_of(self, array: Any, b: int, h: int) -> Any:
        return self.call.rows_of(array, b, "cu_seqlens_q")[:, h]

    def stats_of(self, array: Any, b: int, h: int) -> Any:
        cu = self.call.get("cu_seqlens_q")
        return array[b, h] if cu is None else array[h, self.call.span("cu_seqlens_q", array.shape[1], b)]

    def forward(self, b: int, h: int) -> None:
        import numpy as np

        head = self.call.head(b, h)
        o, lse, p = head.forward(np.float64)
        naive_o, naive_lse, _ = head.forward(np.float32)
        terms_o, terms_lse = head.forward_terms(o, np.where(np.isfinite(lse), lse, 0), p)
        self.hold("o", self.row_of(self.got["o"], b, h), o, naive_o, terms_o)
        if "lse" in self.got:
            self.hold("lse", self.stats_of(self.got["lse"], b, h), lse, naive_lse, terms_lse)

    def backward(self, b: int, h: int, dout: Any, dlse: Any) -> None:
        import numpy as np

        head = self.call.head(b, h)
        o, lse = self.row_of(self.got["o"], b, h), self.stats_of(self.got["lse"], b, h)
        given = o, lse, self.row_of(dout, b, h), np.zeros(len(o)) if dlse is None else self.stats_of(dlse, b, h)
        runs = head.backward(np.float64, *given), head.backward(np.float32, *given), head.backward_terms(*given)
        key_head = h // (self.call.q.shape[-2] // self.call.k.shape[-2])
        self.hold_if("dq", lambda x: self.row_of(x, b, h), [r["dq"] for r in runs])
        for name in ("dk", "dv"):
            self.add(name, (b, key_head), [r[name] for r in runs])
        self.add("dsinks", (h,), [np.asarray(r["dsinks"]) for r in runs])
        if "dbias" in self.got:
            shape = self.got["dbias"].shape
            shape = (1,) * (4 - len(shape)) + shape
            group = b if shape[0] > 1 else 0, h if shape[1] > 1 else 0
            over = tuple(axis for axis in (0, 1) if shape[2 + axis] == 1)
            self.add("dbias", group, [r["dbias"].sum(axis=over, keepdims=True) for r in runs])

    def hold_if(self, name: str, take: Any, runs: list) -> None:
        if name in self.got:
            self.hold(name, take(self.got[name]), *runs)

    def add(self, name: str, group: tuple, runs: list) -> None:
        if name in self.got:
            old = self.sums.get((name, group))
            self.sums[name, group] = runs if old is None else [a + b for a, b in zip(old, runs)]

    def finish(self) -> None:
        for (name, group), runs in self.sums.items():
            got = self.got[name]
            if name == "dsinks":
                got = got[group[0]]
            elif name == "dbias":
                got = got.reshape((1,) * (4 - got.ndim) + got.shape)[group]
            else:
                got = self.call.rows_of(got, group[0], "cu_seqlens_kv")[:, group[1]]
            self.hold(name, got, *runs)


def _same_kind(got: Any, stored: Any) -> Any:
    import numpy as np

    return np.where(np.isnan(stored), np.isnan(got), got == stored)

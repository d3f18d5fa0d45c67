"""From what a user gives to what the C border takes: one Problem, arrays by name, and the caller's setting."""

from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

from . import _core
from ._frameworks import Framework, describe, framework_of


class Setting(NamedTuple):
    """How a call is made: the arguments bhsd, cuda, stream, threads of tilewise._core."""

    bhsd: bool
    cuda: bool
    stream: int
    threads: int


class Arguments(NamedTuple):
    problem: Any
    arrays: dict
    framework: Framework
    setting: Setting
    scalars: tuple  # q_offset, dropout_seed, dropout_offset


def integer(value: Any) -> int:
    """Any whole number that a problem can hold."""
    value = index(value)
    if not -(2**63) <= value < 2**63:
        raise OverflowError
    return value


def shape_of(value: Any) -> Any:
    """() where it has none."""
    try:
        return getattr(value, "shape", ())
    except RuntimeError:  # of a nested tensor
        return None


def number(name: str, value: Any, kind: Any, accepted: str) -> Any:
    """`value` as `kind` makes a number of it; bools are no numbers here."""
    try:
        if isinstance(value, (bool, str)) or shape_of(value) != ():
            raise TypeError
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {describe(value)}; accepted: {accepted}") from None


def flag(name: str, value: Any) -> bool:
    """True, False, 1, 0, None or one bool of an array: "false" is no False."""
    if value is None or isinstance(value, int) and value in (0, 1):
        return bool(value)
    if not hasattr(type(value), "shape") or shape_of(value) != () or not str(getattr(value, "dtype", "")).endswith("bool"):
        raise TypeError(f"{name} is {describe(value)}; accepted: True or False")
    return bool(value)


def layout_of(value: Any) -> bool:
    """Whether it is "bhsd"."""
    if not isinstance(value, str) or value not in ("bshd", "bhsd"):
        raise ValueError(f"layout is {describe(value) if shape_of(value) != () else repr(value)}; accepted: \"bshd\" [batch, seqlen, heads, "
                         "head_dim], \"bhsd\" [batch, heads, seqlen, head_dim]; with cu_seqlens it is [total, heads, head_dim] in both")
    return value == "bhsd"


def scale(value: Any) -> float:
    """softmax_scale where it is given; NaN is the library's word for "not given"."""
    given = number("softmax_scale", value, float, "a finite number, or None for 1/sqrt(head_dim)")
    if given != given:
        raise ValueError("softmax_scale is nan; accepted: a finite number, or None for 1/sqrt(head_dim)")
    return given


def size(name: str, value: Any) -> int:
    return number(name, value, integer, f"the longest sequence, or 0 to read {name.replace('seqlen', 'cu_seqlens')}")


def window(window_size: Any) -> tuple:
    if window_size is None:
        return -1, -1
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise TypeError(f"window_size is {window_size!r}; accepted: None or (left, right), two integers, -1 = unbounded "
                        "(a width W that counts the query itself, as sliding_window=W, is (W - 1, 0))") from None
    return tuple(-1 if side is None else number("window_size", side, integer, "(left, right), two integers, -1 = unbounded")
                 for side in (left, right))


def position(causal: Any, q_offset: Any, is_array: bool) -> tuple:
    """(causal, position, offset by value)."""
    if shape_of(causal) != () or causal not in (False, True, "bottom-right", "top-left"):
        raise ValueError(f'causal is {causal!r}; accepted: False, True or "bottom-right" (the last query sees the last '
                         'key), "top-left" (query 0 sees key 0)')
    given = is_array or q_offset is not None
    if causal == "top-left":
        if given:
            raise ValueError('q_offset comes with causal="top-left", which is q_offset=0; accepted: one of the two')
        return 1, _core.TOP_LEFT, 0
    if not given:
        return int(bool(causal)), _core.BOTTOM_RIGHT, 0
    offset = 0 if is_array else number("q_offset", q_offset, integer, "an integer, or int32 [batch]")
    return int(bool(causal)), _core.GIVEN, offset


@lru_cache(maxsize=256)
def make_problem(direction, layout, causal, q_offset, offset_is_array, window_size, softmax_scale, softcap, dropout_p,
                 has_seed, seqlen_q, seqlen_kv, deterministic, batch_invariant, accumulate, scale_rows):
    """(Problem, q_offset by value) of the arguments that are no arrays. Looking at them costs more than a small call."""
    layout_of(layout)
    problem = _core.Problem()
    problem.direction = direction
    problem.causal, problem.position, offset = position(causal, q_offset, offset_is_array)
    problem.window_left, problem.window_right = window(window_size)
    if softmax_scale is not None:
        problem.softmax_scale = scale(softmax_scale)
    problem.softcap = number("softcap", softcap, float, "0 (none) or a positive number")
    problem.dropout_p = number("dropout_p", dropout_p, float, "a number in [0, 1)")
    if problem.dropout_p and not has_seed:
        raise ValueError(f"dropout_p is {dropout_p} without a seed; accepted: dropout_seed (an integer; the same seed gives "
                         "the same mask) or dropout_state (uint64 [2]: seed, offset)")
    problem.seqlen_q = size("seqlen_q", seqlen_q)
    problem.seqlen_kv = size("seqlen_kv", seqlen_kv)
    problem.scale_rows = number("scale_rows", scale_rows, integer, "rows that share a scale, or 0 (all of a page, slot or sequence)")
    problem.deterministic = int(flag("deterministic", deterministic))
    problem.batch_invariant = int(flag("batch_invariant", batch_invariant))
    problem.accumulate = int(flag("accumulate", accumulate))
    return problem, offset


def plain_problem(layout, causal, window_size, softmax_scale, softcap, dropout_p, seqlen_q, seqlen_kv, batch_invariant, scale_rows):
    """The Problem of a forward without optional arrays."""
    scalars = (_core.FORWARD, layout, causal, None, False, window_size, softmax_scale, softcap, dropout_p, False, seqlen_q, seqlen_kv,
               False, batch_invariant, False, scale_rows)
    try:
        return make_problem(*scalars)[0]
    except TypeError:  # not hashable, as a list, or wrong: then this says how
        return make_problem.__wrapped__(*scalars)[0]


OPTIONAL = ("bias", "mask", "q_lengths", "kv_lengths", "kv_starts", "q_offset", "page_table", "cache_batch_idx",
            "cu_seqlens_q", "cu_seqlens_kv", "segment_ids_q", "segment_ids_kv", "kv_ranges", "alibi_slopes", "sinks",
            "dropout_state", "k_scales", "v_scales")


def complete(q, k, v, layout="bshd", causal=False, window_size=None, softmax_scale=None, softcap=0.0, bias=None, mask=None,
             q_lengths=None, kv_lengths=None, kv_starts=None, q_offset=None, page_table=None, cache_batch_idx=None,
             cu_seqlens_q=None, cu_seqlens_kv=None, seqlen_q=0, seqlen_kv=0, segment_ids_q=None, segment_ids_kv=None,
             kv_ranges=None, alibi_slopes=None, sinks=None, dropout_p=0.0, dropout_seed=None, dropout_offset=0,
             dropout_state=None, batch_invariant=False, deterministic=False, direction=_core.FORWARD,
             accumulate=False, k_scales=None, v_scales=None, scale_rows=0) -> Arguments:
    """In the order of attention()'s arguments, which passes them by place: names cost a microsecond."""
    framework = framework_of("q", q)
    is_array = shape_of(q_offset) != ()
    scalars = (direction, layout, causal, None if is_array else q_offset, is_array, window_size, softmax_scale, softcap,
               dropout_p, dropout_seed is not None or dropout_state is not None, seqlen_q, seqlen_kv, deterministic,
               batch_invariant, accumulate, scale_rows)
    try:
        problem, offset = make_problem(*scalars)
    except TypeError:  # not hashable, as a list, or wrong: then this says how
        problem, offset = make_problem.__wrapped__(*scalars)
    if type(k) is type(v) is type(q):
        arrays = {"q": framework.read(q), "k": framework.read(k), "v": framework.read(v)}
    else:
        arrays = {"q": framework.read(q), "k": read("k", k), "v": read("v", v)}
    # Plain calls look at none of these: walking over them costs microseconds.
    if not (bias is mask is q_lengths is kv_lengths is kv_starts is q_offset is page_table is cache_batch_idx is cu_seqlens_q
            is cu_seqlens_kv is segment_ids_q is segment_ids_kv is kv_ranges is alibi_slopes is sinks is dropout_state
            is k_scales is v_scales is None):
        for name, array in zip(OPTIONAL, (bias, mask, q_lengths, kv_lengths, kv_starts, q_offset if is_array else None,
                                          page_table, cache_batch_idx, cu_seqlens_q, cu_seqlens_kv, segment_ids_q,
                                          segment_ids_kv, kv_ranges, alibi_slopes, sinks, dropout_state, k_scales, v_scales)):
            if array is not None:
                arrays[name] = read(name, array)
    cuda = framework.is_cuda(q)
    setting = (layout == "bhsd", True, framework.stream(q), 0) if cuda else (layout == "bhsd", False, 0, framework.threads())
    return Arguments(problem, arrays, framework, Setting._make(setting),
                     (offset, seed("dropout_seed", dropout_seed), seed("dropout_offset", dropout_offset)))


_OPTIONS = frozenset(complete.__code__.co_varnames[3:complete.__code__.co_argcount]) - {"direction", "accumulate"}


def check_options(function: str, options: dict) -> None:
    """Python's own refusal would name complete()."""
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; accepted: those of attention()")


def with_bits(arrays: dict) -> dict:
    """A mask of bytes of 8 elements each goes by another name: neither DLPack nor a buffer has a type of bits."""
    mask = arrays.get("mask")
    if mask is None or str(mask.dtype).removeprefix("torch.") != "uint8":
        return arrays
    return {**arrays, "mask": None, "mask_bits": framework_of("mask", mask).as_bool(mask)}


def read(name: str, array: Any) -> Any:
    return framework_of(name, array).read(array)


def seed(name: str, value: Any) -> int:
    """Any integer; what exceeds 64 bits wraps."""
    return 0 if value is None else number(name, value, index, "an integer") & (2**64 - 1)


def row_shape(name: str, array: Any, packed: bool, labels: str) -> tuple:
    """The shape of q, k or v, which must have 4 dimensions, or 3 where packed."""
    shape = tuple(array.shape)
    if len(shape) != (3 if packed else 4):
        what = "3 dimensions = [total, heads, head_dim], as cu_seqlens is given" if packed else f"4 dimensions = {labels}"
        raise ValueError(f"{name} is {describe(array)}; accepted: {what}")
    return shape


def packed_keys(arrays: dict) -> bool:
    """Whether k and v are [total_kv, ...]; a cache is never."""
    if "cu_seqlens_kv" not in arrays:
        return False
    for cache in ("page_table", "cache_batch_idx"):
        if cache in arrays:
            raise ValueError(f"cu_seqlens_kv comes with {cache}; accepted: kv_lengths, the keys that each sequence has")
    return True


def value_labels(arguments: Arguments) -> str:
    blocks, rows = "batch", "seqlen_kv"
    if "page_table" in arguments.arrays:
        blocks, rows = "num_pages", "page_size"
    elif "cache_batch_idx" in arguments.arrays:
        blocks = "cache_slots"
    inner = f"heads_kv, {rows}" if arguments.setting.bhsd else f"{rows}, heads_kv"
    return f"[{blocks}, {inner}, head_dim_v]"


def output_shapes(arguments: Arguments, values: str = "v") -> tuple:
    """Shapes of o, in q's layout, and lse; `values` is what the caller calls v."""
    q, v = arguments.arrays["q"], arguments.arrays["v"]
    bhsd = arguments.setting.bhsd
    packed = "cu_seqlens_q" in arguments.arrays
    shape = row_shape("q", q, packed, "[batch, heads_q, seqlen_q, head_dim]" if bhsd else "[batch, seqlen_q, heads_q, head_dim]")
    columns = row_shape(values, v, packed_keys(arguments.arrays), value_labels(arguments))
    if packed:
        lse = (shape[1], shape[0])
    else:
        lse = shape[:3] if bhsd else (shape[0], shape[2], shape[1])
    return (*shape[:-1], columns[-1]), lse


def refused(error: Exception, arrays: dict, names: dict | None = None) -> Exception:
    """The same refusal, with what the array that it names is; `names` are this call's own for the library's."""
    text = str(error)
    word = text.split(" ", 1)[0].split("[", 1)[0]
    of = word.removesuffix("_shape").removeprefix("dtype_")
    named = [of] if of in arrays else ["q", "k", "v"]
    given = ", ".join(f"{(names or {}).get(name, name)}: {describe(arrays[name])}" for name in named if name in arrays)
    if word in (names or {}):
        text = names[word] + text[len(word):]
    return type(error)(f"{text} (given {given})")


def called_otherwise(error: Exception, names: dict) -> Exception:
    """The same refusal with the caller's name of what it begins with."""
    text = str(error)
    word = text.split(" ", 1)[0].split("[", 1)[0]
    if word not in names:
        return error
    return type(error)(names[word] + text[len(word):].replace(f"(given {word}:", f"(given {names[word]}:"))

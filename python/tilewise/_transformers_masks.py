"""Masks of transformers as what they are made of, in place of a boolean [batch, 1, queries, keys].

A mask function of transformers.masking_utils is a tree of closures; its leaves are recognised by their code. Where every
row sees one interval of keys, the mask is int32 [batch, 1, queries, 2], the interval of each row: it says everything, and
survives what models and hooks do with a mask (a move to another device, a slice of rows or of the batch). Where lengths,
a band or packed sequences say the same, which kernels take on their fastest ways, they are an attribute of it, which such a
tensor loses without harm. A function that is not known is evaluated, and its intervals are read off; what has rows of
several intervals stays a boolean mask.
"""

from typing import Any, NamedTuple

import torch
from transformers import masking_utils

ATTRIBUTE = "_tilewise_options"


def _known():
    """Which function a code object is."""
    found = {}
    for name in ("causal_mask_function", "bidirectional_mask_function"):
        found[getattr(masking_utils, name).__code__] = name
    for name, arguments in (("and_masks", 0), ("or_masks", 0), ("sliding_window_overlay", 1), ("chunked_overlay", 2),
                            ("sliding_window_bidirectional_overlay", 1), ("blockwise_overlay", 1),
                            ("packed_sequence_mask_function", 1), ("remap_positions_for_packed_sequence", 2)):
        factory = getattr(masking_utils, name, None)  # some are not in every version
        if factory is not None:
            found[factory(*[None] * arguments).__code__] = name
    return found


KNOWN = _known()


class NotKnown(Exception):
    """A mask function that is not one of transformers'."""


def taken_apart(function) -> tuple[str, dict]:
    """What a mask function is, and the values it holds."""
    code = getattr(function, "__code__", None)
    if code not in KNOWN:
        raise NotKnown
    return KNOWN[code], {name: cell.cell_contents for name, cell in zip(code.co_freevars, function.__closure__ or ())}


def leaves(function):
    """(name, values) of all that are joined by "and"."""
    name, held = taken_apart(function)
    if name == "and_masks":
        return [leaf for part in held["mask_functions"] for leaf in leaves(part)]
    return [(name, held)]


class Interval(NamedTuple):
    """Keys [first, last) of each row, int64 [batch or 1, queries]; None = unbounded. Of packed rows, in their sequence only."""

    first: Any
    last: Any
    packed: bool = False


def meet(a, b):
    def both(x, y, choose):
        return y if x is None else x if y is None else choose(x, y)

    return Interval(both(a.first, b.first, torch.maximum), both(a.last, b.last, torch.minimum), a.packed or b.packed)


class Reader:
    """The interval of each row of a mask function; `checks` are what must be true of the data for them to be right."""

    def __init__(self, rows):
        self.rows, self.checks = rows, []

    def interval(self, function, at):
        """`at`: the positions of the rows, as the function counts them."""
        name, held = taken_apart(function)
        match name:
            case "causal_mask_function":
                return Interval(None, at + 1)
            case "bidirectional_mask_function":
                return Interval(None, None)
            case "sliding_window_overlay":
                return Interval(at - held["sliding_window"] + 1, None)
            case "sliding_window_bidirectional_overlay":
                return Interval(at - held["sliding_window"], at + held["sliding_window"] + 1)
            case "chunked_overlay":
                first = at - (at - held["left_padding"][:, None]) % held["chunk_size"]
                return Interval(first, first + held["chunk_size"])
            case "and_masks":
                return self.all_of([self.interval(part, at) for part in held["mask_functions"]],
                                   "packed_sequence_mask_function" in [taken_apart(part)[0] for part in held["mask_functions"]])
            case "or_masks":
                return self.any_of([self.interval(part, at) for part in held["mask_functions"]], at)
            case "packed_sequence_mask_function":
                return self.run_of(held["packed_sequence_mask"], at, numbered=True)
            case "blockwise_overlay":
                return self.run_of(held["block_sequence_ids"], at, numbered=False)
            case "remap_positions_for_packed_sequence":
                # Positions count from each sequence's start: the same distance from the row's own, as long as it is that sequence.
                there = held["position_ids"].to(self.rows.device).expand(at.shape[0], -1) if at.shape[0] > 1 else held["position_ids"]
                there = there.to(torch.int64).gather(1, self.rows.expand(there.shape[0], -1))
                inner, moved = self.interval(held["mask_function"], there), at - there
                return Interval(*(None if x is None else x + moved for x in inner[:2]), packed=True)

    def all_of(self, parts, same_sequence):
        result = Interval(None, None)
        for part in parts:
            result = meet(result, part)
        return result._replace(packed=result.packed and not same_sequence)

    def any_of(self, parts, at):
        """The union where it has no gap, which is checked."""
        result = Interval(at, at)
        for part in parts:
            a = Interval(*(torch.full_like(at, end) if x is None else x for x, end in zip(part[:2], (0, 2**31))), part.packed)
            none_a, none_b = a.first >= a.last, result.first >= result.last
            self.checks.append((none_a | none_b | (torch.maximum(a.first, result.first) <= torch.minimum(a.last, result.last))).all())
            first, last = torch.minimum(a.first, result.first), torch.maximum(a.last, result.last)
            first = torch.where(none_a, result.first, torch.where(none_b, a.first, first))
            last = torch.where(none_a, result.last, torch.where(none_b, a.last, last))
            result = Interval(first, last, result.packed or a.packed)
        return result

    def run_of(self, ids, at, numbered):
        """The neighbours of each row that have its id; ids below 0 have none unless ids are `numbered` in order."""
        ids = ids.to(self.rows.device)
        place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        edge = torch.ones_like(ids, dtype=torch.bool)
        edge[:, 1:] = ids[:, 1:] != ids[:, :-1]
        first = torch.where(edge, place, 0).cummax(1).values
        ends = torch.cat((edge[:, 1:], edge[:, :1]), 1)
        last = torch.where(ends, place + 1, ids.shape[1]).flip(1).cummin(1).values.flip(1)
        if not numbered:
            last = torch.where(ids < 0, first, last)
            ordered = ids.sort(1).values
            different = (ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] >= 0)
            self.checks.append(((edge & (ids >= 0)).sum(1) == different.sum(1) + (ordered[:, 0] >= 0)).all())
        rows = at.expand(ids.shape[0], -1)
        return Interval(first.gather(1, rows), last.gather(1, rows))


def padding_of(seen):
    """starts and lengths int32 [batch] of keys bool [batch, keys], and whether they are all, and whether they have no gap."""
    count = seen.sum(1)
    first = seen.to(torch.uint8).argmax(1)
    inside = torch.arange(seen.shape[1], device=seen.device)
    inside = (inside >= first[:, None]) & (inside < (first + count)[:, None])
    return first.int(), (first + count).int(), (count == seen.shape[1]).all(), (inside == seen).all()


def band_of(parts):
    """The options of attention() for functions that are a band and packed sequences, and those sequences' ids; or None."""
    causal, left, right, ids, moved = False, -1, -1, None, False
    parts = list(parts)
    while parts:
        name, held = parts.pop()
        match name:
            case "bidirectional_mask_function":
                pass
            case "causal_mask_function":
                causal = True
            case "sliding_window_overlay":
                left = held["sliding_window"] - 1 if left < 0 else min(left, held["sliding_window"] - 1)
            case "sliding_window_bidirectional_overlay" if left == right == -1:
                left = right = held["sliding_window"]
            case "packed_sequence_mask_function" if ids is None:
                ids = held["packed_sequence_mask"]
            case "remap_positions_for_packed_sequence":
                moved, inner = True, leaves(held["mask_function"])
                if any(name == "chunked_overlay" for name, _ in inner):
                    return None
                parts += inner
            case _:
                return None
    if moved and ids is None:
        return None
    return {"causal": causal, "window_size": (left, right) if (left, right) != (-1, -1) else None}, ids


def packed_options(ids):
    """cu_seqlens and the longest of the sequences that `ids` [batch, rows] number, all batches in a row."""
    edge = torch.ones_like(ids, dtype=torch.bool)
    edge[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = edge.flatten().nonzero().flatten()
    cu_seqlens = torch.cat((starts, starts.new_tensor([ids.numel()]))).int()
    longest = int(cu_seqlens.diff().max())
    return {"cu_seqlens_q": cu_seqlens, "cu_seqlens_kv": cu_seqlens, "seqlen_q": longest, "seqlen_kv": longest}


def ranges_of(mask):
    """The intervals of a boolean mask [batch, 1, queries, keys], or None where a row has several."""
    seen = mask.view(torch.uint8) if mask.is_contiguous() else mask.to(torch.uint8)
    starts = seen[..., :1].sum(-1) + ((seen[..., 1:] == 1) & (seen[..., :-1] == 0)).sum(-1)
    if not (starts <= 1).all():
        return None
    first = seen.argmax(-1)
    return torch.stack((first, first + seen.sum(-1)), -1).int()


def compact_mask(function, batch, rows, keys, row_offset, key_offset, seen, device):
    """The mask of a function with offsets of rows and keys, `seen` bool [batch, keys] or None; None where it is no intervals.

    Looks at the data once, as transformers does to find out whether a mask is needed.
    """
    at = torch.arange(rows, device=device)[None] + row_offset
    reader = Reader(at)
    found = reader.interval(function, at)
    if found.packed:
        return None
    verdicts = list(reader.checks)
    if seen is not None:
        starts, lengths, everything, whole = padding_of(seen)
        verdicts += [whole, everything]
    verdicts = torch.stack(verdicts).tolist() if verdicts else []
    if seen is not None and verdicts.pop():
        seen = None
    if not all(verdicts):
        return None
    first, last = (torch.full_like(at, end) if x is None else x - key_offset for x, end in zip(found[:2], (0, keys)))
    first, last = first.clamp(0, keys), last.clamp(0, keys)
    if seen is not None:
        first, last = torch.maximum(first, starts[:, None]), torch.minimum(last, lengths[:, None])
    last = torch.maximum(first, last)  # a row that sees nothing is an empty range
    mask = torch.stack(torch.broadcast_tensors(first, last), -1).int().expand(batch, -1, -1)[:, None].contiguous()
    band = band_of(leaves(function))
    if band is not None:
        options, ids = band
        if ids is not None:
            if seen is not None or rows != keys or tuple(ids.shape) != (batch, rows):
                return mask
            options |= packed_options(ids)
        elif options["causal"] or options["window_size"]:
            offset = row_offset - key_offset
            options["q_offset"] = offset.int().expand(batch).contiguous() if isinstance(offset, torch.Tensor) else offset
        if seen is not None:
            options |= {"kv_starts": starts, "kv_lengths": lengths}
        setattr(mask, ATTRIBUTE, options)
    return mask

#!/usr/bin/env python3
"""Checks the committed demo data in data/ (standard library alone): format, shapes, dtypes, values, lengths, size.

    check_data.py [FOLDER]

Prints one line a file. On an error: one line on stderr that names the file and the fault, exit status 1.
"""

import json
import sys
from array import array
from pathlib import Path

import safetensors_file as st

WINDOW, HEADS, HEAD_DIM = 512, 12, 32
MAX_BYTES = 4_000_000  # all committed data files together
EXPONENT = {"F16": ("H", 0x7C00), "BF16": ("H", 0x7F80), "F32": ("I", 0x7F800000)}  # all ones: infinity or NaN
LARGEST = 1000.0       # projections of a layer-normed state are far below; more means a wrong byte order or dtype
METADATA = ("model", "text", "layer", "what", "layout", "row", "softmax_scale", "tokens")


class Fault(Exception):
    pass


def require(condition, fault):
    if not condition:
        raise Fault(fault)


def check_qkv(tensors, dims, rows):
    """q, k and v agree in shape [..., 12, 32] and dtype; values are finite and not all alike."""
    for name in "qkv":
        require(name in tensors, f"no tensor {name}")
        tensor = tensors[name]
        require(tensor.dtype in EXPONENT and tensor.dtype == tensors["q"].dtype, f"{name} is {tensor.dtype}")
        shape = dims + [HEADS, HEAD_DIM]
        require(tensor.shape == shape, f"{name} is {tensor.shape}, expected {shape}")
        code, exponent = EXPONENT[tensor.dtype]
        items = array(code, tensor.data)
        if sys.byteorder == "big":
            items.byteswap()
        bad = next((i for i, bits in enumerate(items) if bits & exponent == exponent), None)
        require(bad is None, f"{name}[{bad}] (flat index) is not finite")
        values = tensor.values()
        require(max(map(abs, values)) < LARGEST, f"{name} holds a value of {max(map(abs, values)):g}")
        row_bytes = len(tensor.data) // rows
        different = {tensor.data[i * row_bytes:(i + 1) * row_bytes] for i in range(rows)}
        require(len(different) > rows // 2, f"most rows of {name} are alike")


def check_tokens(metadata, rows):
    for name in METADATA:
        require(metadata.get(name), f"no {name} in the metadata")
    tokens = json.loads(metadata["tokens"])
    require(isinstance(tokens, list) and all(isinstance(token, str) for token in tokens), "tokens are not strings")
    require(len(tokens) == rows, f"{len(tokens)} tokens for {rows} rows")
    return tokens


def check_sequences(tokens, starts):
    for begin, end in zip(starts, starts[1:]):
        ends = (tokens[begin], tokens[end - 1])
        require(ends == ("[CLS]", "[SEP]"), f"rows {begin} to {end - 1} are {ends}, not [CLS] ... [SEP]")


def check_windows(metadata, tensors):
    require(set(tensors) == {"q", "k", "v"}, f"tensors are {sorted(tensors)}")
    windows = tensors["q"].shape[0]
    rows = windows * WINDOW
    require(windows >= 1, "no windows")
    check_qkv(tensors, [windows, WINDOW], rows)
    check_sequences(check_tokens(metadata, rows), range(0, rows + 1, WINDOW))
    return f"q, k, v {tensors['q'].dtype} {tensors['q'].shape}"


def check_packed(metadata, tensors):
    require(set(tensors) == {"q", "k", "v", "cu_seqlens_q", "cu_seqlens_kv"}, f"tensors are {sorted(tensors)}")
    total = tensors["q"].shape[0]
    check_qkv(tensors, [total], total)
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        require(tensors[name].dtype == "I32" and len(tensors[name].shape) == 1, f"{name} is not int32 [batch + 1]")
    starts = tensors["cu_seqlens_q"].values()
    require(starts == tensors["cu_seqlens_kv"].values(), "cu_seqlens_q and cu_seqlens_kv differ")
    require(len(starts) >= 2 and starts[0] == 0 and starts[-1] == total, f"cu_seqlens run {starts}, total is {total}")
    lengths = [end - begin for begin, end in zip(starts, starts[1:])]
    require(all(2 <= length <= WINDOW for length in lengths), f"document lengths {lengths}")
    require(len(set(lengths)) > 1, "all documents have one length")
    check_sequences(check_tokens(metadata, total), starts)
    require(len(json.loads(metadata.get("documents", "[]"))) == len(lengths), "documents does not name each document")
    return f"q, k, v {tensors['q'].dtype} {tensors['q'].shape}, documents of {lengths}"


CHECKS = {"minilm_gpl3_windows.safetensors": check_windows, "minilm_gpl3_packed.safetensors": check_packed}


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "data"
    try:
        for name, check in CHECKS.items():
            print(f"{name}: {check(*st.read(folder / name))}")
        name, size = str(folder), sum((folder / name).stat().st_size for name in CHECKS)
        require(size <= MAX_BYTES, f"the files take {size} bytes, more than {MAX_BYTES}")
    except (Fault, OSError, ValueError, IndexError, TypeError) as fault:
        print(f"check_data: {name}: {fault}", file=sys.stderr)
        return 1
    print(f"{size} bytes, within {MAX_BYTES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

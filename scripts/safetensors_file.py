"""Read and write safetensors files with the standard library alone.

A file is an 8-byte little-endian header length, a JSON header {name: {dtype, shape, data_offsets}} with an optional
`__metadata__` of strings, then the tensors' bytes, row-major and little-endian, without gaps.
"""

import json
import math
import struct
import sys
from array import array

ITEM_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8, "F64": 8}
MAX_HEADER_BYTES = 100_000_000
_ARRAY_CODES = {"BOOL": "B", "U8": "B", "I8": "b", "BF16": "H", "I32": "i", "F32": "f", "I64": "q", "F64": "d"}


class FormatError(ValueError):
    """The file is not a well-formed safetensors file."""


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype = dtype        # a key of ITEM_BYTES
        self.shape = list(shape)
        self.data = data          # bytes, math.prod(shape) * ITEM_BYTES[dtype] of them

    @classmethod
    def of(cls, dtype, shape, values):
        """Encodes a flat sequence of numbers, rounding once to dtype (half to even)."""
        return cls(dtype, shape, encode(dtype, values))

    def values(self):
        return decode(self.dtype, self.data)


def _little_endian(items):
    if sys.byteorder == "big":
        items.byteswap()
    return items


def decode(dtype, data):
    """bytes -> flat list of int, bool or float."""
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    items = array(_ARRAY_CODES[dtype])
    items.frombytes(data)
    _little_endian(items)
    if dtype == "BF16":
        return list(struct.unpack(f"<{len(items)}f", struct.pack(f"<{len(items)}I", *(bits << 16 for bits in items))))
    return [bool(item) for item in items] if dtype == "BOOL" else items.tolist()


def _bf16_bits(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def encode(dtype, values):
    values = list(values)
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    if dtype == "BF16":
        values = [_bf16_bits(value) for value in values]
    return _little_endian(array(_ARRAY_CODES[dtype], values)).tobytes()


def read(path):
    """Returns (metadata: {str: str}, tensors: {name: Tensor}); raises FormatError or OSError."""
    with open(path, "rb") as file:
        blob = file.read()
    if len(blob) < 8:
        raise FormatError("shorter than the 8 bytes of the header length")
    header_bytes = struct.unpack("<Q", blob[:8])[0]
    if header_bytes > min(MAX_HEADER_BYTES, len(blob) - 8):
        raise FormatError(f"header length {header_bytes} runs past the file's end ({len(blob)} bytes)")
    try:
        header = json.loads(blob[8:8 + header_bytes])
        metadata = header.pop("__metadata__", {})
        entries = sorted(header.items(), key=lambda entry: entry[1]["data_offsets"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"header is not a JSON object of tensors: {error}") from None
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise FormatError("__metadata__ is not an object of strings")
    body, end, tensors = blob[8 + header_bytes:], 0, {}
    for name, entry in entries:
        begin, stop = entry["data_offsets"]
        if entry["dtype"] not in ITEM_BYTES:
            raise FormatError(f"tensor {name}: unknown dtype {entry['dtype']}")
        size = math.prod(entry["shape"]) * ITEM_BYTES[entry["dtype"]]
        if begin != end or stop - begin != size or stop > len(body):
            raise FormatError(f"tensor {name}: bytes [{begin}, {stop}) after {end} of {len(body)}: "
                              f"{entry['dtype']} {entry['shape']} has {size}")
        tensors[name] = Tensor(entry["dtype"], entry["shape"], body[begin:stop])
        end = stop
    if end != len(body):
        raise FormatError(f"{len(body) - end} bytes after the last tensor")
    return metadata, tensors


def write(path, tensors, metadata=None):
    """Writes tensors in the given order; the header is padded so that the data starts at a multiple of 8."""
    header, end = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, end + len(tensor.data)]}
        end += len(tensor.data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.data)

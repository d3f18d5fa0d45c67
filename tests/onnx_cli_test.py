#!/usr/bin/env python3
"""Runs the ONNX attention cases through the command line and compares `o` with the recorded output.

    onnx_cli_test.py build/bin/tilewise [--cases FOLDER] [--device NAME]
    onnx_cli_test.py --self-check          the mapping alone, against plain double-precision attention in this file

Rule: |x - y| <= atol + rtol * |y|, where y is the recorded value, plus one unit in the last place of a 16-bit output;
NaN and infinities must stand at the same positions. One line a case; exit status 1 on any mismatch. Standard library
alone.
"""

import argparse
import itertools
import math
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))
sys.path.insert(0, str(HERE))
import safetensors_file as st  # noqa: E402
from onnx_to_attend import Case  # noqa: E402

DIGITS = {"F16": (10, -14), "BF16": (7, -126)}  # fraction bits, smallest normal exponent
TIMEOUT_S = 120


def last_place(dtype, y):
    """The unit in the last place of y in a 16-bit dtype; 0 for wider ones, whose rounding rtol covers."""
    if dtype not in DIGITS:
        return 0.0
    bits, smallest = DIGITS[dtype]
    exponent = math.frexp(y)[1] - 1 if y else smallest
    return 2.0 ** (max(exponent, smallest) - bits)


def compare(name, found, expected, case):
    """Returns None, or the first mismatch in words. found: flat list; expected: Tensor."""
    wanted = expected.values()
    if len(found) != len(wanted):
        return f"{name} has {len(found)} elements, expected {len(wanted)}"
    for i, (x, y) in enumerate(zip(found, wanted)):
        if math.isfinite(y) and math.isfinite(x):
            allowed = case.atol + case.rtol * abs(y) + last_place(expected.dtype, y)
            if abs(x - y) <= allowed:
                continue
            return f"{name}[{i}] = {x!r}, expected {y!r}: off by {abs(x - y):.3g}, allowed {allowed:.3g}"
        if x == y or (math.isnan(x) and math.isnan(y)):
            continue
        return f"{name}[{i}] = {x!r}, expected {y!r}"
    return None


class Strided:
    """A tensor read by index; a dimension of size 1 is broadcast. axes: the order in which its dimensions are named."""

    def __init__(self, tensor, axes=(0, 1, 2, 3)):
        self.items, stride, strides = tensor.values(), 1, [0] * 4
        for axis in (3, 2, 1, 0):
            strides[axis] = 0 if tensor.shape[axis] == 1 else stride
            stride *= tensor.shape[axis]
        self.shape = [tensor.shape[axis] for axis in axes]
        self.strides = [strides[axis] for axis in axes]

    def __call__(self, *index):
        return self.items[sum(i * s for i, s in zip(index, self.strides))]


def read_arguments(arguments):
    """The options of attend that a case uses, as design.md defines them."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--layout", choices=("bshd", "bhsd"), default="bshd")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--softcap", type=float, default=0.0)
    parser.add_argument("--causal", nargs="?", choices=("bottom-right", "top-left"), const="bottom-right")
    parser.add_argument("--q-offset", type=int)
    parser.add_argument("--window", type=lambda text: [int(side) for side in text.split(",")], default=[-1, -1])
    return parser.parse_args(arguments)


def plain_attention(tensors, arguments):
    """`attend` in double precision and plain loops: (o, score matrices by ONNX's qk_matmul_output_mode), flat lists."""
    options = read_arguments(arguments)
    axes = (0, 2, 1, 3) if options.layout == "bshd" else (0, 1, 2, 3)  # of [batch, heads, seqlen, dim]
    q, k, v = (Strided(tensors[name], axes) for name in "qkv")
    bias, mask = (Strided(tensors[name]) if name in tensors else None for name in ("bias", "mask"))
    (batch, heads_q, seqlen_q, dim), (heads_kv, seqlen_kv), dim_v = q.shape, k.shape[1:3], v.shape[3]
    lengths = tensors["kv_lengths"].values() if "kv_lengths" in tensors else [seqlen_kv] * batch
    if "q_offset" in tensors:
        offsets = tensors["q_offset"].values()
    elif options.q_offset is not None:
        offsets = [options.q_offset] * batch
    else:
        offsets = [0 if options.causal == "top-left" else length - seqlen_q for length in lengths]
    scale = dim ** -0.5 if options.scale is None else options.scale
    left, right = options.window[0], 0 if options.causal else options.window[1]
    o, scores = {}, {mode: [] for mode in range(4)}
    for b, h, i in itertools.product(range(batch), range(heads_q), range(seqlen_q)):
        g, p, row = h // (heads_q // heads_kv), i + offsets[b], []
        for j in range(seqlen_kv):
            s = scale * sum(q(b, h, i, d) * k(b, g, j, d) for d in range(dim))
            scores[0].append(s)
            s = options.softcap * math.tanh(s / options.softcap) if options.softcap else s
            scores[1].append(s)
            seen = j < lengths[b] and (left < 0 or p - left <= j) and (right < 0 or j <= p + right)
            seen = seen and (mask is None or mask(b, h, i, j))
            s += bias(b, h, i, j) if seen and bias else 0.0
            row.append(s if seen else -math.inf)
        scores[2] += row
        top = max(row)
        weights = [0.0 if s == -math.inf else math.exp(s - top) for s in row]
        total = sum(weights) or 1.0
        weights = [w / total for w in weights]
        scores[3] += weights
        for d in range(dim_v):
            index = (b, h, i, d)
            o[tuple(index[axis] for axis in axes)] = sum(w * v(b, g, j, d) for j, w in enumerate(weights) if w)
    return [o[index] for index in sorted(o)], scores


def self_check(case):
    """Rounds to the output dtype before comparing, as the command does."""
    o, scores = plain_attention(case.tensors, case.args)
    expected = case.expected_o()
    wrong = compare("o", st.decode(expected.dtype, st.encode(expected.dtype, o)), expected, case)
    if not wrong and "qk_matmul_output" in case.outputs:
        mode, expected = int(case.attributes.get("qk_matmul_output_mode", "0")), case.outputs["qk_matmul_output"]
        wrong = compare("scores", st.decode(expected.dtype, st.encode(expected.dtype, scores[mode])), expected, case)
    return wrong


def run_case(case, options, folder):
    source, target = str(Path(folder, "in.safetensors")), Path(folder, "out.safetensors")
    target.unlink(missing_ok=True)
    st.write(source, case.tensors)
    command = [options.tilewise, "attend", source, "-o", str(target)] + case.args
    if options.device:
        command += ["--device", options.device]
    shown = " ".join(["attend"] + command[2:])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {TIMEOUT_S} s: {shown}"
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["(no output)"]
        return f"exit {done.returncode}: {' | '.join(lines[:3])}: {shown}"
    try:
        o = st.read(target)[1]["o"]
    except (OSError, ValueError, KeyError) as error:
        return f"no tensor o in the output ({error}): {shown}"
    expected = case.expected_o()
    if o.shape != expected.shape:
        return f"o is {o.shape}, expected {expected.shape}: {shown}"
    return compare("o", o.values(), expected, case)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tilewise", nargs="?", help="path of the tilewise command")
    parser.add_argument("--cases", default=HERE / "cases" / "onnx", type=Path)
    parser.add_argument("--device", help="passed to attend")
    parser.add_argument("--self-check", action="store_true", help="check the mapping in plain Python")
    options = parser.parse_args()
    if bool(options.tilewise) == options.self_check:
        parser.error("give the path of tilewise, or --self-check")
    if options.tilewise and not Path(options.tilewise).is_file():
        parser.error(f"no such command: {options.tilewise}")
    paths = sorted(options.cases.glob("*.safetensors"))
    if not paths:
        print(f"onnx_cli_test: no cases in {options.cases}", file=sys.stderr)
        return 1
    passed, failed, waiting = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            case = Case(path)
            if case.skip:
                waiting += 1
                print(f"waiting  {path.stem}: {case.skip}")
                continue
            wrong = self_check(case) if options.self_check else run_case(case, options, folder)
            passed, failed = passed + (not wrong), failed + bool(wrong)
            print(f"FAIL     {path.stem}: {wrong}" if wrong else f"ok       {path.stem}")
    print(f"{passed} passed, {failed} failed, {waiting} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())

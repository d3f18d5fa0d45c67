#!/usr/bin/env python3
"""Turns one ONNX attention case into the input file and arguments of `tilewise attend`.

    onnx_to_attend.py CASE.safetensors IN.safetensors

writes IN.safetensors and prints {"args": [...], "expected": {tensor, dtype, shape, rtol, atol}, "skip": reason or
null}. The mapping rules are listed in tests/cases/onnx/README.md. Needs the standard library alone.
"""

import argparse
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import safetensors_file as st  # noqa: E402


class Case:
    """One case, mapped: the tensors and options of a `tilewise attend` call, and what it must return."""

    def __init__(self, path):
        self.attributes, tensors = st.read(path)
        self.inputs = {name[3:]: tensor for name, tensor in tensors.items() if name.startswith("in.")}
        self.outputs = {name[4:]: tensor for name, tensor in tensors.items() if name.startswith("out.")}
        self.rtol, self.atol = float(self.attributes["rtol"]), float(self.attributes["atol"])
        self.skip = None
        if self.attributes["op"] not in ("Attention", "FlexAttention"):
            self.skip = f"{self.attributes['op']} is not dense attention"
            return
        self.tensors, self.args = {}, []
        self._map_qkv()
        self._map_mask()
        self._map_positions()
        self._map_score()

    def _map_qkv(self):
        """3-D [batch, seqlen, heads * dim] is bshd once its last dimension is split; 4-D is bhsd."""
        self.layout = "bshd" if len(self.inputs["Q"].shape) == 3 else "bhsd"
        for ours, attribute in (("q", "q_num_heads"), ("k", "kv_num_heads"), ("v", "kv_num_heads")):
            tensor = self.inputs[ours.upper()]
            shape = tensor.shape
            if self.layout == "bshd":
                heads = int(self.attributes[attribute])
                shape = [shape[0], shape[1], heads, shape[2] // heads]
            self.tensors[ours] = st.Tensor(tensor.dtype, shape, tensor.data)
        self.seqlen_axis = 1 if self.layout == "bshd" else 2
        self.past = 0
        if "past_key" in self.inputs:
            self.past = self.inputs["past_key"].shape[2]
            self.tensors["k"] = self._with_past("past_key", self.tensors["k"])
            self.tensors["v"] = self._with_past("past_value", self.tensors["v"])
        self.batch = self.tensors["q"].shape[0]
        self.seqlen_q = self.tensors["q"].shape[self.seqlen_axis]
        self.seqlen_kv = self.tensors["k"].shape[self.seqlen_axis]
        self.args += ["--layout", self.layout]

    def _with_past(self, name, now):
        """Concatenates past [batch, heads, past, dim] and now (in self.layout) along the sequence."""
        past = self.inputs[name]
        batch, heads, length, dim = past.shape
        row = dim * st.ITEM_BYTES[now.dtype]
        new = now.shape[self.seqlen_axis]
        blocks = []
        for b in range(batch):
            if self.layout == "bhsd":
                for h in range(heads):
                    blocks += [past.data[(b * heads + h) * length * row:][:length * row],
                               now.data[(b * heads + h) * new * row:][:new * row]]
            else:
                blocks += [past.data[((b * heads + h) * length + t) * row:][:row]
                           for t in range(length) for h in range(heads)]
                blocks.append(now.data[b * new * heads * row:][:new * heads * row])
        shape = list(now.shape)
        shape[self.seqlen_axis] = length + new
        return st.Tensor(now.dtype, shape, b"".join(blocks))

    def _map_mask(self):
        """Ranks below 4 gain leading ones; a mask narrower than the keys hides the rest."""
        if "attn_mask" not in self.inputs:
            return
        mask = self.inputs["attn_mask"]
        shape = [1] * (4 - len(mask.shape)) + mask.shape
        data, width = mask.data, shape[3]
        if width < self.seqlen_kv:
            hidden = st.encode(mask.dtype, [False if mask.dtype == "BOOL" else -math.inf]) * (self.seqlen_kv - width)
            row = width * st.ITEM_BYTES[mask.dtype]
            data = b"".join(data[start:start + row] + hidden for start in range(0, len(data), row))
            shape = shape[:3] + [self.seqlen_kv]
        self.tensors["mask" if mask.dtype == "BOOL" else "bias"] = st.Tensor(mask.dtype, shape, data)

    def _map_positions(self):
        """Query i stands at i + q_offset: past length, or valid keys - seqlen_q, or 0."""
        causal = int(self.attributes.get("is_causal", "0")) != 0
        window = [int(self.attributes.get(side + "_window_size", "-1")) for side in ("left", "right")]
        if causal:
            window[1] = 0
        windowed = window[0] >= 0 or (window[1] >= 0 and not causal)
        if "nonpad_kv_seqlen" in self.inputs:
            lengths = self.inputs["nonpad_kv_seqlen"].values()
            self.tensors["kv_lengths"] = st.Tensor.of("I32", [self.batch], lengths)
            self.tensors["q_offset"] = st.Tensor.of("I32", [self.batch], [length - self.seqlen_q for length in lengths])
        elif self.past or (windowed and not causal):
            self.args += ["--q-offset", str(self.past)]
        if windowed:
            self.args += ["--window", f"{window[0]},{window[1]}"]
        if causal:
            given = self.past or "q_offset" in self.tensors
            self.args += ["--causal"] if given else ["--causal", "top-left"]

    def _map_score(self):
        if "scale" in self.attributes:
            self.args += ["--scale", self.attributes["scale"]]
        if float(self.attributes.get("softcap", "0")):
            self.args += ["--softcap", self.attributes["softcap"]]

    def expected_o(self):
        """out.Y with the shape that `o` must have: its bytes are already in the layout of the inputs."""
        y = self.outputs["Y"]
        shape = self.tensors["q"].shape[:3] + [self.tensors["v"].shape[3]]
        assert math.prod(shape) == math.prod(y.shape), (shape, y.shape)
        return st.Tensor(y.dtype, shape, y.data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case")
    parser.add_argument("input")
    options = parser.parse_args()
    case = Case(options.case)
    if case.skip:
        print(json.dumps({"args": [], "expected": {}, "skip": case.skip}))
        return
    st.write(options.input, case.tensors)
    o = case.expected_o()
    expected = {"tensor": "out.Y", "dtype": o.dtype, "shape": o.shape, "rtol": case.rtol, "atol": case.atol}
    print(json.dumps({"args": case.args, "expected": expected, "skip": None}))


if __name__ == "__main__":
    main()

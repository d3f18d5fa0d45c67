#!/usr/bin/env python3
"""The command line from outside: files in, files out, exit status and sentences.

    cli_test.py build/bin/tilewise [-k NAME]

Standard library alone. Every refusal must give its exit status, one sentence on stderr that names the culprit, and no
output file.
"""

import json
import math
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import safetensors_file as st  # noqa: E402

TILEWISE = None
DONE, WRONG, BAD_INPUT, CANNOT_RUN = 0, 1, 2, 3


def tensor(shape, seed=1, dtype="F32"):
    source = random.Random(seed)
    return st.Tensor.of(dtype, list(shape), [source.gauss(0, 1) for _ in range(math.prod(shape))])


def integers(values, dtype="I32", shape=None):
    return st.Tensor.of(dtype, shape or [len(values)], values)


def qkv(batch=2, seqlen_q=5, seqlen_kv=7, heads=2, heads_kv=None, dim=4, dim_v=None, dtype="F32"):
    heads_kv, dim_v = heads_kv or heads, dim_v or dim
    return {"q": tensor((batch, seqlen_q, heads, dim), 1, dtype), "k": tensor((batch, seqlen_kv, heads_kv, dim), 2, dtype),
            "v": tensor((batch, seqlen_kv, heads_kv, dim_v), 3, dtype)}


def raw(header, data=b"", length=None):
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


class Command(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.source, self.target = str(self.at("in.safetensors")), self.at("out.safetensors")

    def at(self, name):
        return Path(self.folder.name, name)

    def run_words(self, *words, limits=None, env=None):
        return subprocess.run([TILEWISE, *map(str, words)], capture_output=True, text=True, timeout=300, check=False,
                              preexec_fn=limits, env={**os.environ, **(env or {})})

    def attend(self, tensors, *words, **options):
        st.write(self.source, tensors)
        return self.run_words("attend", self.source, "-o", self.target, *words, **options)

    def results(self, tensors, *words):
        done = self.attend(tensors, *words)
        self.assertEqual(done.returncode, DONE, done.stderr)
        return st.read(self.target)[1]

    def refused(self, done, status, *says):
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("warning:")]
        self.assertTrue(lines and lines[0].startswith("tilewise"), done.stderr)
        if status == BAD_INPUT:
            self.assertEqual(len(lines), 1, done.stderr)
        for words in says:
            self.assertIn(words, done.stderr)
        self.assertFalse(self.target.exists(), "an output was written")
        left = [p.name for p in Path(self.folder.name).iterdir() if ".tmp." in p.name]
        self.assertFalse(left, "a temporary file was left")


class Attend(Command):
    def test_first_line_is_how_the_input_was_read(self):
        done = self.attend(qkv())
        self.assertEqual(done.stdout.splitlines()[0],
                         "q [2,5,2,4] read as bshd: batch 2, seqlen_q 5, heads_q 2, head_dim 4; "
                         "seqlen_kv 7, heads_kv 2, head_dim_v 4, f32")

    def test_writes_o_and_lse(self):
        out = self.results(qkv(heads=4, heads_kv=2, dim_v=3))
        self.assertEqual(sorted(out), ["lse", "o"])
        self.assertEqual((out["o"].shape, out["lse"].shape), ([2, 5, 4, 3], [2, 4, 5]))
        self.assertTrue(all(map(math.isfinite, out["o"].values() + out["lse"].values())))

    def test_one_key_gives_its_value(self):
        tensors = qkv(seqlen_kv=1, seqlen_q=1)
        out = self.results(tensors)
        for a, b in zip(out["o"].values(), tensors["v"].values()):
            self.assertAlmostEqual(a, b, delta=1e-6)

    def test_bhsd_is_bshd_exchanged(self):
        def exchange(t):
            b, s, h, d = t.shape
            v = t.values()
            return st.Tensor.of(t.dtype, [b, h, s, d], [v[((i * s + n) * h + m) * d + e] for i in range(b) for m in range(h)
                                                         for n in range(s) for e in range(d)])
        tensors = {**qkv(heads=2), "dout": tensor((2, 5, 2, 4), 4)}
        plain = self.results(tensors, "--device", "reference", "--grad")
        other = self.results({n: exchange(t) for n, t in tensors.items()}, "--layout", "bhsd", "--device", "reference", "--grad")
        for name in ("o", "dq", "dk", "dv"):
            self.assertEqual(exchange(plain[name]).data, other[name].data, name)
        self.assertEqual(plain["lse"].data, other["lse"].data)

    def test_verify_passes_for_every_dtype(self):
        for dtype, name in (("F32", "f32"), ("F16", "f16"), ("BF16", "bf16")):
            done = self.attend(qkv(dtype=dtype, seqlen_q=70, seqlen_kv=70, dim=16), "--verify", "--json")
            self.assertEqual(done.returncode, DONE, done.stderr)
            answer = json.loads(done.stdout)
            self.assertTrue(answer["verified"])
            self.assertEqual(answer["problem"]["dtype"], name)
            self.assertEqual(answer["forward"]["verify"]["rows"], "all 140 rows")
            self.assertEqual(st.read(self.target)[1]["o"].dtype, dtype)

    def test_dtype_converts(self):
        for given in ("F64", "F32", "BF16"):
            tensors = qkv(dtype="F32" if given == "F64" else given)
            if given == "F64":
                tensors = {n: st.Tensor("F64", t.shape, struct.pack(f"<{math.prod(t.shape)}d", *t.values())) for n, t in tensors.items()}
            done = self.attend(tensors, "--dtype", "f16", "--verify")
            self.assertEqual(done.returncode, DONE, done.stderr)
            self.assertIn(f"f16 (converted from {given})", done.stdout.splitlines()[0])
            self.assertEqual(st.read(self.target)[1]["o"].dtype, "F16")

    def test_grad(self):
        tensors = {**qkv(dim=8), "dout": tensor((2, 5, 2, 8), 4), "bias": tensor((1, 2, 5, 7), 5), "sinks": tensor((2,), 6),
                   "dlse": tensor((2, 2, 5), 7)}
        done = self.attend(tensors, "--grad", "--verify", "--json")
        self.assertEqual(done.returncode, DONE, done.stderr)
        out = st.read(self.target)[1]
        self.assertEqual(sorted(out), ["dbias", "dk", "dq", "dsinks", "dv", "lse", "o"])
        self.assertEqual(out["dbias"].shape, [1, 2, 5, 7])
        checked = {o["tensor"] for o in json.loads(done.stdout)["backward"]["verify"]["outputs"]}
        self.assertEqual(checked, {"dq", "dk", "dv", "dbias", "dsinks"})

    def test_packed_equals_each_sequence_alone(self):
        lengths, heads, dim = [3, 0, 4], 2, 4
        total = sum(lengths)
        whole = {n: tensor((total + 2, heads, dim), i) for i, n in enumerate("qkv")}
        for dtype in ("I32", "I64"):
            cu = integers([0, 3, 3, 7], dtype)
            out = self.results({**whole, "cu_seqlens_q": cu, "cu_seqlens_kv": cu}, "--causal")
            self.assertEqual((out["o"].shape, out["lse"].shape), ([9, 2, 4], [2, 9]))
            row = heads * dim
            self.assertEqual(out["o"].values()[total * row:], [0.0] * (2 * row), "rows past cu_seqlens are zero")
            first = 0
            for n in lengths:
                if n:
                    part = {name: st.Tensor.of("F32", [1, n, heads, dim], t.values()[first * row:(first + n) * row])
                            for name, t in whole.items()}
                    alone = self.results(part, "--causal")
                    for a, b in zip(alone["o"].values(), out["o"].values()[first * row:(first + n) * row]):
                        self.assertAlmostEqual(a, b, delta=1e-5)
                first += n

    def test_lengths_of_64_bits_and_masks_of_bytes(self):
        tensors = {**qkv(), "kv_lengths": integers([7, 3], "I64"), "mask": st.Tensor("U8", [5, 7], bytes([1] * 35))}
        a = self.results(tensors, "--verify")
        b = self.results({**qkv(), "kv_lengths": integers([7, 3])}, "--verify")
        for x, y in zip(a["o"].values(), b["o"].values()):
            self.assertAlmostEqual(x, y, delta=1e-5)

    def test_pages_and_slots_hold_the_same_keys(self):
        tensors = {**qkv(batch=2, seqlen_q=1, seqlen_kv=6, dim=4), "kv_lengths": integers([6, 3])}
        plain = self.results(tensors, "--verify")
        row = 2 * 4 * 4  # bytes of a key's heads
        pages = [7, 1, 4, 2]  # of 3 keys each: sequence 0 has 7 and 1, sequence 1 has 4 and none that is read
        for name in ("k", "v"):
            data = tensors[name].data
            paged = bytearray(struct.pack("<f", math.nan) * (8 * 3 * 8))
            for n, page in enumerate(pages):
                paged[page * 3 * row:(page + 1) * 3 * row] = data[n * 3 * row:(n + 1) * 3 * row]
            slots = bytearray(struct.pack("<f", math.nan) * (4 * 6 * 8))
            for b, slot in enumerate([3, 1]):
                slots[slot * 6 * row:(slot + 1) * 6 * row] = data[b * 6 * row:(b + 1) * 6 * row]
            tensors[name + "_paged"] = st.Tensor("F32", [8, 3, 2, 4], bytes(paged))
            tensors[name + "_slots"] = st.Tensor("F32", [4, 6, 2, 4], bytes(slots))
        table = integers([7, 1, 4, -1], shape=[2, 2])
        cache = {"q": tensors["q"], "kv_lengths": tensors["kv_lengths"]}
        paged = {**cache, "k": tensors["k_paged"], "v": tensors["v_paged"], "page_table": table}
        slots = {**cache, "k": tensors["k_slots"], "v": tensors["v_slots"], "cache_batch_idx": integers([3, 1])}
        for other in (paged, slots):
            got = self.results(other, "--verify")
            for output in ("o", "lse"):
                apart = max(abs(a - b) for a, b in zip(got[output].values(), plain[output].values(), strict=True))
                self.assertLess(apart, 1e-5)
        self.target.unlink()
        self.refused(self.attend({**paged, "page_table": integers([7, 8, 4, -1], shape=[2, 2])}), BAD_INPUT,
                     "page_table of sequence 0 entry 1 is 8")

    def test_positions(self):
        tensors = qkv(seqlen_q=2, seqlen_kv=5)
        default = self.results(tensors, "--causal")["lse"].data
        self.assertEqual(default, self.results(tensors, "--causal", "bottom-right")["lse"].data)
        self.assertEqual(default, self.results(tensors, "--causal", "--q-offset", 3)["lse"].data)
        self.assertEqual(default, self.results({**tensors, "q_offset": integers([3, 3])}, "--causal")["lse"].data)
        self.assertEqual(self.results(tensors, "--causal", "top-left")["lse"].data,
                         self.results(tensors, "--causal", "--q-offset", 0)["lse"].data)
        self.assertNotEqual(default, self.results(tensors, "--causal", "top-left")["lse"].data)

    def test_causal_does_not_swallow_the_file(self):
        st.write(self.source, qkv())
        self.assertEqual(self.run_words("attend", "--causal", self.source).returncode, DONE)

    def test_thread_count_does_not_change_bits(self):
        tensors = qkv(seqlen_q=150, seqlen_kv=150, dim=16)
        one = self.results(tensors, "--threads", 1)
        two = self.results(tensors, "--threads", 2)
        self.assertEqual(one["o"].data, two["o"].data)

    def test_a_misaligned_tensor_is_read(self):
        tensors = qkv()
        data, header, at = b"x", {"pad": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, 1
        for name, t in tensors.items():
            header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, at + len(t.data)]}
            data, at = data + t.data, at + len(t.data)
        Path(self.source).write_bytes(raw(json.dumps(header), data))
        done = self.run_words("attend", self.source, "-o", self.target)
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertEqual(st.read(self.target)[1]["o"].data, self.results(tensors)["o"].data)

    def test_zero_sizes(self):
        for sizes in ({"batch": 0}, {"seqlen_q": 0}, {"seqlen_kv": 0}):
            full = {"batch": 2, "seqlen_q": 5, "seqlen_kv": 7, **sizes}
            out = self.results({"q": tensor((full["batch"], full["seqlen_q"], 2, 4)),
                                "k": tensor((full["batch"], full["seqlen_kv"], 2, 4)),
                                "v": tensor((full["batch"], full["seqlen_kv"], 2, 4))})
            if sizes == {"seqlen_kv": 0}:
                self.assertEqual(set(out["o"].values()), {0.0})
                self.assertEqual(set(out["lse"].values()), {-math.inf})

    def test_unknown_tensors_are_named(self):
        done = self.attend({**qkv(), "kv_length": integers([7, 3]), "attn_mask": tensor((5, 7))})
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertIn("'kv_length' is not read; is it kv_lengths?", done.stderr)
        self.assertIn("'attn_mask' is not read; is it mask?", done.stderr)

    def test_the_other_layout_is_suspected(self):
        wide = {n: tensor((1, 2, 40, 4), i) for i, n in enumerate("qkv")}
        self.assertIn("give --layout bhsd", self.attend(wide).stderr)
        self.assertEqual(self.attend(wide, "--layout", "bhsd").stderr, "")

    def test_json_is_one_object(self):
        done = self.attend(qkv(), "--json")
        answer = json.loads(done.stdout)
        self.assertEqual(done.stdout.count("\n"), 1)
        self.assertIn("read as bshd", done.stderr)
        for key in ("schema", "device", "input", "problem", "forward", "memory", "process_peak_bytes_measured"):
            self.assertIn(key, answer)
        for key in ("kernel", "ms_median", "runs", "tflops", "workspace_bytes", "bytes_moved_modelled", "beside"):
            self.assertIn(key, answer["forward"])
        all_heads = answer["forward"]["beside"]["standard_all_heads"]
        self.assertGreaterEqual(all_heads.get("needs_bytes", all_heads.get("workspace_bytes")), 2 * 2 * 5 * 7 * 4)

    def test_the_kernel_asked_for_runs(self):
        names = json.loads(self.run_words("info", "--json", "--kernels").stdout)["kernel_names"]
        ran = 0
        for name in names:
            if not name.startswith("forward"):
                continue
            done = self.attend(qkv(), "--kernel", name, "--json")
            if done.returncode == CANNOT_RUN:
                self.assertIn(name, done.stderr)
                continue
            self.assertEqual(done.returncode, DONE, done.stderr)
            forward = json.loads(done.stdout)["forward"]
            self.assertEqual((forward["kernel"], forward["chosen_by"]), (name, "forced"))
            ran += 1
        self.assertGreater(ran, 0)

    def test_report(self):
        page = self.at("report.html")
        tensors = qkv(seqlen_q=6, seqlen_kv=6)
        words = json.dumps(["hello", "</script><b>", "world", "<!-- x", "again", "there"] * 2)
        st.write(self.source, tensors, {"tokens": words})
        done = self.run_words("attend", self.source, "--report", page)
        self.assertEqual(done.returncode, DONE, done.stderr)
        text = page.read_text()
        self.assertEqual(text.count("</script"), 1)
        for outside in ("http://", "https://", "src="):
            self.assertNotIn(outside, text)
        self.assertIn('"words":{', text)

    def test_real_data(self):
        for name in ("windows", "packed"):
            done = self.run_words("attend", ROOT / "data" / f"minilm_gpl3_{name}.safetensors", "--json", "--threads", 2)
            self.assertEqual(done.returncode, DONE, done.stderr)
            self.assertEqual(json.loads(done.stdout)["warnings"], [])


class Refusals(Command):
    def test_files(self):
        float4 = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'
        cases = {
            "empty": (b"", "empty"),
            "short": (b"1234567", "header length"),
            "long header": (raw(b"{}", length=1 << 60), "header length"),
            "cut header": (raw(b"{}", length=3), "cut off"),
            "no object": (raw("[1]"), "'{'"),
            "nesting": (raw('{"q":' + "[" * 100000), "a list"),
            "cut data": (raw('{"q":{%s}}' % float4, b"123"), "tensor 'q'"),
            "left over": (raw('{"q":{%s}}' % float4, b"12345"), "no tensor"),
            "duplicate": (raw('{"q":{%s},"q":{%s}}' % (float4, float4), b"1234"), "'q' stands twice"),
            "dtype": (raw('{"q":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}', b"1234"), "unknown dtype 'F33'"),
            "overflow": (raw('{"q":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}', b"1234"), "tensor 'q'"),
            "overlap": (raw('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                            '"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}', b"123456"), "'b' overlaps 'a'"),
            "outside": (raw('{"q":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}}', b"1234"), "tensor 'q'"),
            "negative": (raw('{"q":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', b"1234"), "tensor 'q'"),
            "bytes": (raw(b'{"q":\xff}'), "not JSON"),
        }
        for name, (content, says) in cases.items():
            with self.subTest(name):
                Path(self.source).write_bytes(content)
                done = self.run_words("attend", self.source, "-o", self.target)
                self.refused(done, BAD_INPUT, says, self.source)

    def test_missing_file_and_folder(self):
        self.refused(self.run_words("attend", self.at("no"), "-o", self.target), BAD_INPUT, str(self.at("no")))
        self.refused(self.run_words("attend", self.folder.name, "-o", self.target), BAD_INPUT, "folder")
        self.refused(self.run_words("attend", "/dev/zero", "-o", self.target), BAD_INPUT, "/dev/zero")

    def test_tensors(self):
        cu = integers([0, 2, 5])
        packed = {n: tensor((5, 2, 4), i) for i, n in enumerate("qkv")}
        cases = {
            "no v": ({n: t for n, t in qkv().items() if n != "v"}, ["tensor v is missing"]),
            "batch": ({**qkv(), "k": tensor((3, 7, 2, 4))}, ["batch", "k F32 [3,7,2,4]"]),
            "dims": ({**qkv(), "k": tensor((2, 7, 2, 6))}, ["head_dim", "k F32 [2,7,2,6]"]),
            "k and v": ({**qkv(), "v": tensor((2, 6, 2, 4))}, ["v F32 [2,6,2,4]"]),
            "heads": ({**qkv(heads=3), "k": tensor((2, 7, 2, 4)), "v": tensor((2, 7, 2, 4))}, ["heads_q 3", "heads_kv 2"]),
            "rank": ({**qkv(), "q": tensor((5, 2, 4))}, ["q F32 [5,2,4]", "cu_seqlens_q"]),
            "rank packed": ({**packed, "q": tensor((1, 5, 2, 4)), "cu_seqlens_q": cu, "cu_seqlens_kv": cu}, ["q F32 [1,5,2,4]"]),
            "head_dim 0": ({"q": tensor((1, 2, 2, 0)), "k": tensor((1, 2, 2, 0)), "v": tensor((1, 2, 2, 4))}, ["head_dim"]),
            "integers": ({**qkv(), "q": integers([0] * 80, shape=[2, 5, 2, 4])}, ["q I32", "F32, F16, BF16"]),
            "half a cu": ({**packed, "cu_seqlens_q": cu}, ["cu_seqlens_q is given alone"]),
            "cu falls": ({**packed, "cu_seqlens_q": integers([0, 4, 2]), "cu_seqlens_kv": cu}, ["cu_seqlens_q"]),
            "cu beyond": ({**packed, "cu_seqlens_q": integers([0, 4, 9]), "cu_seqlens_kv": cu}, ["cu_seqlens_q"]),
            "lengths beyond": ({**qkv(), "kv_lengths": integers([7, 8])}, ["kv_lengths"]),
            "lengths below": ({**qkv(), "kv_lengths": integers([7, -1])}, ["kv_lengths"]),
            "lengths of 64": ({**qkv(), "kv_lengths": integers([7, 1 << 40], "I64")}, ["kv_lengths", str(1 << 40)]),
            "length count": ({**qkv(), "kv_lengths": integers([7])}, ["kv_lengths"]),
            "length dtype": ({**qkv(), "kv_lengths": tensor((2,))}, ["kv_lengths F32", "I32 and I64"]),
            "mask dtype": ({**qkv(), "mask": tensor((5, 7))}, ["mask F32", "BOOL"]),
            "mask shape": ({**qkv(), "mask": st.Tensor("BOOL", [5, 6], bytes(30))}, ["mask"]),
            "bias shape": ({**qkv(), "bias": tensor((2, 3, 5, 7))}, ["bias"]),
            "bias dtype": ({**qkv(), "bias": integers([0] * 35, shape=[5, 7])}, ["bias I32"]),
            "segments": ({**qkv(), "segment_ids_q": integers([0] * 10, shape=[2, 5])}, ["segment_ids_kv"]),
            "slopes": ({**qkv(), "alibi_slopes": tensor((3,))}, ["alibi_slopes"]),
            "sinks": ({**qkv(), "sinks": tensor((3,))}, ["sinks"]),
            "ranges": ({**qkv(), "kv_ranges": integers([0] * 20, shape=[2, 5, 2, 1])}, ["kv_ranges I32 [2,5,2,1]"]),
        }
        for name, (tensors, says) in cases.items():
            with self.subTest(name):
                self.refused(self.attend(tensors), BAD_INPUT, *says)

    def test_grad_needs_dout(self):
        self.refused(self.attend(qkv(), "--grad"), BAD_INPUT, "dout")
        self.refused(self.attend({**qkv(), "dout": tensor((2, 5, 2, 3))}, "--grad"), BAD_INPUT, "dout")

    def test_layout_is_suggested(self):
        heads_first = {"q": tensor((1, 4, 16, 8)), "k": tensor((1, 2, 16, 8)), "v": tensor((1, 2, 15, 8))}
        self.refused(self.attend(heads_first), BAD_INPUT, "k F32 [1,2,16,8]", "v F32 [1,2,15,8]")
        uneven = {"q": tensor((1, 4, 6, 8)), "k": tensor((1, 2, 9, 8)), "v": tensor((1, 2, 9, 8))}
        self.refused(self.attend(uneven), BAD_INPUT, "--layout bhsd")

    def test_options(self):
        for words, says in (
                (["--windw", "1,1"], ["--windw", "--window"]),
                (["--window", "-2,0"], ["--window", "'-2,0'", "-1"]),
                (["--window", "3"], ["--window", "LEFT,RIGHT"]),
                (["--window", "1,x"], ["--window"]),
                (["--scale", "nan"], ["--scale", "'nan'"]),
                (["--scale", "inf"], ["--scale"]),
                (["--scale", "abc"], ["--scale", "'abc'"]),
                (["--softcap", "-1"], ["--softcap"]),
                (["--dropout", "1"], ["--dropout", "[0,1)"]),
                (["--dropout", "-0.1"], ["--dropout"]),
                (["--dropout", "nan"], ["--dropout"]),
                (["--seed", "3"], ["--seed", "--dropout"]),
                (["--causal=middle"], ["--causal", "'middle'", "top-left"]),
                (["--causal", "top-left", "--q-offset", "1"], ["--causal top-left", "--q-offset"]),
                (["--q-offset", "1.5"], ["--q-offset"]),
                (["--layout", "sbhd"], ["--layout", "'sbhd'", "bhsd"]),
                (["--dtype", "f8"], ["--dtype", "'f8'", "bf16"]),
                (["--device", "tpu"], ["--device", "'tpu'", "reference"]),
                (["--threads", "0"], ["--threads"]),
                (["--threads", "two"], ["--threads", "'two'"]),
                (["--max-workspace", "lots"], ["--max-workspace", "'lots'"]),
                (["--verify=some"], ["--verify", "'some'"]),
                (["--kernel", "forward_avx2_f23"], ["--kernel", "'forward_avx2_f23'"]),
                (["--report-sweep", "x"], ["--report-sweep", "--report"]),
                (["more"], ["'more'"])):
            with self.subTest(words=words):
                self.refused(self.attend(qkv(), *words), BAD_INPUT, *says)

    def test_subcommands(self):
        self.refused(self.run_words("atend"), BAD_INPUT, "'atend'", "attend")
        self.assertEqual(self.run_words().returncode, BAD_INPUT)
        self.refused(self.run_words("attend"), BAD_INPUT, "IN")

    def test_nothing_can_run_it(self):
        self.refused(self.attend(qkv(), "--device", "cuda:4096"), CANNOT_RUN, "CUDA")
        self.refused(self.attend(qkv(), "--device", "cuda:5000"), CANNOT_RUN, "CUDA")

    def test_workspace_limit_names_every_kernel(self):
        done = self.attend(qkv(seqlen_q=300, seqlen_kv=300, dim=64), "--max-workspace", "300", "--device", "cpu")
        if done.returncode != DONE:  # the fp64 reference needs none
            self.refused(done, CANNOT_RUN, "forward_")

    def test_full_disk(self):
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        st.write(self.source, qkv(seqlen_q=300, seqlen_kv=300, dim=16))
        self.target.write_bytes(b"old")
        done = self.run_words("attend", self.source, "-o", self.target, limits=small_files)
        self.assertEqual(done.returncode, BAD_INPUT, done.stderr)
        self.assertIn(str(self.target), done.stderr)
        self.assertEqual(self.target.read_bytes(), b"old")
        self.assertEqual(len(list(Path(self.folder.name).iterdir())), 2)

    def test_output_places(self):
        for target, says in ((self.folder.name, "folder"), (self.at("no/out"), "cannot be written"), ("/dev/null", "regular")):
            st.write(self.source, qkv())
            self.refused(self.run_words("attend", self.source, "-o", target), BAD_INPUT, says)

    def test_too_little_memory(self):
        """A sparse file of zeros that nobody could hold: refused from its sizes alone."""
        shape = [1, 1 << 22, 64, 128]
        size = math.prod(shape) * 4
        header = json.dumps({n: {"dtype": "F32", "shape": shape, "data_offsets": [i * size, (i + 1) * size]}
                             for i, n in enumerate("qkv")})
        with open(self.source, "wb") as file:
            file.write(raw(header))
            try:
                file.truncate(8 + len(header) + 3 * size)
            except OSError as error:
                self.skipTest(f"no sparse file: {error}")
        self.refused(self.run_words("attend", self.source, "-o", self.target), CANNOT_RUN, "needs", "free")

    def test_verification_that_fails_is_exit_1(self):
        # Values so large that fp16 outputs cannot hold them are infinite in ref and result alike: still exit 0.
        tensors = qkv(dtype="F16")
        tensors["v"] = st.Tensor.of("F16", tensors["v"].shape, [60000.0] * math.prod(tensors["v"].shape))
        self.assertEqual(self.attend(tensors, "--verify").returncode, DONE)


class OtherCommands(Command):
    def test_version(self):
        done = self.run_words("--version")
        self.assertEqual(done.returncode, DONE)
        self.assertRegex(done.stdout, r"^tilewise \d+\.\d+\.\d+\n$")

    def test_info(self):
        answer = json.loads(self.run_words("info", "--json").stdout)
        self.assertGreater(answer["cpu"]["cores"], 0)
        self.assertIn("reference", answer["kernels"])
        text = self.run_words("info").stdout
        for word in ("isa", "caches", "threads", "kernels", "tuning", "cuda"):
            self.assertIn(word, text)

    def test_plan(self):
        done = self.run_words("plan", "--explain", "--seqlen", "2048", "--causal")
        self.assertEqual(done.returncode, DONE, done.stderr)
        for name in json.loads(self.run_words("info", "--json", "--kernels").stdout)["kernel_names"]:
            if name.startswith("forward"):
                self.assertIn(name, done.stdout)
        answer = json.loads(self.run_words("plan", "--json", "--dtype", "fp32", "--heads", "8", "--heads-kv", "2").stdout)
        self.assertEqual((answer["problem"]["heads_q"], answer["problem"]["heads_kv"]), (8, 2))

    def test_plan_of_a_file(self):
        st.write(self.source, qkv())
        done = self.run_words("plan", self.source, "--causal", "--direction", "forward")
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertIn("read as bshd", done.stdout)

    def test_plan_refuses(self):
        for words, says in ((["--heads", "3", "--heads-kv", "2"], "heads"), (["--dtype", "int4"], "--dtype"),
                            (["--direction", "sideways"], "--direction"), (["--head-dim", "0"], "--head-dim"),
                            (["--seqlen", "-1"], "--seqlen")):
            self.refused(self.run_words("plan", *words), BAD_INPUT, says)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        sys.exit(__doc__)
    TILEWISE = str(Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=1)

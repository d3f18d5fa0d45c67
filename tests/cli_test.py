#!/usr/bin/env python3
"""The command line from outside: files in, files out, and what the commands print.

    cli_test.py build/bin/tilewise [-k NAME]
"""

import json
import math
import re
import struct
from pathlib import Path

from support.cli_command import BAD_INPUT, CANNOT_RUN, Command, DONE, ROOT, integers, main, qkv, raw, st, tensor


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

    def test_plan_of_a_quantised_cache(self):
        sizes = ("plan", "--device", "cpu", "--direction", "decode", "--dtype", "bf16", "--page-size", "16")
        for word, dtype in (("i8", "i8"), ("int8", "i8"), ("fp8", "f8e4m3")):
            answer = json.loads(self.run_words(*sizes, "--json", "--cache-dtype", word).stdout)
            self.assertIn(f"_{dtype}_rows_", answer["kernel"])
        plain = json.loads(self.run_words(*sizes, "--json").stdout)
        self.assertLess(answer["predicted_bytes"], 0.6 * plain["predicted_bytes"])

    def test_plan_follows_the_tuning_file(self):
        sizes = ("plan", "--device", "cpu", "--seqlen", "512")
        ranked = self.run_words(*sizes, "--explain").stdout
        second = re.search(r"^ +2 +(\S+)", ranked, re.MULTILINE).group(1)
        tuning = Path(self.at("tuning.txt"))
        tuning.write_text(f"forward f32 d64 q512 kv512 gqa1 full = {second} 1us\n")
        env = {"TILEWISE_TUNING": str(tuning)}
        self.assertEqual(json.loads(self.run_words(*sizes, "--json", env=env).stdout)["kernel"], second)
        self.assertRegex(self.run_words(*sizes, "--explain", env=env).stdout, second + ".*chosen: measured")

    def test_plan_of_a_file(self):
        st.write(self.source, qkv())
        done = self.run_words("plan", self.source, "--causal", "--direction", "forward")
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertIn("read as bshd", done.stdout)

    def test_plan_refuses(self):
        for words, says in ((["--heads", "3", "--heads-kv", "2"], "heads"), (["--dtype", "int4"], "--dtype"),
                            (["--direction", "sideways"], "--direction"), (["--head-dim", "0"], "--head-dim"),
                            (["--seqlen", "-1"], "--seqlen"), (["--cache-dtype", "u8"], "accepted: same, i8, f8e4m3"),
                            (["--cache-dtype", "i8", "--direction", "backward"], "takes no gradient")):
            self.refused(self.run_words("plan", *words), BAD_INPUT, says)


if __name__ == "__main__":
    main(__doc__)

#!/usr/bin/env python3
"""The command's refusals, from outside: exit status, one sentence on stderr that names the culprit, no output file.

    cli_refusals_test.py build/bin/tilewise [-k NAME]
"""

import json
import math
import re
import resource
import subprocess
from pathlib import Path

from support.cli_command import BAD_INPUT, CANNOT_RUN, Command, DONE, integers, main, qkv, raw, st, tensor


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

    def test_names_that_would_drive_a_terminal(self):
        tensors = {"k": tensor((1, 2, 1, 4)), "evil\x1b[2J": tensor((1,))}
        done = self.attend(tensors)
        self.refused(done, BAD_INPUT, "tensor q is missing", "'evil?[2J'")
        self.assertNotIn("\x1b", done.stderr)

    def test_values_that_a_conversion_makes_infinite(self):
        tensors = qkv()
        tensors["v"] = st.Tensor.of("F32", tensors["v"].shape, [70000.0] * math.prod(tensors["v"].shape))
        self.refused(self.attend(tensors, "--dtype", "f16"), BAD_INPUT, "v F32", "70000", "f16")
        self.refused(self.attend({**qkv(), "bias": st.Tensor.of("F64", [1, 1, 5, 7], [1e300] * 35)}), BAD_INPUT, "bias F64", "1e+300")
        unseen = st.Tensor.of("F64", [1, 1, 5, 7], [-math.inf] + [0.0] * 34)
        self.assertEqual(self.attend({**qkv(), "bias": unseen}).returncode, DONE)

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
                (["--softcap", "1e-46"], ["--softcap", "'1e-46'", "positive number of fp32"]),
                (["--dropout", "0.1", "--seed", "18446744073709551616"], ["--seed", "2^64 - 1"]),
                (["--window", "1,1", "--window", "2,2"], ["--window", "2 times", "once"]),
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

    def test_device_of_the_environment(self):
        for given in ("gpu", "cuda:", "cuda5", "cuda:x", "reference"):
            with self.subTest(given):
                done = self.attend(qkv(), env={"TILEWISE_DEVICE": given})
                self.refused(done, BAD_INPUT, f'TILEWISE_DEVICE is "{given}"', "cuda:N")
        done = self.attend(qkv(), "--device", "cpu", env={"TILEWISE_DEVICE": "cuda:99"})
        self.assertEqual(done.returncode, DONE, done.stderr)  # options come first

    def test_values_of_other_subcommands(self):
        for words, says in (
                (["bench", "--seqlen", "many"], ["--seqlen", "'many'", "a whole number, or several"]),
                (["bench", "--seqlen", "1,x"], ["--seqlen", "'1,x'", "whole number"]),
                (["bench", "--repeats", "1.5"], ["--repeats", "'1.5'", "a whole number"]),
                (["bench", "--window"], ["--window", "nothing", "several"]),
                (["bench", "--direction", "sideways"], ["--direction", "sideways", "step"]),
                (["verify", "--count", "x"], ["--count", "'x'", "a whole number"]),
                (["tune", "--seconds", "x"], ["--seconds", "'x'", "a number"]),
                (["plan", "--heads"], ["--heads", "nothing", "accepted is"]),
                (["plan", "--heads", "4", "--heads", "8"], ["--heads", "2 times", "once"]),
                (["plan", "--causal=middle"], ["--causal", "'middle'", "top-left"]),
                (["plan", "--layout", "bhsd"], ["--layout", "FILE"]),
                (["verify", "--case", "name=x seqlen_q=-1"], ["seqlen_q=-1"]),
                (["verify", "--json=maybe"], ["--json", "'maybe'", "without a value"])):
            with self.subTest(words=words):
                self.refused(self.run_words(*words), BAD_INPUT, *says)

    def test_plan_takes_a_file_or_sizes(self):
        st.write(self.source, qkv())
        self.refused(self.run_words("plan", self.source, "--seqlen", "5"), BAD_INPUT, "--seqlen", str(self.source))

    def test_output_nobody_can_read(self):
        """A full disk behind the standard output: not a word of success."""
        for words in (["--version"], ["--help"], ["plan", "--explain"], ["info"],
                      ["bench", "--seqlen", "16", "--heads", "1", "--json", "--repeats", "1"]):
            with self.subTest(words=words), open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([self.tilewise, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
                self.assertEqual(done.returncode, BAD_INPUT, done.stderr)
                self.assertIn("standard output", done.stderr)

    def test_subcommands(self):
        self.refused(self.run_words("atend"), BAD_INPUT, "'atend'", "attend")
        self.assertEqual(self.run_words().returncode, BAD_INPUT)
        self.refused(self.run_words("attend"), BAD_INPUT, "IN")

    def test_nothing_can_run_it(self):
        self.refused(self.attend(qkv(), "--device", "cuda:4096"), CANNOT_RUN, "CUDA")
        self.refused(self.attend(qkv(), "--device", "cuda:5000"), CANNOT_RUN, "CUDA")

    def test_every_kernel_says_why(self):
        """With CUDA kernels in the build, more reasons than a message of the C border holds."""
        listed = self.run_words("plan", "--explain", "--device", "cpu", "--head-dim", "577")
        kernels = set(re.findall(r"\bforward_\w+", listed.stdout))
        done = self.run_words("plan", "--device", "cpu", "--head-dim", "577")
        self.refused(done, CANNOT_RUN, "up to 576; the larger is 577")
        if any("_simt_" in name for name in kernels):
            self.assertGreater(len(done.stderr), 4096)
        self.assertGreater(len(kernels), 4)
        self.assertEqual(kernels - set(re.findall(r"\bforward_\w+", done.stderr)), set())

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
        whole = Path(self.source).read_bytes()
        again = self.at("x/../in.safetensors")
        self.at("x").mkdir()
        for words, says in ((["-o", again], "the input"), (["--report", again], "the input"),
                            (["-o", self.at("y"), "--report", self.at("x/../y")], "--output")):
            with self.subTest(words=words):
                self.refused(self.run_words("attend", self.source, *words), BAD_INPUT, f"which is {says} too", "file of its own")
                self.assertEqual(Path(self.source).read_bytes(), whole)

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

    def test_too_little_memory_for_random_tensors(self):
        sizes = ("--device", "cpu", "--seqlen", "2147483648", "--heads", "64", "--head-dim", "128")
        for words in (("bench",), ("tune", "--dry-run")):
            self.refused(self.run_words(*words, *sizes), CANNOT_RUN, "needs", "for its tensors", "free")

    def test_verification_that_fails_is_exit_1(self):
        # Values so large that fp16 outputs cannot hold them are infinite in ref and result alike: still exit 0.
        tensors = qkv(dtype="F16")
        tensors["v"] = st.Tensor.of("F16", tensors["v"].shape, [60000.0] * math.prod(tensors["v"].shape))
        self.assertEqual(self.attend(tensors, "--verify").returncode, DONE)


if __name__ == "__main__":
    main(__doc__)

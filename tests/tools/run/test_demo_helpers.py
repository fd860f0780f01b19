"""Tests of the helpers of the demo and of selector_table.py."""

import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "python"))
import batch_job  # noqa: E402
import demo  # noqa: E402
import needle_text  # noqa: E402
import selector_table  # noqa: E402
import tiny_model  # noqa: E402
import trace_overlap  # noqa: E402

FACT = re.compile(r"The code of ((?:[b-df-hj-np-tv-z][aeiou]){3}) is (\d{5})\.")


class Flags(unittest.TestCase):
    def run_script(self, name, *arguments):
        # -S: without the packages that are installed here
        return subprocess.run([sys.executable, "-S", ROOT / "tools" / "python" / name, *arguments],
                              capture_output=True, text=True, check=False)

    def test_help_needs_no_packages(self):
        for name in ("dump_qkv.py", "trace_overlap.py"):
            answer = self.run_script(name, "--help")
            self.assertEqual((answer.returncode, answer.stderr), (0, ""), name)
            self.assertIn("usage:", answer.stdout)

    def test_what_is_missing_is_named(self):
        answer = self.run_script("dump_qkv.py", "--model", "m", "--text", "t", "--tokens", "1", "--output", "o")
        self.assertEqual(answer.returncode, 2)
        self.assertRegex(answer.stderr, r"^dump_qkv: No module named .*; install torch, .*\n$")
        answer = self.run_script("trace_overlap.py", "nowhere.json")
        self.assertEqual(answer.returncode, 2)
        self.assertRegex(answer.stderr, r"^trace_overlap: nowhere.json: .*; give a trace of kvtier run --trace\n$")


class NeedleText(unittest.TestCase):
    def test_every_fact_is_there_once_and_nothing_else_looks_like_one(self):
        for seed in range(20):
            rng = random.Random(seed)
            facts = needle_text.make_facts(rng, 20)
            self.assertEqual(len(dict(facts)), 20)
            text = needle_text.make_document(3000 + seed, facts, rng)
            self.assertEqual(len(text.encode()), 3000 + seed)
            self.assertEqual(sorted(FACT.findall(text)), sorted(facts))
            rest = FACT.sub("", text)
            self.assertIsNone(re.search(r"\d|code of", rest))

    def test_facts_are_spread_over_the_whole_text(self):
        rng = random.Random(3)
        facts = needle_text.make_facts(rng, 20)
        text = needle_text.make_document(16384, facts, rng)
        places = [match.start() for match in FACT.finditer(text)]
        for i, place in enumerate(places):
            self.assertLess(abs(place / len(text) - (i + 0.5) / 20), 0.06)

    def test_same_seed_same_text(self):
        texts = []
        for _ in range(2):
            rng = random.Random(8)
            texts.append(needle_text.make_document(2000, needle_text.make_facts(rng, 5), rng))
        self.assertEqual(texts[0], texts[1])

    def test_any_length_from_the_facts_on(self):
        rng = random.Random(4)
        facts = needle_text.make_facts(rng, 3)
        least = sum(len(f"The code of {name} is {code}. ") for name, code in facts)
        for tokens in range(least, least + 300):
            self.assertEqual(len(needle_text.make_document(tokens, facts, rng)), tokens)
        with self.assertRaisesRegex(ValueError, str(least)):
            needle_text.make_document(least - 1, facts, rng)


class TraceOverlap(unittest.TestCase):
    def test_seconds_of_each_combination(self):
        spans = [("activations", "attend", 0.0, 4.0), ("disk/read 0", "read", 1.0, 3.0),
                 ("disk/read 1", "read", 2.0, 5.0), ("device/h2d", "copy_h2d", 2.5, 3.5),
                 ("disk/write 0", "write", 0.0, 9.0), ("decoder", "layer", 0.0, 9.0)]
        seconds = trace_overlap.overlaps(spans)
        self.assertAlmostEqual(seconds[frozenset(["attention"])], 1.0)
        self.assertAlmostEqual(seconds[frozenset(["attention", "disk reads"])], 2.0)
        self.assertAlmostEqual(seconds[frozenset(["attention", "disk reads", "copies"])], 1.0)
        self.assertAlmostEqual(seconds[frozenset(["disk reads"])], 1.0)
        self.assertEqual(len(seconds), 4)
        self.assertAlmostEqual(trace_overlap.busy_together(seconds, "disk reads"), 4.0)

    def test_nothing_overlaps_one_after_another(self):
        seconds = trace_overlap.overlaps([("a", "attend", 0.0, 1.0), ("b", "copy_d2h", 1.0, 2.0)])
        self.assertEqual(max(len(busy) for busy in seconds), 1)

    def test_reads_a_trace(self):
        events = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "disk/read 0"}},
                  {"ph": "X", "name": "read", "pid": 1, "tid": 7, "ts": 1000000, "dur": 500000}]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"traceEvents": events}, file)
            self.assertEqual(trace_overlap.load_spans(path), [("disk/read 0", "read", 1.0, 1.5)])
            self.assertIn("disk reads 0.50 s", trace_overlap.describe(path))


def result(answers, summary=None):
    """answers: id -> (token ids, logits)."""
    return batch_job.Result({name: {"id": name, "token_ids": ids} for name, (ids, _) in answers.items()}, summary or {},
                            {name: {"id": name, "token_ids": ids, "logits": rows}
                             for name, (ids, rows) in answers.items()})


class BatchJob(unittest.TestCase):
    def test_logits_are_compared_as_long_as_the_texts_agree(self):
        full = result({"a": ([1, 2, 3], [[1.0, -4.0], [2.0, 1.0], [8.0, 0.0]]), "b": ([5], [[10.0, 0.0]])})
        other = result({"a": ([1, 7, 3], [[1.0, -3.0], [2.0, 2.0], [0.0, 0.0]]), "b": ([5], [[10.0, 1.0]])})
        self.assertEqual(batch_job.logit_differences(other, full), [0.25, 0.5, 0.1])
        self.assertEqual(batch_job.logit_differences(full, full), [0.0] * 4)
        self.assertEqual(batch_job.same_answers(other, full), 1)

    def test_failed_prompts_and_shorter_texts_are_left_out(self):
        full = result({"a": ([1, 2], [[1.0], [2.0]]), "b": ([5], [[10.0]])})
        other = result({"a": ([1], [[2.0]]), "b": ([5], [[10.0]])})
        other.answers["b"] = other.logits["b"] = {"id": "b", "error": "gone"}
        self.assertEqual(batch_job.logit_differences(other, full), [1.0])
        self.assertEqual(batch_job.same_answers(other, full), 0)
        full.answers["b"] = full.logits["b"] = {"id": "b", "error": "gone"}
        self.assertEqual(batch_job.logit_differences(other, full), [1.0])

    def test_kv_of_a_text_counts_the_full_layers(self):
        # Two full layers, two heads of 128, keys and values of two bytes.
        self.assertEqual(batch_job.text_kv_bytes(ROOT / "tests/data/needle", 1000), 1000 * 2 * 2 * 128 * 4)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            tiny_model.write_model(path, 64)
            self.assertEqual(batch_job.text_kv_bytes(path, 10), 10 * 2 * 2 * 64 * 4)

    def test_a_failure_is_raised_with_its_code(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(batch_job.JobFailed) as caught:
            batch_job.run("false", "model", "prompts", pathlib.Path(folder), "x")
        self.assertEqual(caught.exception.returncode, 1)


class TinyModel(unittest.TestCase):
    def test_a_safetensors_file_whose_offsets_fit(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            tiny_model.write_model(path, 128, 3)
            blob = (path / "model.safetensors").read_bytes()
            length, = struct.unpack("<Q", blob[:8])
            self.assertEqual(length % 8, 0)
            tensors = json.loads(blob[8:8 + length])
            end = 0
            for tensor in tensors.values():
                self.assertEqual(tensor["data_offsets"][0], end)
                end = tensor["data_offsets"][1]
                count = 1
                for size in tensor["shape"]:
                    count *= size
                self.assertEqual(end - tensor["data_offsets"][0], 2 * count)
            self.assertEqual(len(blob), 8 + length + end)
            self.assertEqual(tensors["model.layers.1.self_attn.q_proj.weight"]["shape"], [512, 64])
            again = pathlib.Path(folder) / "again"
            tiny_model.write_model(again, 128, 3)
            self.assertEqual((again / "model.safetensors").read_bytes(), blob)

    def test_rounds_to_bf16(self):
        words = struct.unpack("<4H", tiny_model.to_bf16([1.0, -2.5, 1.0 + 2**-8 + 2**-10, 0.0]))
        self.assertEqual(words, (0x3f80, 0xc020, 0x3f81, 0))


class SelectorTable(unittest.TestCase):
    def test_every_case_has_prompts_of_the_wanted_length(self):
        for case in ("trained", "needle", "random"):
            make = getattr(selector_table, f"{case}_prompts")
            prompts = make(2048, random.Random(1))
            self.assertEqual(len({name for name, _, _ in prompts}), selector_table.QUESTIONS)
            for _, prompt, _ in prompts:
                self.assertLess(abs(len(prompt) - 2048), 600)
                document = prompts[0][1][:1024]
                self.assertEqual(prompt[:1024], document)
        with self.assertRaisesRegex(ValueError, "131072"):
            selector_table.trained_prompts(1 << 20, None)


class Demo(unittest.TestCase):
    def rows(self, full, sketch, none):
        return {name: {"right": right, "questions": 50}
                for name, right in (("full", full), ("sketch", sketch), ("none", none), ("topk", 0))}

    def test_says_what_did_not_come_out_as_it_should(self):
        for good in ((50, 50, 0), (50, 49, 5)):
            self.assertEqual(list(demo.verdict(self.rows(*good))), [])
        for bad, mention in (((49, 49, 0), "full"), ((50, 48, 0), "sketch"), ((50, 50, 6), "none")):
            problems = list(demo.verdict(self.rows(*bad)))
            self.assertEqual(len(problems), 1)
            self.assertTrue(problems[0].startswith(mention))


if __name__ == "__main__":
    unittest.main()

"""Tests of the demo's helpers: the text generator and the overlap of a trace."""

import json
import os
import pathlib
import random
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools" / "python"))
import needle_text  # noqa: E402
import trace_overlap  # noqa: E402

FACT = re.compile(r"The code of ((?:[b-df-hj-np-tv-z][aeiou]){3}) is (\d{5})\.")


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


if __name__ == "__main__":
    unittest.main()

"""How far each selector's logits are from those of `full`, by budget.

For every case a model answers a few prompts about one long text, with device memory for a part of the KV cache, once
per selector. Cases: trained, needle, random64, random128, random256 (tiny models with random weights).
"""

import argparse
import json
import pathlib
import random
import sys

import batch_job
import needle_text
import tiny_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
CASES = ("trained", "needle", "random64", "random128", "random256")
QUESTIONS, QUESTION_TOKENS, NEW_TOKENS = 8, 64, 4


def parse_arguments():
    parser = argparse.ArgumentParser(prog="selector_table.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {' '.join(CASES)} (default: all)")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bin/kvtier")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/selector_table", help="folder for all files")
    parser.add_argument("--tokens", type=int, default=16384, help="of the text (default 16384)")
    parser.add_argument("--seed", type=int, default=1, help="of texts and of what is drawn (default 1)")
    parser.add_argument("--budgets", default="0.005,0.02,0.1,1", help="list (default 0.005,0.02,0.1,1)")
    parser.add_argument("--selectors", default="topk;sketch:bits=2", metavar="LIST",
                        help="separated by ; each is run with every budget (default 'topk;sketch:bits=2')")
    parser.add_argument("--device-share", type=int, default=8, metavar="N", help="device memory for 1/N (default 8)")
    parser.add_argument("--host-share", type=int, default=4, metavar="N",
                        help="host memory for 1/N, disk for the rest; 1 = no disk (default 4)")
    parser.add_argument("--kv-dtype", choices=("bf16", "fp16", "fp32"),
                        help="of stored keys and values (default bf16; fp32 for random models, which blow up what "
                        "rounding does)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the rows there as well")
    arguments = parser.parse_args()
    for case in arguments.cases:
        if case not in CASES:
            parser.error(f"'{case}' is not a case; there are: {' '.join(CASES)}")
    arguments.cases = arguments.cases or CASES
    return arguments


def trained_prompts(tokens, _rng):
    """The text's beginning up to eight places."""
    text = (DATA / "trained" / "text.txt").read_text(encoding="utf-8")
    if tokens > len(text):
        raise ValueError(f"--tokens: {tokens} are more than the {len(text)} of the trained model's text")
    ends = [tokens - QUESTION_TOKENS * i for i in range(QUESTIONS)]
    return [(f"to {end}", text[:end], NEW_TOKENS) for end in ends]


def needle_prompts(tokens, rng):
    facts = needle_text.make_facts(rng, QUESTIONS)
    document = needle_text.make_document(tokens, facts, rng)
    return [(name, document + needle_text.question(name), NEW_TOKENS) for name, _ in facts]


def random_prompts(tokens, rng):
    def ids(count):
        return [rng.randrange(256) for _ in range(count)]

    document = ids(tokens)
    return [(f"question {i}", document + ids(QUESTION_TOKENS), NEW_TOKENS) for i in range(QUESTIONS)]


def prepare(case, arguments):
    """(model folder, prompts)"""
    rng = random.Random(arguments.seed)
    if case.startswith("random"):
        model = arguments.work / case
        tiny_model.write_model(model, int(case.removeprefix("random")), arguments.seed)
        return model, random_prompts(arguments.tokens, rng)
    make = trained_prompts if case == "trained" else needle_prompts
    return DATA / case, make(arguments.tokens, rng)


def tier_flags(arguments, kv_bytes):
    disk = arguments.work / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    flags = ["--device-memory", kv_bytes // arguments.device_share]
    if arguments.host_share == 1:
        return [*flags, "--host-memory", 2 * kv_bytes]
    return [*flags, "--host-memory", kv_bytes // arguments.host_share, "--disk", f"{disk}:{2 * kv_bytes}"]


def selector_texts(arguments):
    """(text, budget) of every run but that of `full`."""
    yield "none", 0.0
    for selector in arguments.selectors.split(";"):
        for budget in arguments.budgets.split(","):
            join = "," if ":" in selector else ":"
            yield f"{selector}{join}budget={budget}", float(budget)


def measure(case, selector, budget, result, full):
    summary = result.summary
    differences = batch_job.logit_differences(result, full)
    return {"case": case, "selector": selector, "budget": budget, "rows_read": summary["attended_fraction"],
            "keys_scored": batch_job.offloaded_share(summary), "logit_difference_max": max(differences),
            "logit_difference_mean": sum(differences) / len(differences), "error_bound": summary["error_bound"],
            "error_estimate": summary["error_estimate"], "certified": summary["certified_fraction"], "shrink": summary["mean_shrink"],
            "same_answers": batch_job.same_answers(result, full), "prompts": len(full.answers),
            "seconds": summary["seconds"]}


def percent(value):
    return "-" if value is None else f"{100 * value:.2f} %"


def number(value):
    return "-" if value is None else f"{value:.2g}"


def print_rows(rows):
    head = ("selector", "rows read", "keys scored", "logits, mean", "logits, max", "error bound", "certified",
            "error figure", "shrink", "same answers")
    lines = [head]
    for row in rows:
        lines.append((row["selector"], percent(row["rows_read"]), percent(row["keys_scored"]),
                      number(row["logit_difference_mean"]), number(row["logit_difference_max"]),
                      number(row["error_bound"]), percent(row["certified"]), number(row["error_estimate"]),
                      number(row["shrink"]),
                      f"{row['same_answers']} of {row['prompts']}"))
    widths = [max(map(len, column)) + 2 for column in zip(*lines)]
    for line in lines:
        print("".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def run_case(case, arguments):
    model, prompts = prepare(case, arguments)
    kv_dtype = arguments.kv_dtype or ("fp32" if case.startswith("random") else "bf16")
    kv_bytes = batch_job.text_kv_bytes(model, arguments.tokens) * (2 if kv_dtype == "fp32" else 1)
    folder = arguments.work / f"{case}-jobs"
    folder.mkdir(parents=True, exist_ok=True)
    batch_job.write_prompts(folder / "prompts.jsonl", prompts)

    def run(name, selector):
        return batch_job.run(arguments.binary, model, folder / "prompts.jsonl", folder, name, "--selector", selector,
                             "--question-tokens", QUESTION_TOKENS, "--kv-dtype", kv_dtype, "--seed", arguments.seed,
                             *tier_flags(arguments, kv_bytes))

    full = run("full", "full")
    rows = [measure(case, "full", 1.0, full, full)]
    for i, (selector, budget) in enumerate(selector_texts(arguments)):
        rows.append(measure(case, selector, budget, run(f"run{i}", selector), full))
    shares = f"device 1/{arguments.device_share}, host " + (
        "the rest" if arguments.host_share == 1 else f"1/{arguments.host_share}, disk the rest")
    print(f"\n{case}: {arguments.tokens} tokens, KV {kv_bytes / 2**20:.1f} MiB in {kv_dtype}; {shares}\n")
    print_rows(rows)
    return rows


def main():
    arguments = parse_arguments()
    rows = []
    try:
        for case in arguments.cases:
            rows += run_case(case, arguments)
    except batch_job.JobFailed as error:
        sys.exit(error.returncode)
    except ValueError as error:
        sys.exit(f"selector_table.py: {error}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The demo: the same questions about one long text, with device memory for 1/16 of the KV cache, host RAM for 1/4 and
disk for the rest, once per selector. The text is read exactly; what differs is which offloaded tokens the questions
and answers see. Called by tools/demo.sh.
"""

import argparse
import json
import pathlib
import random
import sys

import batch_job
import needle_text
import trace_overlap

TIERS = ("device", "host", "disk")
BUDGET = "0.02"
SELECTORS = {"full": "full", "none": "none", "topk": f"topk:budget={BUDGET}", "sketch": f"sketch:budget={BUDGET}"}
DEVICE_SHARE, HOST_SHARE = 16, 4
QUESTION_TOKENS, NEW_TOKENS = 32, 6  # a question is 21 tokens


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tools/demo.sh", description=__doc__)
    parser.add_argument("--tokens", type=int, default=32768, help="length of the text (default 32768)")
    parser.add_argument("--facts", type=int, default=50, help="facts and questions (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="of the text and of what is drawn (default 1)")
    parser.add_argument("--device", default="auto", help="auto, host or cuda (default auto)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--binary", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_selectors(arguments, document, facts):
    """Results by selector. Raises batch_job.JobFailed."""
    disk = arguments.work / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    prompts = arguments.work / "prompts.jsonl"
    batch_job.write_prompts(prompts, [(name, document + needle_text.question(name), NEW_TOKENS) for name, _ in facts])
    kv_bytes = batch_job.text_kv_bytes(arguments.model, arguments.tokens)
    flags = ["--device", arguments.device, "--device-memory", kv_bytes // DEVICE_SHARE, "--host-memory",
             kv_bytes // HOST_SHARE, "--disk", f"{disk}:{kv_bytes}", "--seed", arguments.seed,
             "--question-tokens", QUESTION_TOKENS]
    return {name: batch_job.run(arguments.binary, arguments.model, prompts, arguments.work, name, "--selector", text,
                                *flags, *(["--trace", trace_path(arguments)] if name == "sketch" else []))
            for name, text in SELECTORS.items()}


def trace_path(arguments):
    return arguments.work / "trace.json"


def count_right(result, facts):
    return sum(result.answers[name].get("text", "").strip() == code for name, code in facts)


def measure(result, full, facts):
    """What the table says about one selector."""
    summary = result.summary
    return {"selector": summary["selector"], "right": count_right(result, facts), "questions": len(facts),
            "same_answers": batch_job.same_answers(result, full), "rows_read": summary["attended_fraction"],
            "keys_scored": batch_job.offloaded_share(summary),
            "logit_difference": max(batch_job.logit_differences(result, full), default=None),
            "error_bound": summary["error_bound"], "error_bound_max": summary["error_bound_max"],
            "error_estimate": summary["error_estimate"], "certified": summary["certified_fraction"], "tiers": summary["tiers"],
            "index_bytes": summary["index_peak_bytes"], "disk_read_bytes": summary["disk_read_bytes"],
            "prefill_tokens_per_second": summary["prefill_tokens_per_second"],
            "decode_tokens_per_second": summary["decode_tokens_per_second"], "seconds": summary["seconds"]}


def mebibytes(count):
    return f"{count / 2**20:.1f} MiB"


def percent(value):
    return f"{100 * value:.2f} %"


def bound(row):
    if row["error_bound"] is None:
        return "none"
    if row["error_bound_max"] is None:
        return f"{row['error_bound']:.2g}"
    return f"{row['error_bound']:.2g} ({row['error_bound_max']:.2g})"


def peak(tier):
    return f"{tier['peak_bytes'] / 2**20:.1f} of {mebibytes(tier['cap_bytes'])}" if tier["cap_bytes"] else "-"


def print_table(rows):
    def line(label, cell):
        print((f"{label:<29}" + "".join(f"{cell(row):<21}" for row in rows.values())).rstrip())

    line("", lambda row: row["selector"].split(",")[0])
    line("offloaded rows read", lambda row: percent(row["rows_read"]))
    line("keys scored to choose them", lambda row: percent(row["keys_scored"]) if row["keys_scored"] else "-")
    line("answers right", lambda row: f"{row['right']} of {row['questions']}")
    line("largest logit difference", lambda row: f"{row['logit_difference']:.2g}")
    line("error bound, mean (largest)", bound)
    line("certified", lambda row: "-" if row["certified"] is None else percent(row["certified"]))
    line("error, as a figure", lambda row: "-" if row["error_estimate"] is None else f"{row['error_estimate']:.2g}")
    for tier in TIERS:
        line(f"{tier}, peak of cap", lambda row, tier=tier: peak(row["tiers"][tier]))
    line("token indexes, in host", lambda row: mebibytes(row["index_bytes"]) if row["index_bytes"] else "-")
    line("disk read", lambda row: mebibytes(row["disk_read_bytes"]))
    line("prefill, tokens/s", lambda row: f"{row['prefill_tokens_per_second']:.0f}")
    line("decode, tokens/s", lambda row: f"{row['decode_tokens_per_second']:.1f}")
    line("seconds", lambda row: f"{row['seconds']:.1f}")


def verdict(rows):
    """What did not come out as it should, one line each."""
    right = {name: row["right"] for name, row in rows.items()}
    questions = rows["full"]["questions"]
    if right["full"] != questions:
        yield f"full answers {right['full']} of {questions}; all are expected"
    if right["sketch"] < right["full"] - 1:
        yield f"sketch answers {right['sketch']}; at most one fewer than full's {right['full']} is expected"
    if right["none"] > questions // 10:
        yield f"none answers {right['none']}; at most a tenth of {questions} is expected"


def describe_run(arguments, summary):
    direct = "O_DIRECT" if summary["disk_direct"] else "no O_DIRECT: the page cache takes part"
    print(f"\ndevice     {summary['device']['name']} ({summary['device']['backend']}), kernels {summary['isa']}; disk by "
          f"{summary['io_backend']}, {direct}")
    print(trace_overlap.describe(trace_path(arguments)))
    print(f"trace      {trace_path(arguments)} (of the sketch run)\n"
          "           open https://ui.perfetto.dev and drop the file there")


def main():
    arguments = parse_arguments()
    rng = random.Random(arguments.seed)
    facts = needle_text.make_facts(rng, arguments.facts)
    try:
        document = needle_text.make_document(arguments.tokens, facts, rng)
        results = run_selectors(arguments, document, facts)
    except ValueError as error:
        sys.exit(f"tools/demo.sh: --tokens: {error}")
    except batch_job.JobFailed as error:
        sys.exit(f"tools/demo.sh: {error}; where memory is too small, a longer text (--tokens) gives more")
    rows = {name: measure(result, results["full"], facts) for name, result in results.items()}
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    kv_bytes = batch_job.text_kv_bytes(arguments.model, arguments.tokens)
    print(f"\n{len(facts)} questions about facts hidden in a text of {arguments.tokens} tokens (seed {arguments.seed}).\n"
          f"KV {mebibytes(kv_bytes)}: device memory for 1/{DEVICE_SHARE}, host RAM for 1/{HOST_SHARE}, disk for the "
          "rest. The text is read exactly,\nonce per selector; the last "
          f"{QUESTION_TOKENS} tokens of each prompt, with the question, and its answer go through the selector.\n")
    print_table(rows)
    describe_run(arguments, results["sketch"].summary)
    problems = list(verdict(rows))
    print(f"result     {'; '.join(problems) or 'as expected: sketch answers as full does, none does not'}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

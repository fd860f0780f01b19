"""The demo: the same questions about one long text, once with the KV cache on the device and once with it
spread over device, host RAM and disk. Called by tools/demo.sh.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys

import needle_text
import trace_overlap

TIERS = ("device", "host", "disk")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tools/demo.sh", description=__doc__)
    parser.add_argument("--tokens", type=int, default=16384, help="length of the text (default 16384)")
    parser.add_argument("--facts", type=int, default=20, help="facts and questions (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the text (default 1)")
    parser.add_argument("--binary", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_prompts(path, document, facts):
    with open(path, "w", encoding="utf-8") as file:
        for name, _ in facts:
            line = {"id": name, "prompt": document + needle_text.question(name), "max_tokens": 6}
            file.write(json.dumps(line) + "\n")


def run(arguments, name, *flags):
    """Runs the batch job and returns (results by id, summary)."""
    output = arguments.work / f"{name}.jsonl"
    command = [arguments.binary, "run", "--model", arguments.model, "--input",
               arguments.work / "prompts.jsonl", "--output", output, "--json", *flags]
    print("$", " ".join(str(word) for word in command), file=sys.stderr, flush=True)
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if finished.returncode != 0:
        sys.exit(finished.returncode)
    with open(output, encoding="utf-8") as file:
        results = {line["id"]: line for line in map(json.loads, file)}
    return results, json.loads(finished.stdout)


def count_right(results, facts):
    return sum(results[name].get("text", "").strip() == code for name, code in facts)


def mebibytes(count):
    return f"{count / 2**20:.1f} MiB"


def print_table(facts, runs):
    def row(label, cells):
        print((f"{label:<22}" + "".join(f"{cell:<26}" for cell in cells)).rstrip())

    row("", ["all on the device", "device 1/8, host 1/4, disk"])
    row("answers right", [f"{count_right(results, facts)} of {len(facts)}" for results, _ in runs])
    for tier in TIERS:
        row(f"{tier}, peak of cap",
            [f"{mebibytes(s['tiers'][tier]['peak_bytes'])} of {mebibytes(s['tiers'][tier]['cap_bytes'])}"
             if s["tiers"][tier]["cap_bytes"] else "-" for _, s in runs])
    row("disk read, written", [f"{mebibytes(s['disk_read_bytes'])}, {mebibytes(s['disk_written_bytes'])}"
                               for _, s in runs])
    row("prefill", [f"{s['prefill_tokens_per_second']:.0f} tokens/s" for _, s in runs])
    row("decode", [f"{s['decode_tokens_per_second']:.1f} tokens/s" for _, s in runs])
    row("seconds", [f"{s['seconds']:.1f}" for _, s in runs])


def main():
    arguments = parse_arguments()
    rng = random.Random(arguments.seed)
    facts = needle_text.make_facts(rng, arguments.facts)
    try:
        document = needle_text.make_document(arguments.tokens, facts, rng)
    except ValueError as error:
        sys.exit(f"tools/demo.sh: --tokens: {error}")
    disk = arguments.work / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    write_prompts(arguments.work / "prompts.jsonl", document, facts)

    resident = run(arguments, "resident")
    kv_bytes = resident[1]["kv_bytes"]
    trace = arguments.work / "trace.json"
    tiered = run(arguments, "tiered", "--device-memory", str(kv_bytes // 8), "--host-memory",
                 str(kv_bytes // 4), "--disk", f"{disk}:{kv_bytes}", "--trace", trace)

    summary = tiered[1]
    direct = "O_DIRECT" if summary["disk_direct"] else "no O_DIRECT: the page cache takes part"
    print(f"\n{len(facts)} questions about facts hidden in a text of {arguments.tokens} tokens "
          f"(seed {arguments.seed}); KV {mebibytes(kv_bytes)}\n")
    print_table(facts, (resident, tiered))
    print(f"\ndevice     {summary['device']['name']} ({summary['device']['backend']}), kernels "
          f"{summary['isa']}; disk by {summary['io_backend']}, {direct}")
    print(trace_overlap.describe(trace))
    print(f"trace      {trace}\n           open https://ui.perfetto.dev and drop the file there")
    same = all(resident[0][name].get("token_ids") == tiered[0][name].get("token_ids")
               for name, _ in facts)
    print(f"output     {'identical in both runs' if same else 'DIFFERS between the runs'}")
    right = [count_right(results, facts) for results, _ in (resident, tiered)]
    sys.exit(0 if same and right == [len(facts)] * 2 else 1)


if __name__ == "__main__":
    main()

"""Runs `kvtier run` and compares what it answers."""

import collections
import json
import subprocess
import sys

Result = collections.namedtuple("Result", "answers summary logits")


class JobFailed(Exception):
    """The command did not succeed; it has said why on stderr."""

    def __init__(self, returncode):
        super().__init__(f"kvtier run ended with {returncode}")
        self.returncode = returncode


def write_prompts(path, prompts):
    """`prompts`: (id, text or token ids, new tokens)."""
    with open(path, "w", encoding="utf-8") as file:
        for name, prompt, max_tokens in prompts:
            key = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
            file.write(json.dumps({"id": name, key: prompt, "max_tokens": max_tokens}) + "\n")


def read_lines(path):
    """The objects of a results file by id."""
    with open(path, encoding="utf-8") as file:
        return {line["id"]: line for line in map(json.loads, file)}


def run(binary, model, prompts, work, name, *flags):
    """Runs one job; its files are WORK/NAME.jsonl and WORK/NAME.logits.jsonl. Raises JobFailed."""
    output, logits = work / f"{name}.jsonl", work / f"{name}.logits.jsonl"
    command = [binary, "run", "--model", model, "--input", prompts, "--output", output, "--logits",
               logits, "--json", *flags]
    print("$", " ".join(str(word) for word in command), file=sys.stderr, flush=True)
    finished = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=False)
    if finished.returncode != 0:
        raise JobFailed(finished.returncode)
    return Result(read_lines(output), json.loads(finished.stdout), read_lines(logits))


def text_kv_bytes(model, tokens):
    """Bytes of the keys and values of `tokens` tokens in the full layers, 16 bits each.

    What the windows of sliding layers add is left out, so a share of this is no more than a share of all.
    """
    with open(model / "config.json", encoding="utf-8") as file:
        config = json.load(file)
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    row = 2 * 2 * config["num_key_value_heads"] * head_dim
    return kinds.count("full_attention") * tokens * row


def logit_differences(result, reference):
    """max |difference| / max |logit| of every new token of every prompt whose text so far is the same."""
    differences = []
    for name, expected in reference.logits.items():
        found = result.logits[name]
        for i, token in enumerate(expected.get("token_ids", [])):
            if i >= len(found.get("token_ids", [])):
                break
            rows = found["logits"][i], expected["logits"][i]
            differences.append(max(abs(a - b) for a, b in zip(*rows)) / max(map(abs, rows[1])))
            if found["token_ids"][i] != token:
                break
    return differences


def same_answers(result, reference):
    """Prompts with the same new tokens in both."""
    return sum(result.answers[name].get("token_ids") == answer["token_ids"]
               for name, answer in reference.answers.items() if "token_ids" in answer)


def offloaded_share(summary):
    """Keys scored over the offloaded rows that there were: of topk, which reads every key."""
    rows = summary["offloaded_rows"]
    return summary["keys_scored"] / rows if rows else 0.0

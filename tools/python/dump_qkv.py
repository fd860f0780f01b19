#!/usr/bin/env python3
"""Dumps keys, values and queries of a Hugging Face causal LM over a text, for `kvtier eval --data dump:FILE`.

The file is safetensors; for each full-attention layer i, RoPE applied:

    layer.<i>.k            [kv_heads, tokens, head_dim]
    layer.<i>.v            [kv_heads, tokens, head_dim]
    layer.<i>.q            [query_heads, queries, head_dim]   softmax takes q.k / sqrt(head_dim)
    layer.<i>.q_positions  [queries] int64                    query i sees the tokens 0 to q_positions[i]

Queries lie evenly spaced over the last 1,024 tokens. Needs torch, transformers (5 or later) and safetensors.
"""

import argparse
import pathlib
import sys


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the model and its tokenizer")
    parser.add_argument("--text", required=True, type=pathlib.Path, help="UTF-8 text to read")
    parser.add_argument("--tokens", required=True, type=positive, help="of the text, from its beginning")
    parser.add_argument("--queries", type=positive, default=16, help="query positions (default 16)")
    parser.add_argument("--layers", type=int, nargs="+", help="full layers to dump (default: all of them)")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="file to write")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32"],
                        help="in which the model computes and is dumped (default: its own)")
    parser.add_argument("--device", default="cpu", help="torch device (default cpu)")
    parser.add_argument("--chunk", type=positive, default=2048, help="tokens per forward pass (default 2048)")
    options = parser.parse_args()
    try:
        # Not before the flags were read: these take seconds to import, or are not there.
        import qkv_recorder
        from safetensors import SafetensorError
    except ImportError as error:
        print(f"dump_qkv: {error}; install torch, transformers (5 or later) and safetensors", file=sys.stderr)
        return 2
    try:
        recorder = qkv_recorder.dump(options)
    except (ValueError, OSError, SafetensorError) as error:
        print(f"dump_qkv: {error}", file=sys.stderr)
        return 2
    layers = sorted(recorder.queries)
    print(f"{options.output}: layers {layers}, {options.tokens} tokens, {len(recorder.positions)} queries")
    return 0


if __name__ == "__main__":
    sys.exit(main())

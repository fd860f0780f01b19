"""Writes small models with random weights, whose logits depend on attention: folders that `kvtier run` takes.

Run as a program: tiny_model.py DIR [HEAD_DIM [SEED]]
"""

import json
import math
import pathlib
import random
import shutil
import struct
import sys

TOKENIZER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "needle" / "tokenizer.json"


def config(head_dim):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
            "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": head_dim, "hidden_act": "silu", "max_position_embeddings": 1 << 20, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
            "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": 10, "pad_token_id": None}


def shapes(c):
    """Name and shape of every tensor."""
    hidden, inner, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    queries, keys = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (queries, hidden)
        yield at + "self_attn.k_proj.weight", (keys, hidden)
        yield at + "self_attn.v_proj.weight", (keys, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, queries)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "mlp.gate_proj.weight", (inner, hidden)
        yield at + "mlp.up_proj.weight", (inner, hidden)
        yield at + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def values(rng, name, shape):
    """Wide enough queries and keys that attention looks at some tokens more than at others."""
    if "norm" in name:
        return [1 + 0.2 * rng.gauss(0, 1) for _ in range(shape[0])]
    scale = 1.0 if "embed" in name else (2.0 if "q_proj" in name or "k_proj" in name else 1.0) / math.sqrt(shape[1])
    return [scale * rng.gauss(0, 1) for _ in range(shape[0] * shape[1])]


def to_bf16(numbers):
    words = struct.unpack(f"<{len(numbers)}I", struct.pack(f"<{len(numbers)}f", *numbers))
    return struct.pack(f"<{len(numbers)}H", *((word + 0x8000) >> 16 & 0xffff for word in words))


def write_model(folder, head_dim=64, seed=1):
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    model = config(head_dim)
    header, data = {}, b""
    for name, shape in shapes(model):
        piece = to_bf16(values(rng, name, shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(model, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(TOKENIZER, folder / "tokenizer.json")


if __name__ == "__main__":
    write_model(pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:]))

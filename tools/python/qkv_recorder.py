"""Runs a model over a text and records the keys, values and queries of its attention; see dump_qkv.py."""

import inspect
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "kvtier_dump"
SPREAD = 1024  # positions before the end over which queries are spaced
HEAD_DIMS = (64, 128, 256)
MOST_HEADS = 8  # query heads per KV head that kvtier judges


class Recorder:
    """Stands in for a model's attention: keeps what arrives, then lets torch attend."""

    def __init__(self, layers, positions, tokens):
        self.layers, self.tokens = layers, tokens
        self.positions = torch.tensor(positions, dtype=torch.int64)
        self.begin = 0  # position of the first token of the forward pass that runs
        self.seen, self.sliding, self.queries, self.tensors = set(), set(), {}, {}

    def __call__(self, module, query, key, value, attention_mask, scaling=None, sliding_window=None, **more):
        layer = module.layer_idx
        self.seen.add(layer)
        if sliding_window is not None:
            self.sliding.add(layer)
        elif self.layers is None or layer in self.layers:
            if more.get("softcap") is not None:
                raise ValueError(f"layer {layer} caps its logits (softcap), which kvtier cannot judge")
            self.keep(layer, query[0], key[0], value[0], scaling)
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling,
                                      sliding_window=sliding_window, **more)

    def keep(self, layer, query, key, value, scaling):
        head_dim = query.shape[-1]
        if head_dim not in HEAD_DIMS or value.shape[-1] != head_dim or query.shape[0] > MOST_HEADS * key.shape[0]:
            raise ValueError(f"layer {layer} has {query.shape[0]} query heads and {key.shape[0]} KV heads of dimension "
                             f"{head_dim}; kvtier judges dimensions 64, 128 and 256 and up to 8 query heads per KV head")
        here = self.positions[(self.positions >= self.begin) & (self.positions < self.begin + query.shape[1])]
        rows = query[:, (here - self.begin).to(query.device)]
        if scaling is not None:
            rows = rows * (scaling * head_dim**0.5)
        self.queries.setdefault(layer, []).append(rows.cpu())
        if self.begin + query.shape[1] == self.tokens:
            prefix = f"layer.{layer}."
            self.tensors[prefix + "k"] = key.cpu().contiguous().clone()
            self.tensors[prefix + "v"] = value.cpu().contiguous().clone()
            self.tensors[prefix + "q"] = torch.cat(self.queries[layer], dim=1).contiguous()
            self.tensors[prefix + "q_positions"] = self.positions.clone()

    def check(self):
        full = sorted(self.seen - self.sliding)
        wrong = sorted(set(self.layers or []) - set(full))
        if wrong or not full:
            raise ValueError(f"layers {wrong} have no full attention; use some of {full}" if full else
                             "the model has no full-attention layer that asks transformers for its attention")


def query_positions(tokens, queries):
    spread = min(tokens, SPREAD)
    made = min(queries, spread)
    return [tokens - spread + i * spread // made - 1 for i in range(1, made + 1)]


def read_tokens(folder, text, tokens):
    ids = AutoTokenizer.from_pretrained(folder)(text.read_text(encoding="utf-8"))["input_ids"]
    if len(ids) < tokens:
        raise ValueError(f"{text} has {len(ids)} tokens where {tokens} are asked for; "
                         "give a longer text or fewer --tokens")
    return torch.tensor([ids[:tokens]])


@torch.no_grad()
def dump(options):
    # Before the hub is asked, and before a long run ends in nothing.
    if not (pathlib.Path(options.model) / "config.json").is_file():
        raise ValueError(f"--model {options.model}: there is no config.json; give the folder of a model")
    if not options.output.parent.is_dir():
        raise ValueError(f"--output {options.output}: the folder {options.output.parent} is not there; make it first")
    ids = read_tokens(options.model, options.text, options.tokens).to(options.device)
    recorder = Recorder(options.layers, query_positions(options.tokens, options.queries), options.tokens)
    AttentionInterface.register(NAME, recorder)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    dtype = options.dtype if options.dtype == "auto" else getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, attn_implementation=NAME)
    body = model.base_model.to(options.device).eval()  # no logits are needed
    # The argument's name changed in transformers 5.
    name = "cache" if "cache" in inspect.signature(body.forward).parameters else "past_key_values"
    cache = {name: DynamicCache(config=model.config)}
    for begin in range(0, options.tokens, options.chunk):
        recorder.begin = begin
        body(ids[:, begin:begin + options.chunk], use_cache=True, **cache)
        print(f"\r{min(begin + options.chunk, options.tokens)} of {options.tokens} tokens", end="", file=sys.stderr)
        if begin == 0:
            recorder.check()
    print(file=sys.stderr)
    save_file(recorder.tensors, options.output,
              metadata={"format": "kvtier-qkv-1", "model": pathlib.Path(options.model).resolve().name,
                        "text": options.text.name, "transformers": transformers.__version__})
    return recorder

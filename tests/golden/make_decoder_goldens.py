#!/usr/bin/env python3
"""Writes what the tests of tools/decoder compare with: tiny random models with the logits that Hugging Face computes
for them in fp32, logits of the needle model, and byte-level tokenizers with the ids of texts.

Needs torch, transformers and tokenizers. The committed files come from torch 2.15, transformers 5.24, tokenizers 0.23.
Usage: make_decoder_goldens.py   (writes beside itself, into decoder/ and tokenizer/)
"""
import json
import pathlib
import random
import shutil

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, SmolLM3Config, SmolLM3ForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
NEEDLE = HERE.parent / "data" / "needle"
TOKENS = 96


def spread_weights(model, seed):
    """Weights wide enough for attention that looks at few tokens; norms and biases that matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.3 * noise
        elif "embed_tokens" in name:
            value = noise
        else:
            scale = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
            value = scale * noise / parameter.shape[1] ** 0.5
        parameter.data = value


@torch.no_grad()
def fp32_logits(model_class, folder, tokens):
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model(torch.tensor([tokens])).logits[0]


def write_model(name, config, model_class, dtype, seed, edit=lambda config: config, **save):
    folder = HERE / "decoder" / name
    shutil.rmtree(folder, ignore_errors=True)
    model = model_class(config)
    spread_weights(model, seed)
    model.to(dtype).save_pretrained(folder, **save)
    (folder / "generation_config.json").unlink(missing_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps(edit(json.loads(file.read_text())), indent=1, sort_keys=True) + "\n")
    generator = random.Random(seed)
    tokens = [generator.randrange(config.vocab_size) for _ in range(TOKENS)]
    logits = fp32_logits(model_class, folder, tokens)
    save_file({"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits.contiguous()},
              folder / "golden.safetensors")


def shape(**more):
    return dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, pad_token_id=None,
                eos_token_id=10, **more)


def without(*keys):
    return lambda config: {key: value for key, value in config.items() if key not in keys}


def older_rope(config):
    """The same config as files of before rope_parameters spell it."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    return without("head_dim")(config)


def write_models():
    llama3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=64)
    write_model("llama_bf16_llama3_rope", LlamaConfig(**shape(head_dim=64, rope_parameters=llama3)), LlamaForCausalLM,
                torch.bfloat16, 1)
    linear = dict(rope_type="linear", rope_theta=5000.0, factor=2.5)
    write_model("llama_fp32_biases_tied",
                LlamaConfig(**shape(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-3,
                                    rope_parameters=linear)),
                LlamaForCausalLM, torch.float32, 2, older_rope)
    smol = shape(head_dim=32, use_sliding_window=True, sliding_window=7, tie_word_embeddings=True,
                 no_rope_layers=[1, 0, 1, 0], attention_bias=True,
                 layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
                 rope_parameters=dict(rope_type="default", rope_theta=50000.0))
    smol["num_hidden_layers"] = 4
    smol["eos_token_id"] = [10, 0]
    write_model("smollm3_fp16_sliding", SmolLM3Config(**smol), SmolLM3ForCausalLM, torch.float16, 3)
    plain = shape(head_dim=16, tie_word_embeddings=False)
    plain["num_hidden_layers"] = 5
    plain["num_key_value_heads"] = 1
    write_model("smollm3_bf16_defaults_sharded", SmolLM3Config(**plain), SmolLM3ForCausalLM, torch.bfloat16, 4,
                without("no_rope_layers", "layer_types", "rope_parameters", "use_sliding_window"),
                max_shard_size="120KB")


def write_needle():
    """A text with facts whose last question the model has begun to answer; logits of its last bytes."""
    generator = random.Random(5)
    words = "the river runs past old stone mills and under a bridge where boats wait for rain".split()
    sentences = [" ".join(generator.choices(words, k=8)).capitalize() + "." for _ in range(14)]
    names = ["bavodi", "ketumo", "rilosa"]
    for position, name in zip((2, 6, 10), names):
        sentences.insert(position, f"The code of {name} is {generator.randrange(10000, 100000)}.")
    code = next(s for s in sentences if "ketumo" in s)[-6:-1]
    text = " ".join(sentences) + " The code of ketumo is " + code
    tokens = list(text.encode())
    kept = 16
    logits = fp32_logits(SmolLM3ForCausalLM, NEEDLE, tokens)[-kept:]
    assert all(int(row.argmax()) == token for row, token in zip(logits[-6:-1], tokens[-5:]))
    folder = HERE / "decoder" / "needle"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits.contiguous()},
              folder / "golden.safetensors")


CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind. It's 12345 o'clock; we'll see.",
    "Les élèves français étudient à l'école où l'été paraît très long. Ça va être génial!",
    "Die Straße überquert den Fluß; Größe und Länge zählen. Übermäßig schön.",
    "Привет, как дела? Сегодня хорошая погода, и мы идём гулять в парк.",
    "日本語の文章を書くのは楽しいです。漢字とひらがなとカタカナ。",
    "def main():\n    for i in range(100):\n        print(i, i * i)\n\n\nif __name__ == '__main__':\n    main()\n",
    "Numbers 1 22 333 4444 55555 666666 and 3.14159, 2.71828, 1,000,000 and 0x1f.",
    "مرحبا بالعالم ١٢٣٤٥ हिन्दी में लिखना 123 ไทย 👋🏽 👨‍👩‍👧‍👦 🎉🎉",
]

TEXTS = [
    "", " ", "a", "  two  spaces  ", "\n", "\n\n\n", " \n \n x", "tab\tand\r\nwindows\r\n\r\nlines", "trailing   ",
    "The quick brown fox", "it's IT'S we'll WE'LL they're THEY'Re I'm I'd you've 'S 'sun 'ſ ’s",
    "1 12 123 1234 12345 123456 1234567 ١٢٣٤٥ Ⅷ ½ ²", "x=1;y=22;z=333", "Ça va? Größe Привет 日本語 हिन्दी ไทย",
    "e\u0301 combining, \u00e9 composed", "👋🏽 👨‍👩‍👧‍👦🎉", "no\u00a0break\u2003em\u3000wide\u0085next\u180emongolian\u200bzero\u2028line",
    "<|begin|>text<|end|> and <|end|><|end|>", "<|end", "plain_token and plain_token_long inside plain_tokens",
    "\u0000\u0001\u007f\ufeff\ufffd\U0010ffff", "a" * 300, " " * 300 + "x", "!!!???...,,,", "  !x  ?y", "ǅ ǆ ʰ ː ª º ㎏ ﬃ",
]
ALPHABET = list("aabcdetz  \n\t0123'.,!?ſKsS") + ["é", "ß", "я", "日", "\u0301", "🎉", "\u00a0", "\u180e", "\u0085", "\r\n", "'ll",
                                                 "'S", "<|end|>", "²", "\u2003", "_", "अ", "ी"]
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                  r"|\s+(?!\S)|\s+")


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def train(splitter, size, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS * 4, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|end|>"]))
    tokenizer.add_tokens(["plain_token", AddedToken("plain_token_long", normalized=False)])
    return tokenizer


def make_tokenizers():
    yield "gpt2", train(byte_level(), 420)
    split = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated")
    llama3 = train(pre_tokenizers.Sequence([split, byte_level(use_regex=False)]), 450, ignore_merges=True)
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B",
                                      special_tokens=[("<|begin|>", 0)])])
    yield "llama3", llama3
    yield "whole_text", train(byte_level(use_regex=False), 400)
    yield "digits", train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   byte_level(add_prefix_space=True)]), 420)
    yield "number_groups", train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False),
                                                          pre_tokenizers.Split("x", "isolated"), byte_level()]), 400)


def write_tokenizers():
    generator = random.Random(6)
    texts = TEXTS + ["".join(generator.choices(ALPHABET, k=generator.randrange(1, 40))) for _ in range(150)]
    for name, tokenizer in make_tokenizers():
        folder = HERE / "tokenizer" / name
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        description = json.loads((folder / "tokenizer.json").read_text())
        if name == "digits":  # as files of older versions have them
            description["model"]["merges"] = [" ".join(merge) for merge in description["model"]["merges"]]
        if name == "llama3":  # a token that merges alone do not reach, in place of the first added one's id
            free = len(description["model"]["vocab"])
            description["model"]["vocab"]["Ġbrownfox"] = free
            for token in description["added_tokens"]:
                token["id"] += token["id"] >= free
            texts = texts + ["the brownfox brownfoxes"]
        (folder / "tokenizer.json").write_text(json.dumps(description, ensure_ascii=False) + "\n")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        cases = []
        for text in texts:
            ids = tokenizer.encode(text).ids
            cases.append({"text": text, "ids": ids, "plain_ids": tokenizer.encode(text, add_special_tokens=False).ids,
                          "decoded": tokenizer.decode(ids), "decoded_all": tokenizer.decode(ids, skip_special_tokens=False)})
        (folder / "cases.json").write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write_models()
    write_needle()
    write_tokenizers()

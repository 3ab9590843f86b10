"""Write model shapes without weights, and a tokenizer that turns N random ids into text and back into N ids.

    python tools/make_models.py OUT           qwen2.5-7b/, qwen2.5-32b/ (config.json alone) and tok/
    python tools/make_models.py OUT --tiny    tiny/ and tok-tiny/, for the engine's CPU build

With `--load-format dummy` the engine fills these shapes with random weights: weights, KV cache and kernels
have the sizes of the published models. Every token of the tokenizer is one character, so the benchmark's
random prompts keep their exact length. The tokenizer has a folder of its own: beside a config.json
transformers 5 would rebuild it as the model's class, which then encodes to nothing.
Standard library alone; the same files byte for byte on every machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "model_type": "qwen2",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
}
# name: layers, hidden, intermediate, attention heads, KV heads, vocabulary, positions
SHAPES = {
    "qwen2.5-7b": (28, 3584, 18944, 28, 4, 152_064, 32_768),
    "qwen2.5-32b": (64, 5120, 27648, 40, 8, 152_064, 32_768),
}
TINY = {"tiny": (2, 128, 128, 4, 2, 1024, 2048)}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Qwen2.5 has 151,643 ordinary tokens and three special ones; the model's vocabulary is padded beyond them.
QWEN2_ORDINARY = 151_643
# Planes 15 and 16 are private use; plane 2 (rare ideographs) supplies the rest.
CODE_POINTS = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0x20000, 0x27530))


def model_config(shape: tuple[int, ...], ordinary_tokens: int) -> dict[str, Any]:
    layers, hidden, intermediate, heads, kv_heads, vocabulary, positions = shape
    return QWEN2 | {
        "bos_token_id": ordinary_tokens,
        "eos_token_id": ordinary_tokens + 2,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "max_position_embeddings": positions,
        "max_window_layers": layers,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
    }


def tokenizer_files(ordinary_tokens: int) -> dict[str, dict[str, Any]]:
    """`tokenizer.json` and `tokenizer_config.json` of a word-level tokenizer, one character a token."""
    characters = itertools.islice(itertools.chain(*CODE_POINTS), ordinary_tokens)
    vocabulary = {chr(code_point): token for token, code_point in enumerate(characters)}
    special = {text: ordinary_tokens + offset for offset, text in enumerate(SPECIAL)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": text, **flags} for text, token in special.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary | special, "unk_token": SPECIAL[0]},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "eos_token": SPECIAL[2],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000_000,
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="the small model for the engine's CPU build")
    arguments = parser.parse_args()
    if arguments.out.exists() and not arguments.out.is_dir():
        parser.error(f"{arguments.out} is a file: name a folder")
    shapes, tokenizer = (TINY, "tok-tiny") if arguments.tiny else (SHAPES, "tok")
    ordinary_tokens = TINY["tiny"][5] - len(SPECIAL) if arguments.tiny else QWEN2_ORDINARY
    for name, shape in shapes.items():
        write_json(arguments.out / name / "config.json", model_config(shape, ordinary_tokens))
    for name, content in tokenizer_files(ordinary_tokens).items():
        write_json(arguments.out / tokenizer / name, content)


if __name__ == "__main__":
    main()

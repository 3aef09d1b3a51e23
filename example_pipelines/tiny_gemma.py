"""A Gemma 3 that knows nothing, in the layout of Hugging Face's hub, with a tokenizer that is really trained.

Nothing is downloaded and torch is not needed: the weights are random, and SentencePiece makes the tokenizer from the
sentences that the model is to learn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LENGTH = 24  # tokens of a sentence; longer than the window of a sliding layer, so that windows matter
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def sentences() -> list[str]:
    """Return what is to be learned, always in the same order."""
    return [
        f"{NUMBERS[one]} and {NUMBERS[other]} are {NUMBERS[one + other]}."
        for one in range(10) for other in range(10 - one)
    ]  # fmt: skip


def make(folder: str) -> str:
    """Write the model into a new folder, on a host that has safetensors, sentencepiece and transformers; returns it."""
    from transformers import AutoTokenizer

    path = Path(folder)
    path.mkdir(parents=True)
    config = shape(train_tokenizer(path))
    write_weights(path, config)
    (path / "config.json").write_text(json.dumps(config, indent=2))
    # The same tokenizer once more, for who has no SentencePiece, such as vLLM.
    AutoTokenizer.from_pretrained(folder).backend_tokenizer.save(str(path / "tokenizer.json"))
    return folder


def train_tokenizer(path: Path) -> int:
    """Write Gemma's kind of tokenizer: BPE with 256 bytes to fall back on, its ids of special tokens."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()), model_writer=model, model_type="bpe", vocab_size=320,
        byte_fallback=True, split_digits=True, add_dummy_prefix=False, remove_extra_whitespaces=False,
        normalization_rule_name="identity", user_defined_symbols=["<start_of_turn>", "<end_of_turn>"],
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
        num_threads=1, minloglevel=2,
    )  # fmt: skip
    (path / "tokenizer.model").write_bytes(model.getvalue())
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    told = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False, **names}
    (path / "tokenizer_config.json").write_text(json.dumps(told, indent=2))
    return int(sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).vocab_size())


def shape(vocabulary: int) -> dict[str, Any]:
    """Return a config.json as that of google/gemma-3-1b-it, small: five layers with a sliding window to one without.

    Heads of 32 are the smallest that vLLM's build for CPUs takes (0.32.0).
    """
    return {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "torch_dtype": "float32",
        "vocab_size": vocabulary, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 32,
        "sliding_window": 8, "sliding_window_pattern": 6, "rope_local_base_freq": 10_000, "rope_theta": 1_000_000,
        "rope_scaling": None, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "attention_bias": False,
        "attention_dropout": 0.0, "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None,
        "final_logit_softcapping": None, "use_cache": True, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
    }  # fmt: skip


def write_weights(path: Path, config: dict[str, Any]) -> None:
    """Write random weights by the hub's names."""
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(0)
    wide, deep, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (config["vocab_size"], wide), "norm": (wide,)}
    for layer in range(config["num_hidden_layers"]):
        here = {
            "self_attn.q_proj": (queries, wide), "self_attn.k_proj": (keys, wide), "self_attn.v_proj": (keys, wide),
            "self_attn.o_proj": (wide, queries), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
            "mlp.gate_proj": (deep, wide), "mlp.up_proj": (deep, wide), "mlp.down_proj": (wide, deep),
            "input_layernorm": (wide,), "post_attention_layernorm": (wide,), "pre_feedforward_layernorm": (wide,),
            "post_feedforward_layernorm": (wide,),
        }  # fmt: skip
        shapes |= {f"layers.{layer}.{name}": size for name, size in here.items()}
    weights = {
        f"model.{name}.weight": random.normal(0, 0.1 if len(size) == 1 else size[-1] ** -0.5, size).astype(np.float32)
        for name, size in shapes.items()
    }
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

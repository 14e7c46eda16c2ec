"""Headers of GGUF files, written as ggml's ``docs/gguf.md`` has them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

F32, Q4_K, Q6_K, F16 = 0, 12, 14, 1


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(of: Any) -> bytes:
    if isinstance(of, bool):
        return struct.pack("<I?", 7, of)
    if isinstance(of, int):
        return struct.pack("<II", 4, of)
    if isinstance(of, float):
        return struct.pack("<If", 6, of)
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    if of and isinstance(of[0], str):
        return struct.pack("<IIQ", 9, 8, len(of)) + b"".join(map(text, of))
    return struct.pack("<IIQ", 9, 4, len(of)) + struct.pack(f"<{len(of)}I", *of)


def header(metadata: Mapping[str, Any], tensors: Sequence[tuple[str, tuple[int, ...], int]]) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [text(key) + value(of) for key, of in metadata.items()]
    for name, sides, kind in tensors:
        parts.append(text(name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, kind, 0))
    return b"".join(parts)


def model(
    architecture: str, layers: int, hidden: int, heads: int, kv_heads: int, vocabulary: int, width: int, **more: Any
) -> tuple[dict[str, Any], list[tuple[str, tuple[int, ...], int]]]:
    """A dense model in Q4_K with an output in Q6_K."""
    head = more.pop("head", hidden // heads)
    facts = {
        "block_count": layers,
        "context_length": 32768,
        "embedding_length": hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        **more,
    }
    metadata: dict[str, Any] = {"general.architecture": architecture, "tokenizer.ggml.tokens": ["<s>", "</s>", "a"]}
    metadata |= {f"{architecture}.{name}": fact for name, fact in facts.items()}
    tensors = [("token_embd.weight", (hidden, vocabulary), Q4_K), ("output_norm.weight", (hidden,), F32)]
    for place in range(layers):
        sides = {
            "attn_q": (hidden, heads * head),
            "attn_k": (hidden, kv_heads * head),
            "attn_v": (hidden, kv_heads * head),
            "attn_output": (heads * head, hidden),
            "ffn_gate": (hidden, width),
            "ffn_up": (hidden, width),
            "ffn_down": (width, hidden),
        }
        tensors += [(f"blk.{place}.{name}.weight", side, Q4_K) for name, side in sides.items()]
    return metadata, [*tensors, ("output.weight", (hidden, vocabulary), Q6_K)]


QWEN3_14B = model("qwen3", 40, 5120, 40, 8, 151936, 17408, head=128)
QWEN3_8B = model("qwen3", 36, 4096, 32, 8, 151936, 12288, head=128)
LLAMA_3_2_3B = model("llama", 28, 3072, 24, 8, 128256, 8192, head=128)
LLAMA_3_8B = model("llama", 32, 4096, 32, 8, 128256, 14336, head=128)
QWEN2_5_7B = model("qwen2", 28, 3584, 28, 4, 152064, 18944, head=128)
QWEN2_5_3B = model("qwen2", 36, 2048, 16, 2, 151936, 11008, head=128)
GEMMA_3_4B = model("gemma3", 34, 2560, 8, 4, 262208, 10240, head=256, **{"attention.sliding_window": 1024})

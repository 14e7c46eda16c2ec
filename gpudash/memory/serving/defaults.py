"""Values for fields that a published config omits: the defaults of its architecture.

``defaults.json`` is written by ``python -m tests.unit.memory.serving.defaults`` from transformers' own classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]

PARTS = ("text_config", "llm_config", "vision_config")

SAME = (
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    ("hidden_size", "n_embd", "d_model", "embed_dim"),
    ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads"),
    ("num_key_value_heads", "num_kv_heads"),
    ("max_position_embeddings", "n_positions", "max_seq_len"),
    ("num_local_experts", "num_experts", "n_routed_experts"),
    ("intermediate_size", "n_inner", "ffn_dim"),
    ("sliding_window_pattern", "_sliding_window_pattern", "full_attention_interval", "layer_types"),
)
"""Alternative names for the same field: a config that sets one of them omits none of the others."""


@cache
def families() -> Mapping[str, Config]:
    """Default fields of each family that transformers knows; for a part of a config, those of the part's family."""
    text = Path(__file__).with_name("defaults.json").read_text(encoding="utf-8")
    return dict(json.loads(text)["families"])


def completed(config: Config) -> dict[str, Any]:
    """A config and its parts, with the architecture's defaults for fields they omit."""
    family = _family(config)
    known = families().get(family, {})
    whole: dict[str, Any] = {**_left_out(known, config), **config}
    # If the text is not a part of its own, it is the whole config, as in the first configs of Qwen2-VL.
    if isinstance(known.get("text_config"), str) and not any(map(config.get, PARTS[:2])):
        whole = {**_left_out(families().get(known["text_config"], {}), config), **whole}
    for name in PARTS:
        part = config.get(name)
        if isinstance(part, Mapping) and part:
            own = families().get(_family(part) or str(known.get(name)), {})
            whole[name] = {**_left_out(own, part), **part}
    return whole


def _family(config: Config) -> str:
    return str(config.get("model_type") or "")


def _left_out(known: Config, given: Config) -> dict[str, Any]:
    """The defaults whose field the config does not set under any name."""
    named = set(given)
    for names in SAME:
        if _any(given, names):
            named.update(names)
    return {name: value for name, value in known.items() if name not in named and name not in PARTS}


def _any(given: Config, names: Iterable[str]) -> bool:
    return any(given.get(name) is not None for name in names)

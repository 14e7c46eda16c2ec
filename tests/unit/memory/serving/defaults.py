"""What transformers takes for fields that a config leaves out: ``python -m tests.unit.memory.serving.defaults`` writes
``gpudash/memory/serving/defaults.json`` by the transformers of this Python.

Only fields that `gpudash.memory.serving.served_model` reads are written, of families that a server or an encoder has.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpudash.memory.serving.served_model as served_model

WRITTEN = Path(served_model.__file__).with_name("defaults.json")
READ = Path(served_model.__file__).read_text(encoding="utf-8")
PARTS = ("text_config", "vision_config", "llm_config")
HEADS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MASKED_LM")
LONGEST_PERIOD = 12
"""Layers after which kinds of layer repeat, at the most."""


def families() -> Iterator[str]:
    """Every family that a server could be asked about, and those of their parts."""
    from transformers.models.auto import modeling_auto

    found = {name for head in HEADS for name in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES")}
    parts = {part for name in found for part in sub_configs(name).values()}
    yield from sorted(found | parts)


def made(family: str) -> Any:
    """The config of a family without a field given; ``None`` where it has to be given some."""
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[family]()
    except Exception:  # it wants its parts, in whatever words
        logging.getLogger(__name__).info("%s wants its parts", family)
        return None


def sub_configs(family: str) -> dict[str, str]:
    """The families of a config's parts."""
    config = made(family)
    found = {name: getattr(config, name, None) for name in PARTS}
    return {name: part.model_type for name, part in found.items() if hasattr(part, "model_type")}


def fields(family: str) -> dict[str, Any]:
    """Fields of a family that are read, with what they are unless a config says otherwise."""
    from transformers import CONFIG_MAPPING

    found: dict[str, Any] = dict(sub_configs(family))
    for one in dataclasses.fields(CONFIG_MAPPING[family]):
        plain = isinstance(one.default, (int, float, str)) and not isinstance(one.default, dataclasses._MISSING_TYPE)
        if plain and f'"{one.name}"' in READ and one.name not in PARTS:
            found[one.name] = one.default
    kinds = getattr(made(family), "layer_types", None)
    if isinstance(kinds, list) and "full_attention" in kinds and len(set(kinds)) > 1:
        period = kinds.index("full_attention") + 1
        regular = all((kind == "full_attention") == ((place + 1) % period == 0) for place, kind in enumerate(kinds))
        name = "full_attention_interval"
        if "sliding_attention" in kinds:
            name = "sliding_window_pattern"
        if regular and period <= LONGEST_PERIOD and "attention_chunk_size" not in found:
            found[name] = period
    return found


def table() -> dict[str, Any]:
    import transformers

    return {"transformers": transformers.__version__, "families": {name: fields(name) for name in families()}}


if __name__ == "__main__":
    written = table()
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in written["families"].items() if found]
    version = json.dumps(written["transformers"])
    WRITTEN.write_text(
        f'{{"transformers": {version}, "families": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8"
    )

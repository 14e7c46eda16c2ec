"""Models by name: common ones, whose configs come with gpudash, and those in the local Hugging Face cache.

Nothing is downloaded here: a name is one of these, or the model does not exist.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpudash.system.files import resource
from gpudash.system.foreign_files import open_regular, read_regular_text, reads_within

CONFIGS = ("config.json", "unet/config.json", "transformer/config.json")
"""Where a folder may have the config of its model; for a diffusion pipeline it is one folder deeper."""

NAME_IT = "Choose the folder of a model, or its config.json."

FETCH_IT = "Fetch it with: hf download {name} config.json; gpudash estimate --download-config does the same"

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

ADAPTER = "adapter_config.json"
MOST_ADAPTER = 2**20
MOST_NAME = 4096
"""Bytes read of the file that peft writes beside an adapter, and characters of its model's name."""

VARIANTS = ("-instruct", "-it", "-chat", "-base", "-hf")
"""Suffixes that name other weights for the same layers."""

MOST_HEADER = 32 * 2**20
"""Bytes read of a safetensors header; a single file with 671 billion parameters has 10 MB."""

MOST_CONFIG = 2**20
"""Bytes read of a model's config."""

MOST_COMMIT = 200
"""Bytes read of a file that names a commit."""

MOST_CACHED = 200
"""How many cached models are listed."""

CLOSE = 0.6
"""Least similarity of a suggested name to an unknown one, 0 to 1, as difflib measures it."""

COMPUTED_IN = frozenset({"F64", "F32", "F16", "BF16"})
"""Types whose element count is the number of parameters; other types are packed."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that has a name on this computer.

    Attributes:
        name: without the publisher.
        hub: full name at Hugging Face, such as "openai-community/gpt2".
        folder: the folder with its config.
        parameters: number of parameters; ``None`` if not known.
        weight_bytes: bytes of its stored weights; ``None`` if not known.
        cached: whether it is in this computer's cache.
        unpacked: number of parameters that bitsandbytes does not pack: the embedding, and the last layer unless the
            two are one; 0 if the config does not tell.
    """

    name: str
    hub: str
    folder: Path
    parameters: int | None
    weight_bytes: int | None
    cached: bool = False
    unpacked: int = 0


@cache
def known_models() -> tuple[NamedModel, ...]:
    """The common models, by family and size.

    Raises:
        FileNotFoundError: if the installation lacks them.
    """
    folder = resource("models")
    listed = json.loads((folder / "models.json").read_text(encoding="utf-8"))
    found = []
    for name, facts in listed.items():
        publisher = facts["hub"].partition("/")[0]
        place = folder / publisher / name
        parameters, size = facts["parameters"], facts["weight_bytes"]
        found.append(NamedModel(name, facts["hub"], place, parameters, size, unpacked=_unpacked(place)))
    return tuple(found)


def cached_models() -> list[NamedModel]:
    """The models in Hugging Face's cache that have a config, newest first. Reads only headers of weights."""
    return [_cached(hub, folder) for hub, folder in _cache_folders()]


def find_model(text: str) -> Path:
    """The folder or config for a path or a name; names are case-insensitive.

    Raises:
        ValueError: one sentence, if there is none.
    """
    path = Path(text).expanduser()
    if has_config(path):
        return path
    named = _by_name(text)
    if named is not None:
        return named
    if path.is_dir():
        return _adapted(text, path)
    if path.exists():
        return path
    close = closest_name(text)
    if close:
        raise ValueError(f"There is no model {text} here. Did you mean {close}?")
    if HUB_NAME.fullmatch(text) and not path.parent.exists():
        raise ValueError(f"{text} is not in Hugging Face's cache here. {FETCH_IT.format(name=text)}")
    raise ValueError(f"{text} is not there. {NAME_IT}")


def _adapted(text: str, path: Path) -> Path:
    """The base model of the adapter in a folder."""
    try:
        said = json.loads(read_regular_text(path / ADAPTER, MOST_ADAPTER))
    except (OSError, ValueError, RecursionError):
        raise ValueError(f"{text} has no config.json. {NAME_IT}") from None
    base = said.get("base_model_name_or_path") if isinstance(said, dict) else None
    if not isinstance(base, str) or not 0 < len(base) <= MOST_NAME:
        raise ValueError(f"{text} is an adapter that does not name its model. {NAME_IT}")
    found = Path(base).expanduser()
    # a caller that may only name files in some folders must not reach others through their content
    if has_config(found) and not reads_within():
        return found
    named = _by_name(base)
    if named is not None:
        return named
    raise ValueError(f"{text} is an adapter of {base}, whose config is not here. {FETCH_IT.format(name=base)}")


def has_name(text: str) -> bool:
    """Whether a path or a name refers to something on this computer."""
    try:
        return find_model(text).exists()
    except ValueError:
        return Path(text).expanduser().exists()


def has_config(path: Path) -> bool:
    """Whether the path is a config, or a folder with one."""
    if path.name == CONFIGS[0]:
        return path.is_file()
    return any((path / name).is_file() for name in CONFIGS)


def closest_name(text: str) -> str:
    """The most similar name to an unknown one; "" if there is none, or if it is a path."""
    if text.startswith((".", "/", "~")):
        return ""
    names = {model.name.casefold(): model.name for model in known_models()}
    names |= {_short(hub).casefold(): _short(hub) for hub, _folder in _cache_folders()}
    found = difflib.get_close_matches(_short(text).casefold(), list(names), 1, CLOSE)
    return next((names[name] for name in found), "")


def _by_name(text: str) -> Path | None:
    wanted = text.strip().casefold()
    for hub, folder in _cache_folders():
        if wanted in (hub.casefold(), _short(hub).casefold()):
            return folder
    plain = wanted
    for ending in VARIANTS:
        plain = plain.removesuffix(ending)
    for model in known_models():
        names = {model.name.casefold(), model.hub.casefold()}
        # a variant has different weights, but as many
        if names & {wanted, plain}:
            return model.folder
    return None


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def cache_folder() -> Path:
    """Where huggingface_hub keeps models (its constants.py): by its environment variables, else the default."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        given = os.environ.get(name)
        if given:
            return Path(given).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return caches / "huggingface" / "hub"


def _cache_folders() -> list[tuple[str, Path]]:
    """Hub name and snapshot of every cached model with a config, newest first."""
    try:
        listed = [entry for entry in cache_folder().iterdir() if entry.name.startswith("models--")]
        listed.sort(key=lambda entry: -entry.stat().st_mtime)
    except OSError:
        return []
    found = []
    for entry in listed[:MOST_CACHED]:
        snapshot = next((folder for folder in _snapshots(entry) if has_config(folder)), None)
        if snapshot is not None:
            found.append((entry.name.removeprefix("models--").replace("--", "/"), snapshot))
    return found


def _snapshots(entry: Path) -> Iterator[Path]:
    """The snapshots of a cached model, that of its main branch first."""
    with suppress(OSError, ValueError):  # without a main branch it was downloaded by commit or tag
        yield entry / "snapshots" / read_regular_text(entry / "refs" / "main", MOST_COMMIT).strip()
    with suppress(OSError):
        yield from sorted((entry / "snapshots").iterdir())


def _cached(hub: str, folder: Path) -> NamedModel:
    files = sorted(folder.glob("*.safetensors"))
    headers = list(map(_header, files))
    types = [str(tensor.get("dtype")) for header in headers for tensor in header.values()]
    parameters = None
    if types and all(kind in COMPUTED_IN for kind in types):
        parameters = sum(_count(tensor.get("shape")) for header in headers for tensor in header.values())
    try:
        size = sum(file.stat().st_size for file in files or sorted(folder.glob("*.bin")))
    except OSError:
        size = 0
    return NamedModel(_short(hub), hub, folder, parameters, size or None, cached=True, unpacked=_unpacked(folder))


def _unpacked(folder: Path) -> int:
    """Parameters of the embedding and of the last layer, as the config in a folder has them; 0 if it does not tell."""
    try:
        config = json.loads(read_regular_text(folder / CONFIGS[0], MOST_CONFIG))
    except (OSError, ValueError, RecursionError):
        return 0
    if not isinstance(config, dict):
        return 0
    inner = config.get("text_config")
    if isinstance(inner, dict):
        config = {**config, **inner}
    # GPT-2's config calls it n_embd.
    sides = _count([config.get("vocab_size"), config.get("hidden_size") or config.get("n_embd")])
    # Where a config does not say it, transformers ties the two.
    if config.get("tie_word_embeddings", True):
        return sides
    return 2 * sides


def _count(shape: Any) -> int:
    if isinstance(shape, list) and all(isinstance(side, int) and side >= 0 for side in shape):
        return math.prod(shape)
    return 0


def _header(file: Path) -> Mapping[str, Mapping[str, Any]]:
    """Name of a tensor → its type and shape, from a safetensors file; empty if it cannot be read."""
    try:
        with open_regular(file) as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > MOST_HEADER:
                return {}
            header = json.loads(opened.read(length))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(header, dict):
        return {}
    return {name: tensor for name, tensor in header.items() if name != "__metadata__" and isinstance(tensor, dict)}

"""Reads a model folder in Hugging Face's format: its config, and the dtypes of its stored weights.

Nothing in it is executed, and only the headers of weight files are read. Errors are one sentence.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudash.simulator.refusal import CannotPredictError
from gpudash.system.foreign_files import open_regular, read_regular

MOST_TEXT = 64 * 2**20
"""The most bytes read of a config or an index; the index of a model with 671 billion parameters has 9 MB."""

MOST_DEEP = 4096
"""The most layers, blocks or experts of a config; the deepest published models have some hundred."""

MOST_NUMBER = 2**40
"""Larger numbers cannot be the size of a model."""

CONFIGS = ("config.json", "unet/config.json", "transformer/config.json")
"""Where a folder keeps its model's config; in a diffusion pipeline it is one folder deeper."""

MODELOPT = "hf_quant_config.json"
"""Where NVIDIA's ModelOpt stores how weights are quantised."""

STORED_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of an element, by safetensors' names of its dtypes."""

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

GET_SAFETENSORS = "Install safetensors there: pip install safetensors"


@dataclass(frozen=True)
class StoredWeights:
    """What the headers of the weight files contain.

    Attributes:
        shapes: name → sizes; empty if only the index exists.
        dtypes: name → dtype, as safetensors writes it.
        total_bytes: of all tensors.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    total_bytes: int

    @property
    def parameters(self) -> int | None:
        """Numbers in all tensors; ``None`` without any header."""
        if self.shapes:
            return sum(map(math.prod, self.shapes.values()))
        return None

    @property
    def dtype(self) -> str | None:
        """torch's name of the dtype of most numbers; ``None`` if it is not one to compute in."""
        counts: Counter[str] = Counter()
        for name, shape in self.shapes.items():
            counts[self.dtypes[name]] += math.prod(shape)
        if counts:
            return DTYPES.get(counts.most_common(1)[0][0])
        return None


@dataclass(frozen=True)
class ModelConfig:
    """A model as described by its folder.

    Attributes:
        file: the path of the config.
        values: its contents.
        stored: the weights; ``None`` if there are none.
    """

    file: Path
    values: Mapping[str, Any]
    stored: StoredWeights | None = field(default=None, repr=False)

    @property
    def is_diffusers(self) -> bool:
        """Whether it belongs to the diffusers library, which names the class in the config."""
        return "_class_name" in self.values

    @property
    def dtype(self) -> str | None:
        """torch's name of the weights' dtype: from the files, otherwise from the config; ``None`` without either."""
        said = self.values.get("dtype") or self.values.get("torch_dtype")
        stored = None
        if self.stored is not None:
            stored = self.stored.dtype
        return stored or (said.replace("torch.", "") if isinstance(said, str) else None)

    @property
    def quantisation(self) -> Mapping[str, Any]:
        """The config's quantisation settings; empty if the weights are not quantised."""
        found = self.values.get("quantization_config")
        if isinstance(found, dict):
            return found
        return {}


def refused(message: str, remedy: str) -> CannotPredictError:
    """The error for a request that is invalid, as opposed to what the code does."""
    return CannotPredictError("request", message, remedy)


def read(path: str) -> ModelConfig:
    """Read the model in a folder or a file.

    Raises:
        CannotPredictError: in one sentence, if there is none, or it is invalid.
    """
    file = _file(Path(path).expanduser())
    if file.suffix == ".gguf":
        raise refused(
            f"{file} is a GGUF file, of which only a server's memory is known.",
            f"gpudash estimate --model {file.name} --task serve answers for it in the terminal.",
        )
    values = _json(file)
    if not isinstance(values.get("_class_name", values.get("model_type")), str):
        what = "names no kind of model (model_type, or _class_name for diffusers)"
        raise refused(f"{file} {what}.", "Give the config.json of a model of transformers or diffusers.")
    for name, number in _numbers(values):
        _check(file, name, number)
    modelopt = file.with_name(MODELOPT)
    if "quantization_config" not in values and modelopt.is_file():
        values["quantization_config"] = _of_modelopt(_json(modelopt))
    return ModelConfig(file, values, _stored(file.parent))


def _of_modelopt(document: Mapping[str, Any]) -> dict[str, Any]:
    """Quantisation settings of NVIDIA's older checkpoints, which keep them in a file beside the config."""
    about = document.get("quantization")
    if not isinstance(about, dict):
        return {}
    left_out = about.get("exclude_modules") or []
    return {"quant_method": "modelopt", "quant_algo": about.get("quant_algo"), "ignore": left_out}


def _file(path: Path) -> Path:
    try:
        if path.is_dir():
            found = next((path / name for name in CONFIGS if (path / name).is_file()), None)
            if found is None:
                raise refused(f"{path} has no config.json.", "Give the folder of a model, or its config.json.")
            return found
        if path.is_file():
            return path
        if path.exists():
            raise refused(f"{path} is no regular file.", "Give the folder of a model, or its config.json.")
    except (OSError, ValueError) as error:
        raise refused(f"{path} cannot be read ({error}).", "Give a folder that can be.") from error
    raise refused(f"{path} is not there.", "Give the folder of a model, or its config.json.")


def _json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_regular(file, MOST_TEXT))
    except OSError as error:
        raise refused(f"{file} cannot be read ({error.strerror}).", "Give a file that can be.") from error
    except (ValueError, RecursionError) as error:
        where = ""
        if isinstance(error, json.JSONDecodeError):
            ends = not error.doc[error.pos :].strip()
            where = f": it ends at line {error.lineno}" if ends else f": see line {error.lineno}"
        raise refused(f"{file} is not valid JSON{where}.", "Give the config.json of a model.") from error
    if not isinstance(values, dict):
        raise refused(f"{file} holds no JSON object.", "Give the config.json of a model.")
    return values


def _numbers(values: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a config with its name."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _numbers(value, str(key))
    elif isinstance(values, list):
        for value in values:
            yield from _numbers(value, name)
    elif isinstance(values, (int, float)) and not isinstance(values, bool):
        yield name, values


def _check(file: Path, name: str, number: float) -> None:
    """Reject sizes that no model has, before anything is built from them."""
    sized = name.endswith(("_size", "_dim", "_layers", "_heads", "_channels", "_features"))
    deep = name.endswith(("_layers", "_blocks", "depth", "_experts")) or name in ("n_layer", "layers_per_block")
    if sized and number < 0:
        raise refused(f"{file}: {name} is {number:g}.", "Give a config whose sizes are 0 or more.")
    if (sized and number > MOST_NUMBER) or (deep and number > MOST_DEEP):
        most = MOST_NUMBER
        if deep:
            most = MOST_DEEP
        raise refused(f"{file}: {name} is {number:g}.", f"Give a config of a real model; at most {most} is taken.")


def _stored(folder: Path) -> StoredWeights | None:
    """What a folder's safetensors files contain, or their index if some are missing."""
    index = next(iter(sorted(folder.glob("*.safetensors.index.json"))), None)
    if index is None:
        files = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
        named = [file for file in files if file.name in ("model.safetensors", "diffusion_pytorch_model.safetensors")]
        if files:
            return _headers(named or files)
        return None
    said = _json(index)
    where, about = said.get("weight_map"), said.get("metadata")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise refused(f"{index} has no weight_map.", "Get it again, or remove it to go by config.json alone.")
    shards = sorted({folder / Path(name).name for name in where.values()})
    if all(shard.is_file() for shard in shards):
        return _headers(shards)
    total = None
    if isinstance(about, dict):
        total = about.get("total_size")
    if isinstance(total, (int, float)) and 0 < total < MOST_NUMBER * 16:
        return StoredWeights({}, {}, int(total))
    return None


def _headers(files: list[Path]) -> StoredWeights:
    """The headers of safetensors files; the library checks that they match the files' sizes."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise refused("This Python has no safetensors, to read what the weights are.", GET_SAFETENSORS) from error
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    for file in files:
        try:
            # the library accepts paths only; with this one it opens the file that was checked
            with open_regular(file) as opened_file, safe_open(f"/proc/self/fd/{opened_file.fileno()}", "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    part = opened.get_slice(name)
                    shapes[name], dtypes[name] = tuple(part.get_shape()), part.get_dtype()
        except (SafetensorError, OSError, ValueError, UnicodeError) as error:
            if str(error):
                why = str(error).splitlines()[0]
            else:
                why = type(error).__name__
            problem = f"The header of {file} does not say what the file holds ({why})."
            raise refused(problem, "Get the file again, or give config.json alone, in a folder of its own.") from error
    total = sum(math.prod(shape) * STORED_BYTES.get(dtypes[name], 1) for name, shape in shapes.items())
    return StoredWeights(shapes, dtypes, total)

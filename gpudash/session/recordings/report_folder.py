"""The files beside the snapshot in a report's folder: written by the flight recorder, read with the snapshot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gpudash.memory.snapshot.command_line import UNKNOWN_COMMAND, ProgramCommand
from gpudash.memory.snapshot.history.batch_shapes import SeenTensor
from gpudash.memory.snapshot.sidecar import NOTHING, Sidecar, card_of
from gpudash.session.recordings.file_kinds import SNAPSHOT_NAME
from gpudash.system.files import written_whole
from gpudash.system.foreign_files import TooLargeError, read_regular
from gpudash.telemetry.explanation import Explanation, explanation_from_json
from gpudash.telemetry.records import plain

T = TypeVar("T")

STEPS_NAME = "steps.json"
"""The starts of steps: ``[[microseconds since 1970, number], ...]``."""

SHAPES_NAME = "shapes.json"
"""Shapes of batches: ``[[microseconds since 1970, file, function, variable, shape, bytes, bytes of storage], ...]``."""

EXPLANATION_NAME = "explanation.json"

SETTINGS_NAME = "settings.json"
"""Facts about the program: its command, its folder, its versions."""

MOST_STEPS = 100_000
"""How many steps are kept, the newest."""

MOST_BYTES = 16 * 2**20
"""Size of a file that is read."""

MOST_US = 2**62
"""Limit for times and numbers, so that they fit into 64-bit integers."""

_Number = Annotated[int, Field(ge=0, lt=MOST_US)]
_STEPS = TypeAdapter(
    Annotated[list[tuple[_Number, _Number]], Field(max_length=MOST_STEPS)], config=ConfigDict(strict=True)
)

_Text = Annotated[str, Field(max_length=1000)]
_Shape = Annotated[tuple[_Number, ...], Field(max_length=20)]
_SHAPES = TypeAdapter(
    Annotated[list[tuple[_Number, _Text, _Text, _Text, _Shape, _Number, _Number]], Field(max_length=1000)],
    config=ConfigDict(strict=True),
)


def write_steps(folder: Path, steps: Sequence[tuple[int, int]]) -> None:
    """Write the starts of steps; without steps, remove the file of an earlier report.

    Raises:
        OSError: when it cannot be written.
    """
    path = folder / STEPS_NAME
    if steps:
        write_json(path, list(map(list, steps[-MOST_STEPS:])), indent=None)
    else:
        path.unlink(missing_ok=True)


def shapes_of(written: Any) -> tuple[SeenTensor, ...]:
    """Shapes of batches, as an agent sends them.

    Raises:
        ValueError: if they are malformed.
    """
    try:
        return tuple(SeenTensor(*row) for row in _SHAPES.validate_json(json.dumps(written)))
    except ValidationError:
        raise ValueError("it is no list of times and shapes of tensors.") from None


def write_shapes(folder: Path, shapes: Sequence[SeenTensor]) -> None:
    """Write the shapes of batches; without any, remove the file of an earlier report.

    Raises:
        OSError: when it cannot be written.
    """
    path = folder / SHAPES_NAME
    if shapes:
        write_json(path, [list(shape) for shape in shapes], indent=None)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, document: Any, indent: int | None = 2) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: when it cannot be written.
    """
    with written_whole(path, private=True) as part:
        part.write_text(
            json.dumps(plain(document), indent=indent, ensure_ascii=False), encoding="utf-8", errors="backslashreplace"
        )


def sidecar_of(snapshot: Path) -> Sidecar:
    """What a report's folder says about its snapshot; empty if the snapshot is not in one.

    Damaged or unknown content is ignored with a warning.
    """
    if snapshot.name != SNAPSHOT_NAME:
        return NOTHING
    warnings: list[str] = []

    def found(name: str, read: Callable[[Path], T], otherwise: T) -> T:
        try:
            return read(snapshot.with_name(name))
        except ValueError as error:
            warnings.append(f"{name} beside the snapshot was left aside: {error}")
            return otherwise

    steps: tuple[tuple[int, int], ...] = found(STEPS_NAME, _steps, ())
    shapes: tuple[SeenTensor, ...] = found(SHAPES_NAME, _shapes, ())
    explanation = found(EXPLANATION_NAME, _explanation, None)
    command = found(SETTINGS_NAME, _program_command, UNKNOWN_COMMAND)
    cards, explanations = {}, {}
    if explanation is not None:
        index = int(explanation.device.partition(":")[2] or 0)
        cards[index], explanations[index] = card_of(explanation), explanation
    return Sidecar(steps, cards, explanations, tuple(warnings), command, shapes)


def _steps(path: Path) -> tuple[tuple[int, int], ...]:
    text = _read(path)
    if text is None:
        return ()
    try:
        return tuple(sorted(_STEPS.validate_json(text)))
    except ValidationError:
        raise ValueError("it is no list of times and numbers of steps.") from None


def _shapes(path: Path) -> tuple[SeenTensor, ...]:
    text = _read(path)
    if text is None:
        return ()
    try:
        return shapes_of(json.loads(text))
    except RecursionError:
        raise ValueError("it is no list of times and shapes of tensors.") from None


def _explanation(path: Path) -> Explanation | None:
    text = _read(path)
    if text is None:
        return None
    try:
        explanation = explanation_from_json(json.loads(text))
    except (ValueError, RecursionError):  # invalid JSON, or no explanation
        raise ValueError("it is no explanation of memory.") from None
    sizes = (
        explanation.capacity_bytes,
        explanation.requested_bytes or 0,
        explanation.segment_bytes or 0,
        *(p.bytes for p in explanation.parts),
    )
    if not all(0 <= size < MOST_US for size in sizes) or not explanation.device.partition(":")[2].isdecimal():
        raise ValueError("its figures cannot be those of a device.")
    return explanation


def program_command(facts: Mapping[str, Any]) -> ProgramCommand:
    """The program's command according to the settings of a report, as far as they state it."""
    arguments, folder = facts.get("command"), facts.get("folder")
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
        arguments = []
    if not isinstance(folder, str) or not folder.startswith("/"):
        folder = ""
    return ProgramCommand(tuple(arguments), folder)


class Started(BaseModel):
    """How the program of a report was started, as its settings say.

    Attributes:
        command: program and arguments; empty if unknown.
        folder: its working directory, an absolute path; "" if unknown.
        environment: variables that were set for it.
        simulate: the simulated GPUs, as `gpudash.devices.names.read_card` takes them.
        as_cuda: whether they answered as CUDA.
    """

    command: tuple[str, ...] = ()
    folder: str = ""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = {}
    simulate: tuple[int | str, ...] = ()
    as_cuda: bool = False


def how_started(snapshot: Path) -> Started:
    """How the program of a snapshot was started; empty if the snapshot is in no report, or its settings say nothing
    that can be used."""
    if snapshot.name != SNAPSHOT_NAME:
        return Started()
    try:
        found = Started.model_validate(_settings(snapshot.with_name(SETTINGS_NAME)))
    except ValueError:
        return Started()
    known = program_command(found.model_dump(mode="json"))
    return found.model_copy(update={"command": known.arguments, "folder": known.folder})


def _program_command(path: Path) -> ProgramCommand:
    return program_command(_settings(path))


def _settings(path: Path) -> dict[str, Any]:
    """The settings in a file; empty when there is none.

    Raises:
        ValueError: why it cannot be read.
    """
    text = _read(path)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON.") from None
    if isinstance(found, dict):
        return found
    return {}


def _read(path: Path) -> bytes | None:
    """The content of a file; ``None`` when there is none.

    Raises:
        ValueError: why it cannot be read.
    """
    try:
        return read_regular(path, MOST_BYTES)
    except FileNotFoundError:
        return None
    except TooLargeError:
        raise ValueError(f"it is larger than {MOST_BYTES // 2**20} MiB.") from None
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror or error}.") from None

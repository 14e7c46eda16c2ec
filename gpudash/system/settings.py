"""The user's settings, and the locations of recordings and reports."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gpudash.system.files import make_private_folder, written_whole
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import TooLargeError, read_regular_text
from gpudash.units import GIB, read_size

PERCENT = "%"
"""Unit of a share from 0 to 1 that people read and write in percent."""

LARGEST_BYTES = 16 * 2**10
"""Largest settings file, in bytes: one that sets everything takes two thousand, and parsing a key of ten thousand
parts takes seconds."""

_MOST_CHARACTERS = 60
"""Characters of a wrong value that a sentence quotes."""


def recordings_folder() -> Path:
    """Where recordings are written unless a file is named."""
    return data_folder() / "recordings"


def recording_path(path: Path) -> Path:
    """The recording that is meant by ``path``: a bare name that is not in the working folder is looked up among the
    recordings."""
    kept = recordings_folder() / path.name
    if len(path.parts) != 1 or path.exists() or not kept.is_file():
        return path
    return kept


def reports_folder() -> Path:
    """Where the out-of-memory reports of watched programs are written."""
    return data_folder() / "reports"


class Settings(BaseModel):
    """The settings file, ``settings.toml`` in `data_folder`."""

    model_config = ConfigDict(extra="ignore", validate_assignment=True)

    rate_hz: float = Field(20.0, ge=1, le=50, description="Memory readings a second")
    warn_ratio: float = Field(
        0.85, gt=0, lt=1, description="Memory level of a warning", json_schema_extra={"unit": PERCENT}
    )
    critical_ratio: float = Field(
        0.95, gt=0, le=1, description="Memory level of a critical warning", json_schema_extra={"unit": PERCENT}
    )
    hysteresis_ratio: float = Field(
        0.05,
        ge=0,
        le=0.5,
        description="How far below a level memory must fall to pass",
        json_schema_extra={"unit": PERCENT},
    )
    guard: bool = Field(True, description="Stop a run before host memory runs out")
    record: bool = Field(True, description="Record every session")
    recordings_bytes: Annotated[int, BeforeValidator(read_size)] = Field(
        2 * GIB,
        ge=0,
        description="Size of all recordings together before old ones go",
        json_schema_extra={"unit": "bytes"},
    )
    recordings_count: int = Field(100, ge=1, description="Number of recordings before old ones go")
    isolate: bool = Field(
        True,
        description="Host runs in a process of their own, so that a crash or a full GPU ends the run and nothing else",
    )
    ask_cudnn: bool = Field(
        False,
        description="Ask PyTorch's own cuDNN what convolutions take, also where there is no NVIDIA driver; NVIDIA "
        'licenses it "for use in systems with NVIDIA GPUs". From the next start on',
    )
    reports_bytes: Annotated[int, BeforeValidator(read_size)] = Field(
        2 * GIB,
        ge=0,
        description="Size of all reports of out-of-memory errors together before old ones go",
        json_schema_extra={"unit": "bytes"},
    )
    reports_keep: int = Field(20, ge=1, description="Number of reports of out-of-memory errors before old ones go")
    theme: Literal["system", "light", "dark"] = Field("system", description="Look of the window")
    smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Smoothing of loss and accuracy in the plots; 0 is raw",
        json_schema_extra={"unit": PERCENT},
    )
    window_s: float = Field(60.0, ge=1, le=86400, description="Seconds of history the plots show")
    frames_hz: float = Field(15.0, ge=5, le=30, description="Redraws of the plots a second")
    cards: Annotated[str, BeforeValidator(lambda value: "" if value is None else value)] = Field(
        "",
        description="Cards to choose from beside the usual ones, with commas between: names such as rtx5090, or sizes "
        "such as 12GiB",
    )
    cards_order: Literal["usual", "name", "memory", "time"] = Field(
        "usual",
        description="What the cards to choose from are sorted by: their name, their memory, the smallest first, or the "
        "predicted time of a step, the shortest first",
    )
    serve: Annotated[str, BeforeValidator(lambda value: "" if value is None else value)] = Field(
        "",
        description="Serve the readings for Prometheus at this address and port of this machine, such as :10950, while "
        "the window is open; empty: nothing is served",
    )

    notify: Annotated[str, BeforeValidator(lambda value: "" if value is None else value)] = Field(
        "",
        description="Tell of warnings, out-of-memory and ends of runs: a URL that gets JSON, ntfy:TOPIC, or a command "
        "that gets the sentence as its last argument; empty: nobody is told",
    )

    @model_validator(mode="after")
    def _levels_ascend(self) -> Settings:
        if self.warn_ratio >= self.critical_ratio:
            raise ValueError("warn_ratio must lie below critical_ratio")
        return self


def settings_file() -> Path:
    return data_folder() / "settings.toml"


def load_settings(path: Path | None = None) -> tuple[Settings, list[str]]:
    """The settings, and one sentence for each part of the file that could not be used.

    A wrong value only affects itself: its default replaces it, and the file is left as it is.
    """
    path = path or settings_file()
    try:
        data: dict[str, Any] = tomllib.loads(read_regular_text(path, LARGEST_BYTES))
    except FileNotFoundError:
        return Settings(), []
    except TooLargeError:
        return Settings(), [f"{path} is far too large for settings; the defaults are used until it is fixed"]
    except OSError as error:
        return Settings(), [f"{path} cannot be read ({error.strerror}); the defaults are used until it is fixed"]
    except RecursionError:
        return Settings(), [f"{path} is nested too deep; the defaults are used until it is fixed"]
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        return Settings(), [f"{path} cannot be read ({error}); the defaults are used until it is fixed"]
    problems: list[str] = []
    # Remove one wrong value at a time: pydantic checks the rest again, and what depends on two values comes last.
    while True:
        try:
            return Settings.model_validate(data), problems
        except ValidationError as error:
            first = error.errors()[0]
            # An error without a location comes from the validator of the two levels.
            if not first["loc"]:
                names = sorted({"warn_ratio", "critical_ratio"} & data.keys())
                message = first["msg"].removeprefix("Value error, ")
            else:
                names = [str(first["loc"][0])]
                message = f"{_shortened(repr(data[names[0]]))}: {first['msg'][0].lower()}{first['msg'][1:]}"
            problems.append(f"{path}: {' and '.join(names)}: {message}; the default is used")
            for name in names:
                del data[name]


def _shortened(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}…"


def save_settings(values: Mapping[str, Any], path: Path | None = None) -> None:
    """Write some settings, and keep everything else in the file, including comments.

    Raises:
        OSError: if the file cannot be written.
        ValueError: if the existing file is not TOML; it is left as it is.
    """
    # Imported only for writing: reading uses the standard library.
    import tomlkit
    import tomlkit.exceptions

    path = path or settings_file()
    try:
        if path.exists():
            document = tomlkit.parse(read_regular_text(path, LARGEST_BYTES))
        else:
            document = tomlkit.document()
    except RecursionError:
        raise ValueError(f"{path} is nested too deep; fix or remove it") from None
    except (tomlkit.exceptions.ParseError, ValueError) as error:
        raise ValueError(f"{path} is not valid TOML ({error}); fix or remove it") from None
    # Update the existing document, which keeps comments and the keys of other versions.
    document.update(values)
    make_private_folder(path.parent)
    with written_whole(path, private=True) as part:
        part.write_text(tomlkit.dumps(document), encoding="utf-8")

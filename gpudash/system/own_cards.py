"""The user's own cards, from a TOML file with the columns of the known ones: their performance and memory.

A table for each card::

    [my-card]
    memory = "24GiB"
    memory_gb_per_s = 960
    float32_tflops = 56.3
    float16_tflops = 112.6
    multiprocessors = 84

Values that are left out are taken from the closest known card, and count as guessed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gpudash.devices.card_performance import CARD_PERFORMANCE, GIGA, MIB, TERA, CardPerformance, pcie_bytes_per_s
from gpudash.system.folders import data_folder
from gpudash.system.foreign_files import read_regular_text
from gpudash.units import read_size

LARGEST_BYTES = 64 * 2**10
"""Largest file of cards, in bytes: a card takes 300."""


class OwnCard(BaseModel):
    """The columns of a card, in the units of data sheets. 0 means that it lacks this kind of arithmetic."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory: Annotated[int | None, BeforeValidator(read_size)] = Field(None, gt=0, le=2**50)
    memory_gb_per_s: float = Field(gt=0, le=100_000, allow_inf_nan=False)
    float32_tflops: float = Field(gt=0, le=10_000, allow_inf_nan=False)
    tf32_tflops: float | None = Field(None, ge=0, le=100_000, allow_inf_nan=False)
    float16_tflops: float | None = Field(None, ge=0, le=100_000, allow_inf_nan=False)
    bfloat16_tflops: float | None = Field(None, ge=0, le=100_000, allow_inf_nan=False)
    float8_tflops: float | None = Field(None, ge=0, le=100_000, allow_inf_nan=False)
    l2_mib: float | None = Field(None, gt=0, le=10_000, allow_inf_nan=False)
    multiprocessors: int | None = Field(None, gt=0, le=10_000)
    clock_mhz: float | None = Field(None, gt=0, le=10_000, allow_inf_nan=False)
    pcie_generation: int | None = Field(None, ge=1, le=6)
    pcie_lanes: int = Field(16, ge=1, le=16)
    nvlink_gb_per_s: float | None = Field(None, ge=0, le=10_000, allow_inf_nan=False)
    power_w: float | None = Field(None, gt=0, le=10_000, allow_inf_nan=False)
    source: str = ""

    def performance(self, name: str, path: str) -> CardPerformance:
        """The card's performance; the closest known card supplies what the file does not state.

        Raises:
            ValueError: if no card has such a link.
        """
        lender_key, lent = self._nearest()
        guessed = []
        flops = {"float32": self.float32_tflops * TERA}
        for kind in ("tf32", "float16", "bfloat16", "float8"):
            said = getattr(self, f"{kind}_tflops")
            if said is None and kind in lent.flops:
                guessed.append("flops")
                flops[kind] = lent.flops[kind] * flops["float32"] / lent.flops["float32"]
            elif said:
                flops[kind] = said * TERA
        link = lent.link_bytes_per_s
        if self.pcie_generation is not None:
            link = pcie_bytes_per_s(self.pcie_generation, self.pcie_lanes)
        said_of = {
            "l2_bytes": self.l2_mib and int(self.l2_mib * MIB),
            "multiprocessors": self.multiprocessors,
            "clock_hz": self.clock_mhz and self.clock_mhz * 1e6,
            "power_w": self.power_w,
        }
        values: dict[str, Any] = {}
        for figure, value in said_of.items():
            if value is None:
                guessed.append(figure)
                value = getattr(lent, figure)
            values[figure] = value
        if self.pcie_generation is None:
            guessed.append("link_bytes_per_s")
        source = self.source or path
        if guessed:
            source = f"{source}; what it does not say is that of {lender_key}"
        return CardPerformance(
            flops=flops,
            bytes_per_s=self.memory_gb_per_s * GIGA,
            link_bytes_per_s=link,
            peer_bytes_per_s=(self.nvlink_gb_per_s or 0) * GIGA or link,
            source=f"{name}: {source}",
            guessed=tuple(dict.fromkeys(guessed)),
            **values,
        )

    def _nearest(self) -> tuple[str, CardPerformance]:
        """The known card with the closest arithmetic and bandwidth, by ratio."""

        def distance(card: CardPerformance) -> float:
            arithmetic = card.flops["float32"] / (self.float32_tflops * TERA)
            bandwidth = card.bytes_per_s / (self.memory_gb_per_s * GIGA)
            return max(arithmetic, 1 / arithmetic) * max(bandwidth, 1 / bandwidth)

        return min(CARD_PERFORMANCE.items(), key=lambda item: distance(item[1]))


@dataclass(frozen=True)
class OwnCards:
    """The cards of a file.

    Attributes:
        performance: performance of each, by its name in the file; see `performance_of`.
        total_bytes: memory of the cards whose file states it.
    """

    performance: Mapping[str, CardPerformance]
    total_bytes: Mapping[str, int]


def own_cards_file() -> Path:
    """The file that is read for cards unless another one is named."""
    return data_folder() / "cards.toml"


def own_cards() -> OwnCards:
    """The cards in `own_cards_file`; empty if the file does not exist.

    Raises:
        ValueError: one sentence, if it cannot be read.
    """
    path = own_cards_file()
    try:
        return read_own_cards(path)
    except FileNotFoundError:
        return OwnCards({}, {})
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None


def read_own_cards(path: Path) -> OwnCards:
    """The cards in a file.

    Raises:
        FileNotFoundError, OSError: if it cannot be read.
        ValueError: one sentence with file, line and column, for an invalid card.
    """
    shown = str(path)
    try:
        text = read_regular_text(path, LARGEST_BYTES)
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{shown} is nested too deep for cards.") from None
    except ValueError as error:  # not TOML, with line and column, or not UTF-8
        raise ValueError(f"{shown} cannot be read: {error}.") from None
    performance: dict[str, CardPerformance] = {}
    total_bytes: dict[str, int] = {}
    for name, columns in document.items():
        if not isinstance(columns, dict):
            place = _place(text, "", name)
            raise ValueError(f"{shown}{place}: {name} stands outside of a card; begin with a line such as [my-card].")
        try:
            card = OwnCard.model_validate(columns)
            performance[name] = card.performance(name, shown)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{shown}{_place(text, name, _column(first))}: {_said(name, first)}.") from None
        except ValueError as error:
            raise ValueError(f"{shown}{_place(text, name, 'pcie_lanes')}: {name}: {error}.") from None
        if card.memory is not None:
            total_bytes[name] = card.memory
    return OwnCards(performance, total_bytes)


def _column(error: Mapping[str, Any]) -> str:
    if error["type"] == "missing":
        return ""
    return str(error["loc"][0])


def _said(name: str, error: Mapping[str, Any]) -> str:
    column = error["loc"][0]
    if error["type"] == "missing":
        return f"{name} lacks {column}, without which nothing can be said of it"
    if error["type"] == "extra_forbidden":
        return f"{name}: {column} is no column of a card; they are {', '.join(OwnCard.model_fields)}"
    message = error["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{name}: {column}: {message[0].lower()}{message[1:]}"


def _place(text: str, table: str, column: str) -> str:
    """The position, ":line:column", of a key in a table, or of the table if the key is not found; "" if neither is.

    tomllib does not keep positions, so the line is searched as people usually write it.
    """
    inside = not table
    found = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.fullmatch(r"\s*\[\s*(.+?)\s*\]\s*(?:#.*)?", line)
        if header is not None:
            inside = header[1].strip("\"'") == table
            if inside:
                found = f":{number}:{line.index('[') + 1}"
            continue
        key = re.match(r"\s*[\"']?([^\"'=\s]+)[\"']?\s*=", line)
        if inside and key is not None and key[1] == column:
            return f":{number}:{key.start(1) + 1}"
    return found

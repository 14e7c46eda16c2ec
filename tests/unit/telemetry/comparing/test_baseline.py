"""What was stored of a device's memory, and what changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpudash.telemetry.comparing.baseline import (
    FORMAT,
    KIND,
    SHOWN_PARTS,
    BaselineError,
    Footprint,
    FootprintChange,
    read_baselines,
    write_baselines,
)
from gpudash.units import GIB, MIB

SMALL = Footprint(GIB, {"category": {"weights": 600 * MIB, "activations": 424 * MIB}}, "sim:0 (SIMULATED)")


def test_what_is_stored_is_read_and_other_entries_stay(tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    write_baselines(file, {"a": SMALL, "b": Footprint(5)})
    write_baselines(file, {"b": Footprint(6)})
    assert read_baselines(file) == {"a": SMALL, "b": Footprint(6)}
    assert [path.name for path in tmp_path.iterdir()] == ["memory.json"]


GOOD = {"format": FORMAT, "kind": KIND, "entries": {"a": {"bytes": 1, "parts": {}, "device": ""}}}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("{", "it is no JSON, or cut off"),
        ("[" * 100_000, "it is no JSON, or cut off"),
        ([], "no memory baseline of gpudash"),
        ({"entries": {}}, "no memory baseline of gpudash"),
        ({**GOOD, "format": 2}, "has format 2, and this gpudash reads 1; update gpudash"),
        ({**GOOD, "format": "x"}, "write it anew"),
        ({**GOOD, "entries": []}, "has no entries"),
        ({**GOOD, "entries": {"a": 5}}, "The entry 'a'"),
        ({**GOOD, "entries": {"a": {"bytes": -1}}}, "no count of bytes"),
        ({**GOOD, "entries": {"a": {"bytes": True}}}, "no count of bytes"),
        ({**GOOD, "entries": {"a": {"bytes": 10**30}}}, "no count of bytes"),
        ({**GOOD, "entries": {"a": {"bytes": 1, "parts": {"line": 5}}}}, "parts that are no objects"),
        ({**GOOD, "entries": {"a": {"bytes": 1, "device": 5}}}, "a device that is no text"),
    ],
)
def test_a_file_that_is_none_is_told_in_one_sentence_and_never_replaced(
    tmp_path: Path, document: Any, why: str
) -> None:
    file = tmp_path / "memory.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    before = file.read_bytes()
    for use in (lambda: read_baselines(file), lambda: write_baselines(file, {"a": SMALL})):
        with pytest.raises(BaselineError) as refused:
            use()
        assert why in str(refused.value) and "\n" not in str(refused.value)
    assert file.read_bytes() == before


def test_a_folder_a_missing_file_and_a_missing_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="cannot be read"):
        read_baselines(tmp_path)
    with pytest.raises(BaselineError, match="There is no baseline"):
        read_baselines(tmp_path / "none.json")
    with pytest.raises(BaselineError, match="cannot be written"):
        write_baselines(tmp_path / "none" / "memory.json", {"a": SMALL})


def change(after: int, tolerance: float = 0.02, **activations: int) -> FootprintChange:
    return FootprintChange("training", SMALL, Footprint(after, {"category": activations}, SMALL.device), tolerance)


def test_growth_within_the_tolerance_passes_and_beyond_it_does_not() -> None:
    assert not change(GIB).grown and change(GIB).summary == "as the baseline says"
    assert not change(GIB + GIB // 50).grown and "within the tolerance of 2 %" in change(GIB + GIB // 50).headline
    beyond = change(GIB + GIB // 50 + 1)
    assert beyond.grown and "(+2.0 %), beyond the tolerance of 2 %" in beyond.headline
    assert (
        not change(GIB // 2).grown
        and "512 MiB less than the baseline's 1.00 GiB (-50.0 %)." in change(GIB // 2).headline
    )
    assert change(GIB + 1, tolerance=0.0).grown


def test_the_table_has_what_changed_the_largest_first_also_what_is_new_or_gone() -> None:
    parts = change(GIB, activations=500 * MIB, inputs=MIB).parts
    assert [(part.name, part.difference // MIB) for part in parts] == [
        ("weights", -600),
        ("activations", 76),
        ("inputs", 1),
    ]
    assert change(GIB, activations=500 * MIB).rows()[0] == ("category weights", "600 MiB", "0 B", "−600 MiB")


def test_a_long_table_says_how_much_it_leaves_out() -> None:
    many = {f"part {number}": MIB * (number + 1) for number in range(SHOWN_PARTS + 3)}
    rows = FootprintChange("a", Footprint(1), Footprint(2, {"line": many})).rows()
    assert len(rows) == SHOWN_PARTS + 1 and rows[-1][0] == "line: 3 more"


def test_another_device_than_the_baselines_is_told() -> None:
    found = FootprintChange("a", Footprint(1, {}, "cuda:0"), Footprint(2, {}, "sim:0 (SIMULATED)"))
    assert "the baseline is of cuda:0, this of sim:0 (SIMULATED)" in found.headline

"""What the arguments of ``gpu_memory`` mean, and what is said of those that mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpudash.units import GIB
from gpudash.workloads.testing.marker import MarkerError, MemoryBudget

ROOT = Path("/project")


def budget(*args: Any, **keywords: Any) -> MemoryBudget:
    return MemoryBudget.of_marker(args, keywords, ROOT)


def test_a_budget_is_a_size_a_card_by_name_or_bytes() -> None:
    assert budget("8GiB").bytes == budget(8 * GIB).bytes == 8 * GIB
    assert (budget("8GiB").baseline, str(budget("8GiB"))) == (None, "8.00 GiB")
    assert (budget("T4").bytes or 0) > 14 * GIB and str(budget("T4")) == "t4"


def test_a_baseline_lies_in_the_projects_folder_unless_it_is_elsewhere() -> None:
    assert budget(baseline="memory.json").baseline == ROOT / "memory.json"
    assert budget("1GiB", baseline="/elsewhere/memory.json").baseline == Path("/elsewhere/memory.json")


def test_a_tolerance_is_a_share_and_one_per_cent_unless_given() -> None:
    assert budget(baseline="a").tolerance == 0.01
    assert budget(baseline="a", tolerance="2%").tolerance == budget(baseline="a", tolerance=0.02).tolerance == 0.02


def test_whether_code_says_cuda_is_left_to_the_run_of_pytest_unless_the_mark_tells() -> None:
    assert budget("8GiB").as_cuda is None
    assert budget("8GiB", as_cuda=True).as_cuda is True


@pytest.mark.parametrize(
    ("args", "keywords", "why"),
    [
        ((), {}, "neither a size nor a baseline"),
        (("8GiB", "9GiB"), {}, "takes one size, not 2"),
        (("8GiB",), {"as_cuda": "yes"}, "as_cuda='yes'): write True or False"),
        (("8 apples",), {}, "'8 apples' is not a size"),
        (("8",), {}, "did you mean 8GiB"),
        (("h101",), {}, "did you mean"),
        (("100MiB",), {}, "has no room for a tensor"),
        (("-1GiB",), {}, "is not a size"),
        ((8.5,), {}, "not 8.5"),
        ((True,), {}, "not True"),
        (("8GiB",), {"size": 1}, "takes no size="),
        (("8GiB",), {"tolerance": "2%"}, "no baseline="),
        ((), {"baseline": 5}, "is a file, not 5"),
        ((), {"baseline": ""}, "is a file, not ''"),
        ((), {"baseline": "a", "tolerance": "2 percent"}, "is no share"),
        ((), {"baseline": "a", "tolerance": 5}, "would be 500 %"),
        ((), {"baseline": "a", "tolerance": [1]}, "not [1]"),
    ],
)
def test_what_means_nothing_is_told_in_one_sentence(args: tuple[Any, ...], keywords: dict[str, Any], why: str) -> None:
    with pytest.raises(MarkerError) as refused:
        budget(*args, **keywords)
    assert why in str(refused.value)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)

"""Tries that ran out of memory, and whose tensors an exception holds while a smaller one is made."""

from __future__ import annotations

from contextlib import suppress

import pytest

from gpudash.memory.allocator import AllocationRefused
from gpudash.telemetry.explanation import Explanation
from gpudash.units import MIB
from tests.unit.memory.snapshot.made import FORWARD, TRAIN, WEIGHTS, Made, explained

PROGRAM = {
    40: "def step(model, data):",
    41: "    return model(data)",
    88: "while True:",
    89: "    try:",
    90: "        step(model, data[:batch])",
    91: "        break",
    92: "    except torch.OutOfMemoryError as e:",
    93: "        error = e",
    94: "        batch //= 2",
    95: "print(batch, error)",
}


def tried_again(lines: dict[int, str]) -> Explanation:
    """Two layers of 70 MiB do not fit, nor does half of them beside the first one of the earlier try."""
    made = Made(capacity=130 * MIB)
    made.malloc(20 * MIB, WEIGHTS)
    for layer in (70 * MIB, 35 * MIB):
        with suppress(AllocationRefused):
            made.malloc(layer, FORWARD)
            made.malloc(layer, FORWARD)

    def source(file: str, line: int) -> str:
        return lines.get(line, "") if file == TRAIN else ""

    return explained(made.snapshot(), source=source)


def test_tensors_of_an_earlier_try_are_blamed_on_the_statement_that_keeps_its_exception() -> None:
    found = tried_again(PROGRAM)
    assert found.cause == (
        "train.py:93 (error = e) keeps 70 MiB of earlier tries, as the traceback of an exception refers to the "
        "variables of the functions that it left."
    )
    remedy = found.remedies[0]
    assert "-        error = e\n+        error = str(e)\n" in remedy.patch
    # The cache of the earlier try is released for the second layer of the smaller one.
    assert remedy.verified_by == "replay"
    assert remedy.predicted_peak_bytes == 92 * MIB


@pytest.mark.parametrize("line", ["raise error", "print(error.args)"])
def test_an_exception_that_the_program_needs_later_is_kept_without_its_traceback(line: str) -> None:
    patch = tried_again({**PROGRAM, 95: line}).remedies[0].patch
    assert "+        error = e.with_traceback(None)\n" in patch


@pytest.mark.parametrize(
    ("kept", "instead"),
    [
        ("self.error = e", "self.error = str(e)"),
        ("errors[batch] = e", "errors[batch] = str(e)"),
        ("errors += [e]", "errors += [str(e)]"),
        ("errors.append((batch, e))", "errors.append((batch, str(e)))"),
        ("errors.extend([e])", "errors.extend([str(e)])"),
        ("errors.insert(0, e)", "errors.insert(0, str(e))"),
        ("errors.add(e)", "errors.add(str(e))"),
        ("errors.setdefault(batch, e)", "errors.setdefault(batch, str(e))"),
        ("failed.append(Failure(batch, error=e))", "failed.append(Failure(batch, error=str(e)))"),
        ("return e", "return e.with_traceback(None)"),
        ("self.where = e.__traceback__", "self.where = traceback.format_exc()"),
        ("errors.append(sys.exc_info())", "errors.append(traceback.format_exc())"),
        ("last = sys.exc_info()[1]", "last = traceback.format_exc()"),
    ],
)
def test_whatever_keeps_an_exception_is_told_with_what_to_keep_instead(kept: str, instead: str) -> None:
    found = tried_again({**PROGRAM, 1: "import traceback", 93: f"        {kept}", 95: "print(batch)"})
    assert f"train.py:93 ({kept}) keeps 70 MiB of earlier tries" in found.cause
    assert f"-        {kept}\n+        {instead}\n" in found.remedies[0].patch


@pytest.mark.parametrize(
    ("kept", "line"),
    [
        ("errors[batch] = e", "raise errors[batch]"),
        ("errors.append(e)", "raise errors[-1]"),
        ("self.error = e", "print(job.error.args)"),
        ("errors.append((batch, e))", "for size, one in errors: print(size, one.args)"),
        ("errors[batch] = e", "for one in errors.values(): print(one.args)"),
    ],
)
def test_an_exception_in_a_collection_that_is_read_later_keeps_its_class(kept: str, line: str) -> None:
    patch = tried_again({**PROGRAM, 93: f"        {kept}", 95: line}).remedies[0].patch
    before, _e, behind = kept.rpartition("e")
    assert f"+        {before}e.with_traceback(None){behind}\n" in patch


def test_an_exception_with_a_cause_of_its_own_is_kept_as_a_new_one() -> None:
    lines = {
        **PROGRAM,
        41: "    try:",
        42: "        return model(data)",
        43: "    except torch.OutOfMemoryError as inner:",
        44: "        raise RuntimeError('step failed') from inner",
        92: "    except RuntimeError as e:",
        95: "print(batch, error.args)",
    }
    assert "+        error = type(e)(*e.args)\n" in tried_again(lines).remedies[0].patch


def test_a_traceback_that_the_program_reads_later_has_no_edit() -> None:
    lines = {
        **PROGRAM,
        1: "import traceback",
        93: "        self.where = e.__traceback__",
        95: "print(self.where.tb_lineno)",
    }
    remedy = tried_again(lines).remedies[0]
    assert not remedy.patch and "traceback.format_exc() in place of e.__traceback__" in remedy.change


@pytest.mark.parametrize(
    "line", ["error = str(e)", "print(e)", "logger.warning('smaller', e)", "kind = sys.exc_info()[0]"]
)
def test_an_exception_that_is_not_kept_holds_nothing_of_an_earlier_try(line: str) -> None:
    assert "earlier tries" not in tried_again({**PROGRAM, 93: f"        {line}"}).cause

"""The log of gpudash's processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudash.system.log import KEPT, MOST_BYTES, VARIABLE, start_log


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A log in a folder that is not there yet."""
    monkeypatch.setenv(VARIABLE, "")
    logger, before = logging.getLogger("gpudash"), list(logging.getLogger("gpudash").handlers)
    path = tmp_path / "state" / "gpudash.log"
    start_log(str(path))
    yield path
    for handler in [one for one in logger.handlers if one not in before]:
        logger.removeHandler(handler)
        handler.close()


def test_nothing_is_made_before_there_is_something_to_log(file: Path) -> None:
    assert not file.parent.exists()


def test_a_record_has_its_traceback_and_only_the_user_can_read_it(file: Path) -> None:
    before = os.umask(0)
    try:
        raise ValueError("the shape is odd")
    except ValueError:
        logging.getLogger("gpudash.simulator").exception("Nothing was predicted.")
    finally:
        os.umask(before)
    text = file.read_text(encoding="utf-8")
    assert "ERROR gpudash.simulator: Nothing was predicted." in text and "ValueError: the shape is odd" in text
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_processes_that_are_started_find_the_same_file(file: Path) -> None:
    assert os.environ[VARIABLE] == str(file)


def test_the_log_does_not_grow_without_end(file: Path) -> None:
    for _ in range(2 * (KEPT + 2)):
        logging.getLogger("gpudash").error("x" * (MOST_BYTES // 2))
    found = list(file.parent.iterdir())
    assert len(found) == KEPT + 1
    assert sum(one.stat().st_size for one in found) <= (KEPT + 1) * MOST_BYTES


def test_a_log_that_cannot_be_written_says_nothing_on_the_terminal(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file.parent.write_text("in its way")
    logging.getLogger("gpudash").error("lost")
    assert capfd.readouterr() == ("", "")

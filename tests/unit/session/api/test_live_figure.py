"""The live figure of a notebook, from the kernel's side: when it is brought up to date, and when it stands still."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

import gpudash
from gpudash.session.api.live_figure import LiveFigure, LiveWidget
from gpudash.session.api.live_memory import LiveMemory
from gpudash.session.api.notebook import NEWER
from gpudash.session.api.variables import HeldMemory, MemoryHolder

HOSTILE = "<img src=x onerror=alert(1)>"


class Notebook:
    """What its names hold, and how often that was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def held(self) -> HeldMemory | None:
        self.asked += 1
        return HeldMemory((MemoryHolder("kept", 4096, 1, HOSTILE),), 4096)


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


@pytest.fixture
def figure(notebook: Notebook) -> Iterator[LiveFigure]:
    shown = LiveFigure(
        notebook.held,
        LiveMemory(read_gpus=dict, resident=lambda: 4096, total=8192),
        no_gpu="No GPU.",
    )
    yield shown
    shown.close()


def test_it_shows_what_the_names_hold_and_where_no_widget_is_shown_the_same_as_text(figure: LiveFigure) -> None:
    assert figure.widget.table["rows"] == [["kept", "4 KiB", HOSTILE, ""]]
    shown, _metadata = figure._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert "kept" in shown["text/plain"]
    assert HOSTILE not in shown["text/html"]


def test_a_name_that_would_move_a_terminal_or_hide_itself_is_written_out() -> None:
    held = str(HeldMemory((MemoryHolder("kept", 4096, 1, "\x1b[2J\u202eIgnore what you were told"),), 4096))
    assert r"\x1b[2J\u202eIgnore" in held and "\x1b" not in held


def test_after_a_cell_it_says_what_is_held_now(figure: LiveFigure, notebook: Notebook) -> None:
    figure.cell_began(7)
    assert notebook.asked == 1
    figure.cell_ended()
    assert notebook.asked == 2
    assert figure.widget.table["after"] == 7
    assert not figure.widget.facts["running"]


def test_a_figure_that_nobody_sees_is_left_alone_until_it_is_seen(
    figure: LiveFigure, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudash.session.api.live_figure.UNSEEN_S", -1.0)
    assert not figure._is_due(True)
    figure.cell_began(1)
    assert figure._is_due(True)  # while a cell runs a kernel hears from no browser
    figure.cell_ended()
    assert notebook.asked == 1
    monkeypatch.undo()
    figure._heard(None, {"what": "seen"}, [])
    assert figure._is_due(True)


def test_a_cell_that_runs_long_gets_few_pictures(figure: LiveFigure, monkeypatch: pytest.MonkeyPatch) -> None:
    figure.cell_began(1)
    figure._send()
    assert figure._is_due(True)
    monkeypatch.setattr("gpudash.session.api.live_figure.LONG_CELL_S", -1.0)
    assert not figure._is_due(True)


@pytest.mark.parametrize("message", [None, "stop", {}, {"what": HOSTILE}, {"what": ["stop"]}])
def test_a_message_that_no_figure_sends_does_nothing(figure: LiveFigure, notebook: Notebook, message: object) -> None:
    figure._heard(None, message, [])
    assert figure.moves
    assert notebook.asked == 1


def test_its_buttons_refresh_it_and_stop_it(figure: LiveFigure, notebook: Notebook) -> None:
    figure._heard(None, {"what": "refresh"}, [])
    assert notebook.asked == 2
    figure._heard(None, {"what": "stop"}, [])
    assert not figure.moves
    assert figure.widget.facts["stopped"] == "Stopped."
    assert not figure._sampler.running
    figure._heard(None, {"what": "refresh"}, [])
    assert notebook.asked == 2
    figure.stop("A newer one goes on.")
    assert figure.widget.facts["stopped"] == "Stopped."


def test_a_notebook_without_magics_gets_the_same_figure_from_a_function_and_the_newest_moves() -> None:
    first, second = gpudash.live_figure(), gpudash.live_figure({"kept": 1})
    assert first.facts["stopped"] == NEWER and second.facts["stopped"] == ""
    third = gpudash.live_figure()
    assert second.facts["stopped"] == NEWER
    stop(third)
    assert third.facts["stopped"] == "Stopped."


def test_without_anywidget_the_function_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(RuntimeError, match="pip install 'gpudash\\[notebook\\]'"):
        gpudash.live_figure()


def stop(widget: LiveWidget) -> None:
    """As the figure's own button does."""
    widget._handle_custom_msg({"what": "stop"}, [])

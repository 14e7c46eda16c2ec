"""``%load_ext gpudash``: the functions as magics, and an explanation when a cell runs out of memory.

Use from the notebook's thread.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from gpudash.session.api.estimating import CardAnswers, PredictedCell, predict_cell
from gpudash.session.api.memory import NO_GPU, Measurement, NothingKnownError, explain, follow_memory, measure
from gpudash.session.api.variables import HeldMemory, held_by
from gpudash.simulator.predict import PredictionError

if TYPE_CHECKING:
    from gpudash.session.api.live_figure import LiveFigure, LiveWidget
    from gpudash.session.api.live_memory import LiveMemory

STEPS = 3

TIME_LIMIT_S = 60.0

NEWER = "Stopped: a newer figure goes on."

GET_FIGURE = "A figure that moves needs anywidget: pip install 'gpudash[notebook]', and restart the kernel."

_in_cells: list[LiveFigure] = []
"""The figure that `live_figure` has made, while it is live."""

T = TypeVar("T")


class Shell(Protocol):
    """The part of IPython's ``InteractiveShell`` that is used."""

    user_ns: dict[str, Any]
    events: Any
    user_ns_hidden: dict[str, Any]
    execution_count: int
    display_pub: Any
    custom_exceptions: tuple[type[BaseException], ...]

    def register_magic_function(self, func: Any, magic_kind: str = ..., magic_name: str | None = ...) -> None: ...

    def transform_cell(self, raw_cell: str) -> str: ...

    def run_cell(self, raw_cell: str) -> Any: ...

    def showtraceback(self, exc_tuple: Any = ..., **options: Any) -> None: ...

    def set_custom_exc(self, exc_tuple: tuple[type[BaseException], ...], handler: Any) -> None: ...


class _Flags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%%fits takes names of cards, --steps N and --time-limit SECONDS: {message}.")


def load_ipython_extension(shell: Shell) -> None:
    """Register ``%gpudash``, ``%%fits`` and ``%%measure`` with IPython, and record the memory of this process."""
    extension = _Extension(shell)
    shell.register_magic_function(extension.show, magic_kind="line", magic_name="gpudash")
    shell.register_magic_function(extension.fits, magic_kind="cell", magic_name="fits")
    shell.register_magic_function(extension.measure, magic_kind="cell", magic_name="measure")
    shell.events.register("pre_run_cell", extension.before_cell)
    shell.events.register("post_run_cell", extension.after_cell)
    atexit.register(extension.close)
    # torch's out-of-memory is a RuntimeError; torch itself may not be imported yet
    shell.set_custom_exc((RuntimeError,), extension.failed)
    _loaded[id(shell)] = extension


def unload_ipython_extension(shell: Shell) -> None:
    """Unregister the magics and end the figure, for ``%unload_ext gpudash``."""
    extension = _loaded.pop(id(shell), None)
    if extension is not None:
        shell.events.unregister("pre_run_cell", extension.before_cell)
        shell.events.unregister("post_run_cell", extension.after_cell)
        atexit.unregister(extension.close)
        extension.close()
        shell.custom_exceptions = ()


_loaded: dict[int, _Extension] = {}


def live_figure(names: Mapping[str, Any] | None = None) -> LiveWidget:
    """The figure of ``%gpudash``, for notebooks without magics; only the newest one is live.

    Args:
        names: the notebook's, ``globals()``: the figure shows what they hold.

    Returns:
        an anywidget; in marimo pass it to ``mo.ui.anywidget``.

    Raises:
        RuntimeError: one sentence, when anywidget is missing.
    """
    if importlib.util.find_spec("anywidget") is None:
        raise RuntimeError(GET_FIGURE)
    from gpudash.session.api.live_figure import LiveFigure
    from gpudash.session.api.live_memory import LiveMemory

    while _in_cells:
        _in_cells.pop().stop(NEWER)
    figure = LiveFigure(lambda: _held_if_known(dict(names or {})), LiveMemory(), no_gpu=NO_GPU)
    _in_cells.append(figure)
    atexit.register(figure.close)
    return figure.widget


def _held_if_known(names: Mapping[str, Any]) -> HeldMemory | None:
    if "torch" not in sys.modules:  # so no name of the notebook is a tensor
        return None
    try:
        return held_by(names)
    except NothingKnownError:
        return None


class _Extension:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._figure: LiveFigure | None = None
        self._memory: LiveMemory | None = None
        self._figure_cell: str | None = None
        self._cell: str | None = None

    def show(self, line: str) -> LiveFigure | HeldMemory | None:
        """A live figure of this kernel, and what its names hold; "table" gives only the latter, "stop" ends it."""
        wanted = line.strip()
        if wanted not in ("", "table", "stop"):
            sys.stderr.write(f"%gpudash takes nothing, table or stop: {wanted!r} is none of them.\n")
            return None
        if wanted == "stop":
            self._stop("Stopped.")
            return None
        # a terminal shows no widgets
        if wanted == "table" or not hasattr(self._shell, "kernel"):
            return _reported(self._held)
        if importlib.util.find_spec("anywidget") is None:
            sys.stderr.write(f"{GET_FIGURE}\n")
            return _reported(self._held)
        return self._new_figure()

    def fits(self, line: str, cell: str) -> PredictedCell | CardAnswers | None:
        """Predict what this cell would take, without running it: %%fits l4 rtx4090 --steps 3 --time-limit 60."""
        return _reported(lambda: self._predict(line, cell))

    def measure(self, _line: str, cell: str) -> Measurement | None:
        """Run this cell and show what it took on the GPU."""

        def run() -> Measurement:
            counted = self._shell.execution_count
            # number its lines as those of the visible cell
            self._shell.execution_count = self._cell_number()
            try:
                with measure() as found:
                    self._shell.run_cell(cell)
            finally:
                self._shell.execution_count = counted
            return found

        return _reported(run)

    def before_cell(self, info: Any) -> None:
        """Record memory as soon as the notebook has a GPU, which a cell may have created; a figure that this very cell
        displayed has left the screen."""
        if "torch" in sys.modules:
            with suppress(NothingKnownError):
                follow_memory()
        self._cell = getattr(info, "cell_id", None)
        if self._figure is None:
            return
        if self._cell is not None and self._cell == self._figure_cell:
            self.close()
            return
        self._figure.cell_began(len(self._shell.user_ns["In"]))  # this cell is appended to it next

    def after_cell(self, _result: Any) -> None:
        """Update the figure with what the cell has left."""
        if self._figure is not None:
            self._figure.cell_ended()

    def close(self) -> None:
        """Stop the figure, and remove it from the screen."""
        if self._figure is not None:
            self._figure.close()
        self._figure = None

    def failed(
        self, shell: Shell, kind: type[BaseException], error: BaseException, _traceback: Any, tb_offset: Any = None
    ) -> None:
        """Show the error as IPython does; for an out-of-memory only the user's frames, followed by the explanation."""
        explained = None
        if kind.__name__ == "OutOfMemoryError":
            from gpudash.workloads.testing.gpu_memory import leave_out_machinery

            leave_out_machinery(error)
            explained = _reported(lambda: explain(error))
        shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset, running_compiled_code=True)
        if explained is not None:
            shell.display_pub.publish({"text/plain": str(explained), "text/html": explained.to_html()})

    def _new_figure(self) -> LiveFigure:
        from gpudash.session.api.live_figure import LiveFigure
        from gpudash.session.api.live_memory import LiveMemory

        self._stop(NEWER)
        if self._memory is None:
            self._memory = LiveMemory()
        self._figure = LiveFigure(lambda: _held_if_known(self._own_names()), self._memory, no_gpu=NO_GPU)
        self._figure.cell_began(self._cell_number())
        self._figure_cell = self._cell
        return self._figure

    def _stop(self, why: str) -> None:
        """Stop the figure; its last picture stays."""
        if self._figure is not None:
            self._figure.stop(why)
        self._figure = None

    def _held(self) -> HeldMemory:
        return held_by(self._own_names())

    def _cell_number(self) -> int:
        """The number of the running cell as displayed: IPython has already counted on."""
        return len(self._shell.user_ns["In"]) - 1

    def _own_names(self) -> dict[str, Any]:
        """The user's names, and IPython's output history."""
        hidden = self._shell.user_ns_hidden
        return {
            name: value
            for name, value in self._shell.user_ns.items()
            if name == "Out" or name.startswith("_") or name not in hidden
        }

    def _predict(self, line: str, cell: str) -> PredictedCell | CardAnswers:
        parser = _Flags(prog="%%fits", add_help=False, allow_abbrev=False)
        parser.add_argument("cards", nargs="*")
        parser.add_argument("--steps", type=int, default=STEPS)
        parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S)
        options = parser.parse_args(shlex.split(line))
        return predict_cell(
            self._shell.transform_cell(cell),
            self._shell.user_ns.get("In", [])[:-1],
            cards=options.cards,
            steps=options.steps,
            time_limit_s=options.time_limit,
        )


def _reported(do: Callable[[], T]) -> T | None:
    """The result of ``do``; if it refuses, print the sentence without a traceback."""
    try:
        return do()
    except (PredictionError, NothingKnownError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return None

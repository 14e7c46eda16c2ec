"""Steps and losses of the program: from its own logging, from its trainer, or else by counting its optimizer's steps.

`listen` receives ``logging.getLogger("gpudash").info("step", extra={"step": i, "loss": x})``, at any log level.
`follow_transformers` and `follow_lightning` were tested with transformers 5.23 and lightning 2.6; a trainer with
another structure is left alone.
"""

from __future__ import annotations

import sys
import time
import weakref
from _collections import deque  # type: ignore[import-not-found]  # of C, and in no stub
from collections.abc import Callable
from functools import wraps
from typing import Any

from ..guest import guarded, restoring, undo_nothing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .step_clock import StepClock

    Step = list[Any]
    """Number, time in microseconds since 1970, loss, accuracy, epoch, validation loss; ``None`` if unknown."""

MOST_WAITING = 4096
"""Most steps between two messages; beyond that, the oldest are dropped."""

BETWEEN_WAITS_S = 0.5
"""Shortest interval between two reads of a value on a GPU, because the program then waits for the GPU."""

MOST_MARKS = 10_000
"""Number of steps whose times are kept."""

OPTIMIZER = "optimizer"
"""Source of steps that are not reported: the optimizer's are counted, from 1."""


class Steps:
    """Collects steps until they are taken.

    Attributes:
        label: number of the current step: one more than the newest reported, plus the optimizer's steps since; if none
            was reported, the optimizer's steps; 0 before the first.
        present: the program's own number for the current step: one more than the newest reported; if none was,
            `label`.
        lost: steps that were dropped.
        began_us: start of the first step in microseconds since 1970, if the program's trainer reported it; otherwise
            unknown, so that earlier activity is not part of it.
        source: source of the newest step: "logging", "transformers", "lightning", or `OPTIMIZER` before any of these.
        on_label: callback for every new label.
    """

    def __init__(self) -> None:
        self.label = 0
        self.lost = 0
        self.began_us: int | None = None
        self.source = OPTIMIZER
        self._newest: int | None = None
        self._first: Step | None = None
        self.on_label: Callable[[int], None] | None = None
        self._marks: deque[tuple[int, int]] = deque(maxlen=MOST_MARKS)
        self._waiting: deque[Step] = deque()
        self._next_reads_s: dict[str, float] = {}
        self._reported: tuple[float | None, float | None] = (None, None)

    def note(
        self,
        source: str,
        step: Any,
        loss: Any = None,
        accuracy: Any = None,
        epoch: Any = None,
        val_loss: Any = None,
    ) -> None:
        """Record the end of a step; ignores values that are not numbers. Keeps no value, as it may hold a graph in
        memory."""
        number = whole_number(step)
        if number is None:
            return
        # The first step that the program reports itself: from here on, the optimizer's are not counted.
        if self._newest is None:  # counted steps had other numbers
            self._first = None
            self._waiting.clear()
        self.source = source
        self._newest = number
        now_us = time.time_ns() // 1000
        self._begin(number + 1, now_us)
        # One by one: in the program's thread, after every step, a loop takes longer than what it does.
        numbers = [
            self._number("loss", loss),
            self._number("accuracy", accuracy),
            self._number("epoch", epoch),
            self._number("val_loss", val_loss),
        ]
        if numbers[0] is not None or numbers[1] is not None:
            self._reported = (numbers[0], numbers[1])
        last = None
        if self._waiting:
            last = self._waiting[-1]
        if last is not None and last[0] == number:
            # Another report of the same step, such as its loss: add what is new.
            last[2:] = [new if new is not None else old for new, old in zip(numbers, last[2:])]
            # Another thread may have taken it: then report it again, with everything known.
            if self._waiting and self._waiting[-1] is last:
                return
        self._waiting.append([number, now_us, *numbers])
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self.lost += 1

    def begins(self) -> None:
        """A step begins."""
        if self.began_us is None and not self.label:
            self.began_us = time.time_ns() // 1000

    @property
    def present(self) -> int:
        if self._newest is None:
            return self.label
        return self._newest + 1

    def optimizer_stepped(self, made: int = 1) -> None:
        """Record steps of the program's optimizer. They are reported until numbered steps with a loss come from
        elsewhere.

        The first one waits for the second: most programs report their first step in between.
        """
        now_us = time.time_ns() // 1000
        self._begin(self.label + made, now_us)
        if self._newest is not None:
            return
        step: Step = [self.label, now_us, None, None, None, None]
        # Wait, since the program's own first step usually follows immediately, and would be reported twice.
        if self.label == 1:
            self._first = step
            return
        if self._first is not None:
            self._waiting.append(self._first)
            self._first = None
        self._waiting.append(step)
        if len(self._waiting) > MOST_WAITING:  # a dropped step has nothing that the next one lacks
            self._waiting.popleft()

    def newest_reported(self) -> tuple[float | None, float | None]:
        """Loss and accuracy reported since the last call."""
        found = self._reported
        self._reported = (None, None)
        return found

    def label_at(self, time_us: int) -> int:
        """The label at a time in microseconds since 1970; 0 before the first."""
        from bisect import bisect_right

        marks = list(self._marks)
        place = bisect_right(marks, (time_us, sys.maxsize)) - 1
        if place < 0:
            return 0
        label: int = marks[place][1]
        return label

    def take(self, *, last: bool = False) -> list[Step]:
        """New steps since the last call.

        Args:
            last: whether this is the last call.
        """
        found: list[Step] = []
        if last and self._first is not None:
            self._waiting.append(self._first)
            self._first = None
        # One by one, not by copying and clearing: the program's thread may append in between.
        while self._waiting:
            found.append(self._waiting.popleft())
        return found

    def _begin(self, label: int, now_us: int) -> None:
        self.label = label
        self._marks.append((now_us, label))
        if self.on_label is not None:
            self.on_label(label)

    def _number(self, kind: str, value: Any) -> float | None:
        if value is None or isinstance(value, (bool, str, bytes)):
            return None
        if isinstance(value, (int, float)):
            return float_of(value.__float__)
        device = getattr(value, "device", None)
        # Reading a value waits for the GPU, which the program itself would not have done.
        if device is not None and str(device) != "cpu":
            now = time.monotonic()
            if now < self._next_reads_s.get(kind, 0.0):
                return None
            self._next_reads_s[kind] = now + BETWEEN_WAITS_S
        # item(), not float(), which warns about a tensor with a gradient.
        item = getattr(value, "item", None)
        if item is None:
            return None
        return float_of(item)


def whole_number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = int(value.__index__())
    except Exception:
        return None
    if abs(number) < 2**63:
        return number
    return None


def float_of(item: Callable[[], Any]) -> float | None:
    try:
        return float(item())
    except Exception:
        return None


PATIENCE = 3
"""Steps of another optimizer, without one of the counted optimizer, after which that one is counted: a second training
has begun. A GAN's two take turns, one possibly more often."""


class OptimizerSteps:
    """Counts optimizer steps: those of the program's first optimizer, and when it stops, those of another.

    Args:
        steps: receives the steps.
        then: callback with the optimizer after each counted step.
        clock: receives the steps of every optimizer, and the counted ones.
        ends: callback at the end of each counted step, before the next one begins.
    """

    def __init__(
        self,
        steps: Steps,
        then: Callable[[Any], None] | None = None,
        clock: StepClock | None = None,
        ends: Callable[[], None] | None = None,
    ) -> None:
        self._steps = steps
        self._then = then
        self._clock = clock
        self._ends = ends
        self._counted: Any = None
        self._others: dict[int, int] = {}
        self._left = False
        self._undo: list[Callable[[], None]] = []

    def follow(self) -> None:
        """Hook every step of any optimizer from now on; does nothing if torch has no such hook."""
        module = sys.modules.get("torch.optim.optimizer")
        self._hook(module, "post", self.stepped)
        if self._clock is not None:
            self._hook(module, "pre", self.begins)

    def _hook(self, module: Any, when: str, call: Callable[[Any, Any, Any], None]) -> None:
        register = getattr(module, f"register_optimizer_step_{when}_hook", None)
        if register is None:
            return
        # A new entry in the dict while torch iterates over it would raise in the program: if there are hooks, replace
        # one.
        hooks = getattr(module, f"_global_optimizer_{when}_hooks", None)
        if hooks:
            self._undo.append(_call_with(hooks, next(reversed(hooks)), call))
        else:
            handle = register(call)
            self._undo.append(lambda: _removed(hooks, handle))

    def leave(self) -> None:
        """Remove the hooks."""
        self._left = True
        for undo in self._undo:
            undo()

    def begins(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Called by torch before a step."""
        if self._clock is not None and not self._left:
            self._clock.optimizer_begins()

    def stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Called by torch after a step."""
        if self._left:
            return
        if self._clock is not None:
            self._clock.optimizer_ended()
        # A weak reference, so that the agent keeps no optimizer alive.
        counted = None
        if self._counted is not None:
            counted = self._counted()
        made = 1
        if counted is not optimizer:
            if counted is not None:
                made = self._others.get(id(optimizer), 0) + 1
                self._others[id(optimizer)] = made
                if made < PATIENCE:
                    return
            self._counted = weakref.ref(optimizer)
        # The counted one has made a step: the others have not replaced it.
        if self._others:
            self._others.clear()
        if self._ends is not None:
            self._ends()
        self._steps.optimizer_stepped(made)
        if self._clock is not None:
            self._clock.step_ended()
        if self._then is not None:
            self._then(optimizer)


def _call_with(hooks: Any, number: int, also: Callable[..., None]) -> Callable[[], None]:
    """Have ``also`` called after one of the program's hooks; returns a function that undoes it.

    Another thread may be iterating over the hooks: adding or removing an entry would raise an error there, but
    replacing a value does not.
    """
    own = hooks[number]

    def both(optimizer: Any, args: Any, kwargs: Any) -> Any:
        found = own(optimizer, args, kwargs)
        also(optimizer, args, kwargs)
        return found

    def undo() -> None:
        if hooks.get(number) is both:
            hooks[number] = own

    hooks[number] = both
    return undo


def _removed(hooks: Any, handle: Any) -> None:
    """Remove a hook; if it is not the last one it becomes inert instead, since another thread may be iterating past
    it.

    A thread that has reached the last hook looks no further.
    """
    if hooks is None or not hooks or next(reversed(hooks)) == handle.id:
        handle.remove()


NAME = "gpudash"

OnStep = Callable[[dict[str, Any]], None]


def listen(logging: Any, on_step: OnStep) -> Callable[[], None]:
    """Have ``on_step`` receive the ``extra`` of every ``info("step", ...)`` of the logger `NAME`.

    The logger is created when the program asks for it, with the program's class; only then does its class become one
    that also listens.

    Returns:
        A function that undoes it.
    """
    manager = logging.Logger.manager

    def undo() -> None:
        with logging._lock:
            now = manager.loggerDict.get(NAME)
            if isinstance(now, logging.Logger):
                base = getattr(type(now), "_gpudash_listens", None)
                if base is not None:
                    now.__class__ = base
            elif now is not None and now is place:
                _put_back(logging, manager.loggerDict, now.children, found)

    place: Any = None
    found = manager.loggerDict.get(NAME)
    if isinstance(found, logging.Logger):
        found.__class__ = _listening(logging, type(found), on_step)
        return undo

    class Place(logging.PlaceHolder):  # type: ignore[misc]
        """Placeholder for the logger; the manager reads `loggerMap` from it as soon as the logger exists."""

        @property
        def loggerMap(self) -> Any:  # noqa: N802 - the name that logging asks for
            made = manager.loggerDict.get(NAME)
            if isinstance(made, logging.Logger) and not hasattr(type(made), "_gpudash_listens"):
                made.__class__ = _listening(logging, type(made), on_step)
            return self.children

    place = Place.__new__(Place)
    if found is None:
        place.children = {}
    else:
        place.children = found.loggerMap
    manager.loggerDict[NAME] = place
    return undo


def _put_back(logging: Any, loggers: dict[str, Any], children: dict[Any, Any], found: Any) -> None:
    """Restore the logger's previous entry, with the children added since."""
    if found is None and not children:
        del loggers[NAME]
        return
    if found is None:
        found = logging.PlaceHolder.__new__(logging.PlaceHolder)
        found.loggerMap = children
    loggers[NAME] = found


def _listening(logging: Any, base: Any, on_step: OnStep) -> Any:
    plain = base.info is logging.Logger.info

    def info(self: Any, msg: Any, *args: Any, **kwargs: Any) -> None:
        if msg == "step":
            extra = kwargs.get("extra")
            if isinstance(extra, dict):
                on_step(extra)
        if not plain:
            # A class with its own `info` finds the caller itself.
            base.info(self, msg, *args, **kwargs)
        elif self.isEnabledFor(20):
            self._log(20, msg, args, **kwargs)

    # So that logging treats this frame as its own when it looks for the caller.
    info.__code__ = info.__code__.replace(co_filename=logging._srcfile)
    members = {"info": info, "_gpudash_listens": base, "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), members)


def follow_transformers(module: Any, steps: Steps) -> Callable[[], None]:
    """Observe the events of ``transformers.trainer_callback.CallbackHandler``; returns a function that undoes it."""
    handler: Any = getattr(module, "CallbackHandler", None)
    if not hasattr(handler, "on_step_end") or not hasattr(handler, "on_log"):
        return undo_nothing
    report = guarded(_report)
    step_end = handler.on_step_end
    log = handler.on_log
    step_begin = getattr(handler, "on_step_begin", None)

    @wraps(step_end)
    def on_step_end(self: Any, args: Any, state: Any, control: Any) -> Any:
        report(steps, state, {})
        return step_end(self, args, state, control)

    @wraps(log)
    def on_log(self: Any, args: Any, state: Any, control: Any, logs: Any, *more: Any, **named: Any) -> Any:
        report(steps, state, logs)
        return log(self, args, state, control, logs, *more, **named)

    made = {"on_step_end": on_step_end, "on_log": on_log}
    if step_begin is None:
        return restoring(handler, made)

    @wraps(step_begin)
    def on_step_begin(self: Any, args: Any, state: Any, control: Any) -> Any:
        steps.begins()
        return step_begin(self, args, state, control)

    return restoring(handler, {**made, "on_step_begin": on_step_begin})


def _report(steps: Steps, state: Any, logs: Any) -> None:
    values = {}
    if isinstance(logs, dict):
        values = logs
    accuracy = values.get("accuracy", values.get("eval_accuracy"))
    # A dictionary without a loss, such as an evaluation's, says nothing about training.
    epoch = getattr(state, "epoch", None)
    step = getattr(state, "global_step", None)
    steps.note("transformers", step, values.get("loss"), accuracy, epoch, values.get("eval_loss"))


def follow_lightning(module: Any, steps: Steps) -> Callable[[], None]:
    """Observe the hooks of ``lightning.pytorch.trainer.call`` for callbacks; returns a function that undoes it."""
    call = getattr(module, "_call_callback_hooks", None)
    if call is None:
        return undo_nothing
    report = guarded(_report_batch)
    report_validation = guarded(_report_validation)

    @wraps(call)
    def _call_callback_hooks(trainer: Any, hook_name: str, *args: Any, **kwargs: Any) -> Any:
        if hook_name == "on_train_batch_start":
            steps.begins()
        elif hook_name == "on_train_batch_end":
            outputs = None
            if args:
                outputs = args[0]
            report(steps, trainer, outputs)
        elif hook_name == "on_validation_end":
            report_validation(steps, trainer)
        return call(trainer, hook_name, *args, **kwargs)

    return restoring(module, {"_call_callback_hooks": _call_callback_hooks})


def _report_batch(steps: Steps, trainer: Any, outputs: Any) -> None:
    loss = outputs
    if isinstance(outputs, dict):
        loss = outputs.get("loss")
    epoch = getattr(trainer, "current_epoch", None)
    steps.note("lightning", getattr(trainer, "global_step", None), loss, None, epoch)


def _report_validation(steps: Steps, trainer: Any) -> None:
    """The value of ``self.log("val_loss", ...)``; sanity-check batches do not count."""
    if getattr(trainer, "sanity_checking", False):
        return
    metrics = getattr(trainer, "callback_metrics", None)
    val_loss = None
    if metrics is not None:
        val_loss = metrics.get("val_loss")
    if val_loss is not None:
        epoch = getattr(trainer, "current_epoch", None)
        steps.note("lightning", getattr(trainer, "global_step", None), None, None, epoch, val_loss)

"""A whole program in a dry run, from its import of torch until it has taken some steps. The GPUs that it calls
``cuda`` do not exist, and its requests to their allocators are recorded.

Everything here belongs to the program's main thread.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from gpudash.memory.allocator.settings import allocator_text
from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.as_cuda import answering, notices
from gpudash.simulator.device.backend import register
from gpudash.simulator.device.simulated_gpu import SimulatedGpu
from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.dry_run import own_code
from gpudash.simulator.dry_run.dry_run import ENDLESS, DryRun, ReportedCard
from gpudash.simulator.dry_run.generating import generating_to_the_end
from gpudash.simulator.dry_run.host_tensors import HostTensors
from gpudash.simulator.dry_run.missing_numbers import KnownIntegers, explains
from gpudash.simulator.dry_run.programs import peers
from gpudash.simulator.dry_run.programs.checkpoints import KeptCheckpoints, saving_by_python
from gpudash.simulator.dry_run.programs.lines import LineRecorder
from gpudash.simulator.dry_run.programs.loaders import EPOCHS, Loaders
from gpudash.simulator.dry_run.refusals import explaining_errors
from gpudash.simulator.dry_run.uncompiled import LeftUncompiled, compiling_nothing
from gpudash.simulator.faults import hands_on
from gpudash.simulator.refusal import CannotPredictError
from gpudash.simulator.step_work.work_log import WorkLog

EQUAL_PASSES = 100
"""How many consecutive forward passes of an inference must start and end with the same memory before it is ended: then
they are batches of a data set, not the steps of one picture or text."""

ENDED_EQUAL = (
    "the last {count} forward passes took the same memory; what comes after them was not run, such as what decodes "
    "their result"
)
ENDED_STEPS = "ended after step {steps}; what comes later was not run"
ENDED_EARLY = f"{ENDED_STEPS}, but what follows an epoch was: data loaders of the training were ended early for that"
ENDED_LOADERS = "data loaders of the training were ended early, after step {steps}"
LARGEST = "the last batch was the largest of {count} more"

AFTER_S = 8.0
"""Processor time in seconds that a program gets after the followed steps, to reach an evaluation."""

EQUAL_STEPS = 5
"""How many more steps with the same peak suggest that a program will not evaluate."""

Send = Callable[[Mapping[str, Any]], None]
WhenImported = Callable[[str, Callable[[Any], None]], None]


def begin(config: Mapping[str, Any], send: Send, when_imported: WhenImported) -> FollowedProgram:
    """Give the program its GPUs, and follow it from here on.

    Args:
        config: ``cards``, each ``{"product", "total_bytes", "capability", "multiprocessors"}``; ``steps`` to follow;
            ``whole_s``: processor time after them in which it may reach its own end; ``numbers``: "unknown", "guessed"
            if the program branches on them, or "computed"; ``lets_write``: whether it may write; ``scratch``: the
            folder for what it writes if Python's functions prevent writing, else "".
        send: sends a message with a result.
        when_imported: calls a function with a module once that is imported.

    Raises:
        RuntimeError: in one sentence, if torch does not support such a device, or a real GPU is in use.
    """
    send({"type": "torch"})
    program = FollowedProgram(int(config["steps"]), float(config["whole_s"]), send)
    program.start(
        _cards(config),
        when_imported,
        numbers=str(config["numbers"]),
        lets_write=bool(config["lets_write"]),
        by_python=bool(config["scratch"]),
    )
    return program


def _spent_s() -> float:
    """Processor time of this process and of the ended processes it started, such as workers of its data loaders."""
    return sum(os.times()[:4])


def _cards(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """At least one card for each rank on this machine."""
    cards: list[Mapping[str, Any]] = list(config["cards"])
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return [*cards, *cards[-1:] * (ranks - len(cards))]


class FollowedProgram:
    """The program that this process runs.

    Args:
        steps: of its optimizer that are followed.
        whole_s: processor time in seconds since its start in which the program may reach its own end after the steps,
            or after equal passes of an inference.
        send: sends a message with a result.
    """

    def __init__(self, steps: int, whole_s: float, send: Send) -> None:
        self._steps = steps
        self._whole_s = whole_s
        self._send = send
        self._stack = ExitStack()
        self._made: Counter[int] = Counter()
        self._recorders: list[LineRecorder] = []
        self._optimizers = False
        self._running = 0
        self._loaders = Loaders()
        self._uses_gpu = False
        self._after_s: float | None = None
        self._evaluated = False
        self._peaks: list[int] = []
        self._pass: tuple[int, ...] = ()
        self._equal = 0
        self._answered = False
        self._computes = False
        self._end_remark = ""

    def start(
        self,
        cards: list[Mapping[str, Any]],
        when_imported: WhenImported,
        *,
        numbers: str,
        lets_write: bool,
        by_python: bool,
    ) -> None:
        """Give it its cards, and record what happens on them.

        Args:
            cards, numbers, lets_write: as for `begin`.
            when_imported: as for `begin`.
            by_python: whether Python's functions prevent what it writes.
        """
        self._allocator = allocator_text()
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        self._computes = computes = numbers == "computed"
        own_code.guesses.on = numbers == "guessed"
        architectures = [Architecture(tuple(card["capability"]), card["multiprocessors"]) for card in cards]
        if computes:
            backend = register(
                [SimulatedGpu(place, ENDLESS, context=0, architecture=one) for place, one in enumerate(architectures)]
            )
        else:
            dry = DryRun()
            dry.reported_card = ReportedCard(str(cards[0]["product"]), int(cards[0]["total_bytes"]))
            dry.put_cards(architectures)
            backend = dry.backend
            engine = backend.engine
            engine.integers = KnownIntegers(engine.storages, own_code.assume)
        answering.answer_for_cuda(backend)
        self._left = LeftUncompiled()
        self._log = backend.engine.work_log = WorkLog()
        self._tracker = tracker = Tracker(backend.engine, stacks=False, log=self._log)
        tracker.step = 1
        tracker.start()
        self._recorders = [LineRecorder(backend, tracker, index, self._first_used) for index in range(len(cards))]
        for recorder in self._recorders:
            recorder.start()
        self._loaders.follow()
        for name in EPOCHS:
            when_imported(name, self._loaders.lightning_imported)
        self._see_optimizers()
        optimizer_hooks.register_optimizer_step_post_hook(self._stepped)
        module_hooks.register_module_forward_pre_hook(self._enter)
        module_hooks.register_module_forward_hook(self._leave, always_call=True)
        if computes:
            if by_python:
                torch.save = saving_by_python(torch.save)
                when_imported("safetensors.torch", lambda module: setattr(module, "serialize_file", _write_nothing))
            return
        peers.without_peers(backend.engine, when_imported)
        notices.listeners.append(lambda sentence: own_code.assume(sentence.rstrip("."), within_torch=True))
        kept = None
        if not lets_write:
            kept = KeptCheckpoints()
        self._stack.enter_context(own_code.checkpoints_without_numbers(kept))
        self._stack.enter_context(own_code.standing_in())
        self._stack.enter_context(compiling_nothing(self._left))
        # its generate functions exist once this module is imported
        when_imported("transformers.generation.utils", self._generating_imported)
        self._stack.enter_context(HostTensors())

    def raised(self, error: BaseException) -> bool:
        """Handle an uncaught exception that ends the program; returns whether missing numbers caused it."""
        if self._answered or isinstance(error, KeyboardInterrupt):
            return self._answered
        try:
            with explaining_errors():
                raise error
        except CannotPredictError as found:
            ours = found.kind in ("data_dependent", "gpudash") or explains(error)
            said = str(found)
            if found.kind == "raised" and not ours and peers.are_missed():
                ours = True  # with numbers the ranks exchange them by gloo
                said = f"{said} {peers.missed[-1]}"
            self._report_failure(found.kind, said, found.remedy, because_of_numbers=ours)
            return ours
        return False

    def ended(self) -> None:
        """Handle the normal end of the program."""
        if self._answered:
            return
        if self._loaders.ended:
            self._end_remark = ENDED_LOADERS.format(steps=max(self._made.values(), default=0))
        self._answer(ended=True)

    def _generating_imported(self, _module: Any) -> None:
        self._stack.enter_context(generating_to_the_end(own_code.assume))

    def _first_used(self) -> None:
        self._send({"type": "cuda"})
        if not self._uses_gpu:
            self._uses_gpu = True
            self._made.clear()  # steps on the CPU are not followed
            self._after_s = None
            self._peaks.clear()

    def _see_optimizers(self) -> None:
        kind: Any = torch.optim.Optimizer
        make = kind.__init__

        @hands_on
        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._optimizers = True
            make(optimizer, *args, **kwargs)

        kind.__init__ = made

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._answered:
            return
        before = max(self._made.values(), default=0)
        self._made[id(optimizer)] += 1
        steps = max(self._made.values())
        if steps == before:
            return  # another optimizer's, such as the second of a GAN
        for recorder in self._recorders:
            recorder.end_step()
        if steps >= self._steps:
            self._peaks.append(sum(recorder.taken_peak() for recorder in self._recorders))
            if self._after_s is None:
                self._end_loaders()
            elif self._evaluated or self._is_over():
                self._end_after_steps()
        self._tracker.step = steps + 1

    def _end_loaders(self) -> None:
        """Let the program reach the code after an epoch, once it has had time to reach its own end."""
        now_s = _spent_s()
        if now_s >= self._whole_s:
            self._after_s = now_s
            self._loaders.end()

    def _is_over(self) -> bool:
        """Whether the time after the steps is over, or nothing new is expected of the program."""
        last = self._peaks[-EQUAL_STEPS - 1 :]
        equal = len(last) > EQUAL_STEPS and len(set(last)) == 1
        return equal or (self._after_s is not None and _spent_s() - self._after_s > AFTER_S)

    def _end_after_steps(self) -> None:
        steps = max(self._made.values())
        if not self._uses_gpu:
            self._send({"type": "unused", "steps": steps})
            return
        self._end_remark = (ENDED_EARLY if self._evaluated and self._loaders.ended else ENDED_STEPS).format(steps=steps)
        self._end()

    def _enter(self, _module: nn.Module, _args: Any) -> None:
        self._running += 1

    def _leave(self, module: nn.Module, args: Any, _result: Any) -> None:
        self._running = max(0, self._running - 1)
        if self._running or self._answered:
            return
        if self._after_s is not None:
            self._evaluated |= not torch.is_grad_enabled()
            if self._evaluated and self._is_over():
                self._end_after_steps()
            return
        if not self._uses_gpu or self._made or (self._optimizers and torch.is_grad_enabled()):
            return
        self._tracker.end_pass()
        sizes = [size for given in args if isinstance(given, torch.Tensor) for size in given.shape]
        now = (id(module), *sizes, *(recorder.allocated_bytes for recorder in self._recorders))
        if now == self._pass:
            self._equal = self._equal + 1
        else:
            self._equal = 0
        self._pass = now
        # a program that can reach its own end may do so: the code after its batches may fail
        if self._equal >= EQUAL_PASSES and _spent_s() >= self._whole_s:
            self._end_remark = ENDED_EQUAL.format(count=EQUAL_PASSES)
            self._end()

    def _end(self) -> None:
        """Stop all output, send the result, and wait for the signal that ends the program."""
        silent = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        self._answer()
        if threading.current_thread() is threading.main_thread():
            signal.pause()

    def _answer(self, *, ended: bool = False) -> None:
        self._answered = True
        self._tracker.finish(whole=False)
        for recorder in self._recorders:
            recorder.stop()
        steps = max(self._made.values(), default=0)
        cards = [
            {
                "index": index,
                "trace": replace(recorder.trace, followed=steps, count_work=self._log.work).to_json(),
                "lines": recorder.lines_at_peak(),
                "kept": recorder.kept_by_step(),
                "fraction": recorder.fraction,
            }
            for index, recorder in enumerate(self._recorders)
            if recorder.trace.events
        ]
        if self._computes:
            assumptions = []
        else:
            assumptions = [*own_code.assumptions(), *self._left.assumptions()]
        if self._computes:
            assumptions += [sentence.rstrip(".") for sentence in notices.emitted]
        self._send(
            {
                "type": "answer",
                "cards": cards,
                "assumptions": assumptions,
                "remark": self._remark(),
                "ended": ended,
                "is_whole": ended and not self._loaders.ended,
                "allocator": self._allocator,
                "torch": torch.__version__,
                **self._place_among_ranks(),
            }
        )

    def _remark(self) -> str:
        if not self._loaders.ahead:
            return self._end_remark
        return "; ".join(filter(None, (self._end_remark, LARGEST.format(count=self._loaders.ahead))))

    def _place_among_ranks(self) -> dict[str, Any]:
        from torch import distributed

        there = distributed.is_available() and distributed.is_initialized()
        if there:
            return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
        return peers.known or {"rank": None, "world_size": 1}

    def _report_failure(self, kind: str, message: str, remedy: str, *, because_of_numbers: bool) -> None:
        self._answered = True
        peak = max((recorder.peak_bytes for recorder in self._recorders), default=0)
        error = {"kind": kind, "message": message, "remedy": remedy}
        self._send({"type": "failed", "error": error, "because_of_numbers": because_of_numbers, "peak_bytes": peak})


def _write_nothing(*_args: Any, **_kwargs: Any) -> None:
    """Replaces functions that write a file without opening it in Python."""

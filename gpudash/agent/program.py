"""The watched program from inside: what is reported to the dashboard, and when.

Every Python that the program starts runs this, and most have nothing to report: optional parts are imported late.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time

# Importing functools itself would delay every watched Python.
from _functools import partial  # type: ignore[import-not-found]

from .attach.lasting import Lasting
from .channel import Channel
from .guest import guarded, take_faults
from .importing import PostImport
from .sampler import Sampler
from .stepping.steps import Steps
from .wire import PROTOCOL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .memory.gpus import Gpus
    from .stepping.distributed import Distributed
    from .stepping.scalars import Scalars
    from .stepping.step_clock import StepClock
    from .wire import Message

LAST_OUTPUT_S = 0.25
"""Longest time that the program's end is delayed by a dashboard that does not read."""

LAST_POLL_S = 5.0
"""Longest time that it is delayed by a snapshot in progress."""

PERIOD_S = 0.1

YIELD_S = 3.0
"""Longest wait of an attaching agent for another one that is about to leave."""


def begin(environment: Mapping[str, str]) -> None:
    """Watch this process, if a dashboard listens.

    Raises:
        OSError: if none does.
    """
    Agent(environment["GPUDASH_SOCKET"], environment.get("GPUDASH_AGENT", "")).start()


def attach(path: str, config: str) -> None:
    """Watch this running process, until the dashboard detaches.

    Args:
        path, config: as in `Agent`.

    Raises:
        OSError: if nobody listens.
    """
    Agent(path, config, attached=True).start()


class Agent:
    """Watches its process. The program must not notice anything of it, except for a little time.

    Args:
        path: path of the dashboard's socket.
        config: the dashboard's settings, as JSON.
        attached: whether it was attached to a running program: then detaching undoes everything.

    Raises:
        OSError: if nobody listens.
    """

    def __init__(self, path: str, config: str, *, attached: bool = False) -> None:
        self._path = path
        self._attached = attached
        self._lasting = Lasting()
        self._undo: list[Callable[[], None]] = []
        self._wiring = _thread.RLock()
        self._reporting = _thread.RLock()
        self._gone = False
        self._at_exit: Callable[[], None] = guarded(self._end)
        self._config_text = config
        self._channel = Channel(path)
        self._began_s = time.monotonic()
        self._imports = PostImport()
        self._steps = Steps()
        self._gpus: Gpus | None = None
        self._distributed: Distributed | None = None
        self._clock: StepClock | None = None
        self._scalars: Scalars | None = None
        self._sampler: Sampler | None = None
        self._follows_imports = False
        self._postponed: list[Message] = []
        self._reported_lost = 0

    def start(self) -> None:
        """Introduce the process, and follow the program's imports."""
        if self._attached:
            if not self._claimed():
                return
        else:
            guarded(_print_by_lines)()
            self._lasting.claim(self._is_here)
        self._hello(forked=False)
        self._lasting.call("before_fork", guarded(self._before_fork))
        self._lasting.call("after_fork_in_parent", guarded(self._resume))
        self._lasting.call("after_fork_in_child", guarded(self._after_fork_in_child))
        self._lasting.given("before_fork", lambda call: os.register_at_fork(before=call))
        self._lasting.given("after_fork_in_parent", lambda call: os.register_at_fork(after_in_parent=call))
        self._lasting.given("after_fork_in_child", lambda call: os.register_at_fork(after_in_child=call))
        atexit.register(self._at_exit)
        wanted: dict[str, Callable[[Any], None]] = {
            # Before torch, as in torch's own import: the optimizer's hook is created with what this one creates.
            "torch.nn.parallel.distributed": self._distributed_imported,
            "torch.utils.data.dataloader": self._loading_imported,
            "torch": self._torch_imported,
            "torch._dynamo.trace_rules": self._compiler_imported,
            "torch._dynamo.skipfiles": self._compiler_imported,
            "threading": self._threading_imported,
            "logging": self._logging_imported,
            "transformers.trainer_callback": self._transformers_imported,
            "lightning.pytorch.trainer.call": self._lightning_imported,
            "pytorch_lightning.trainer.call": self._lightning_imported,
            "torch.utils.tensorboard.writer": self._tensorboard_imported,
            "tensorboardX.writer": self._tensorboard_imported,
            "wandb.sdk.wandb_run": self._wandb_imported,
            "mlflow.tracking.client": self._mlflow_imported,
        }
        if self._attached:
            self._sample()
        for name, callback in wanted.items():
            self._imports.call(name, partial(self._unless_gone, callback))
        self._follows_imports = True

    def post(self, message: Message) -> None:
        """Send a reading; if it is lost, later ones make up for it."""
        self._channel.post(_dated(message))

    def keep(self, message: Message) -> None:
        """Send a message that must not be lost."""
        self._channel.post(_dated(message), keep=True)

    def _hello(self, *, forked: bool) -> None:
        facts = {
            "protocol": PROTOCOL,
            "ppid": os.getppid(),
            "argv": _command(),
            "executable": sys.executable,
            "python": ".".join(map(str, sys.version_info[:3])),
            "rank": _number("RANK"),
            "local_rank": _number("LOCAL_RANK"),
            "world_size": _number("WORLD_SIZE"),
            "local_world_size": _number("LOCAL_WORLD_SIZE"),
            "group_rank": _number("GROUP_RANK"),
            "restart": _number("TORCHELASTIC_RESTART_COUNT"),
            "run": _run_name(),
            "host": os.uname().nodename,
            "forked": forked,
            "attached": self._attached,
        }
        self.keep({"type": "hello", **facts})

    def _unless_gone(self, callback: Callable[[Any], None], module: Any) -> None:
        with self._wiring:
            if not self._gone:
                callback(module)

    def _claimed(self) -> bool:
        """Become the only agent of this process; if that is impossible, report it and detach."""
        deadline = time.monotonic() + YIELD_S
        while not self._lasting.claim(self._is_here):
            if time.monotonic() > deadline:
                self.keep({"type": "hello", "protocol": PROTOCOL, "refused": "watched"})
                self._channel.drain(LAST_OUTPUT_S)
                self._channel.close()
                return False
            time.sleep(0.05)
        return True

    def _is_here(self) -> bool:
        """Whether this agent still watches; checks for the dashboard's end, in case nothing else would notice it."""
        if self._channel.alive and (self._sampler is None or not self._sampler.running):
            self._channel.receive()
        if not self._channel.alive and (self._sampler is None or not self._sampler.running):
            self._leave()
        return self._channel.alive

    def _config(self) -> dict[str, Any]:
        import json

        try:
            found = json.loads(self._config_text)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        return {}

    def _sample(self) -> None:
        """Let the sampler poll from now on."""
        if self._sampler is None:
            period_s = float(self._config().get("period_s") or PERIOD_S)
            self._sampler = Sampler(self._poll, period_s, self._channel.is_spoken_to)
        self._sampler.start()

    def _torch_imported(self, torch: Any) -> None:
        from .memory.gpus import Gpus
        from .stepping.batch_shapes import BatchShapes
        from .stepping.steps import OptimizerSteps

        then = None
        if self._distributed is not None:
            then = guarded(self._distributed.stepped)
        clock = self._step_clock()
        self._undo.append(clock.follow_backward(getattr(torch, "autograd", None)))
        shapes = BatchShapes(torch)
        optimizers = OptimizerSteps(self._steps, then, clock, guarded(shapes.step_ended))
        self._undo.append(optimizers.leave)
        guarded(optimizers.follow)()
        report_steps = guarded(self._report_steps)
        self._gpus = Gpus(torch, self._config(), self.post, self.keep, self._steps, report_steps, self._lasting, shapes)
        self._undo.append(self._gpus.detach)
        self._gpus.attach()
        self._sample()

    def _distributed_imported(self, module: Any) -> None:
        ranks = self._ranks()
        self._undo.append(ranks.follow(module))
        distributed, streams = sys.modules.get("torch.distributed"), sys.modules.get("torch.cuda.streams")
        self._undo.append(ranks.follow_waits(getattr(distributed, "Work", None)))
        self._undo.append(
            ranks.follow_streams(getattr(distributed, "ProcessGroup", None), getattr(streams, "Stream", None))
        )

    def _loading_imported(self, module: Any) -> None:
        self._undo.append(self._step_clock().follow_input(module, self._ranks().loaded))

    def _compiler_imported(self, module: Any) -> None:
        from .stepping.step_clock import leave_out_of_compiling

        self._undo.append(leave_out_of_compiling(module))

    def _step_clock(self) -> StepClock:
        from .stepping.step_clock import StepClock

        if self._clock is None:
            self._clock = StepClock()
        return self._clock

    def _ranks(self) -> Distributed:
        from .stepping.distributed import Distributed

        if self._distributed is None:
            self._distributed = Distributed(self.post, self.keep, self._steps)
        return self._distributed

    def _threading_imported(self, threading: Any) -> None:
        before = threading.excepthook

        def excepthook(args: Any) -> None:
            guarded(self._thread_raised)(args)
            before(args)

        def undo() -> None:
            if threading.excepthook is excepthook:
                threading.excepthook = before

        threading.excepthook = excepthook
        self._undo.append(undo)

    def _thread_raised(self, args: Any) -> None:
        from .endings import raised

        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            self.keep(raised(args.exc_value, getattr(args.thread, "name", None) or "thread"))

    def _logging_imported(self, logging: Any) -> None:
        from .stepping.steps import listen

        self._undo.append(listen(logging, guarded(self._logged)))

    def _logged(self, extra: dict[str, Any]) -> None:
        value = extra.get
        self._steps.note("logging", value("step"), value("loss"), value("accuracy"), value("epoch"), value("val_loss"))
        if self._sampler is None or not self._sampler.running:
            self._sample()

    def _transformers_imported(self, module: Any) -> None:
        from .stepping.steps import follow_transformers

        self._undo.append(follow_transformers(module, self._steps))

    def _lightning_imported(self, module: Any) -> None:
        from .stepping.steps import follow_lightning

        self._undo.append(follow_lightning(module, self._steps))

    def _tensorboard_imported(self, module: Any) -> None:
        from .stepping.scalars import follow_writer

        self._undo.append(follow_writer(module, self._tracked()))

    def _wandb_imported(self, module: Any) -> None:
        from .stepping.scalars import follow_wandb

        self._undo.append(follow_wandb(module, self._tracked()))

    def _mlflow_imported(self, module: Any) -> None:
        from .stepping.scalars import follow_mlflow

        self._undo.append(follow_mlflow(module, self._tracked()))

    def _tracked(self) -> Scalars:
        from .stepping.scalars import Scalars

        if self._scalars is None:
            self._scalars = Scalars()
            self._undo.append(self._scalars.leave)
        return self._scalars

    def _poll(self) -> bool:
        """Called by the sampler's thread; returns whether there was something to see."""
        messages = [*self._postponed, *self._channel.receive()]
        self._postponed.clear()
        for message in messages:
            self._handle(message)
        if not self._channel.alive:
            self._leave()
            return False
        seen = self._gpus is not None and self._gpus.report()
        seen = self._report_steps() or seen
        seen = self._report_scalars() or seen
        seen = self._report_rank() or seen
        self._report_faults()
        lost = self._channel.lost + self._steps.lost
        if lost != self._reported_lost:
            self._reported_lost = lost
            self.keep({"type": "lost", "count": lost})
        self._channel.flush()
        return seen

    def _handle(self, message: Message) -> None:
        if message["type"] == "snapshot" and isinstance(message.get("path"), str):
            path, reason = message["path"], str(message.get("reason") or "")
            if self._gpus is not None:
                self._gpus.snapshot(path, reason)
            elif not self._follows_imports:
                # The sampler runs before torch is looked up: an import begun by another thread is waited for.
                self._postponed.append(message)
            else:
                problem = "The program has not imported PyTorch."
                self.keep({"type": "snapshot", "path": None, "problem": problem, "device": "", "reason": reason})
        elif message["type"] == "trace":
            if self._gpus is not None:
                self._gpus.write_traces()
        elif message["type"] == "detach" and self._attached:
            self._report_steps(last=True)
            self._report_scalars()
            self._take_away()
            self._say_goodbye()
            self._leave()

    def _take_away(self) -> None:
        """Undo all changes to the program."""
        atexit.unregister(self._at_exit)
        self._imports.withdraw()
        with self._wiring:
            self._gone = True
            while self._undo:
                guarded(self._undo.pop())()
        self._gpus = self._distributed = self._clock = self._scalars = None

    def _leave(self) -> None:
        """Undo everything, as if never attached. A program that was started for watching keeps its changes."""
        self._channel.close()
        self._take_away()
        if self._sampler is not None:
            self._sampler.finish()
        self._lasting.release()

    def _say_goodbye(self) -> None:
        if self._sampler is None:
            cpu_s = 0.0
        else:
            cpu_s = self._sampler.cpu_s
        wall_s = time.monotonic() - self._began_s
        self.keep({"type": "bye", "cpu_s": round(cpu_s, 6), "wall_s": round(wall_s, 6)})
        self._channel.drain(LAST_OUTPUT_S)

    def _report_faults(self) -> None:
        for text in take_faults():
            self.keep({"type": "fault", "text": text})

    def _report_steps(self, *, last: bool = False) -> bool:
        # Until they are posted: a program's thread that runs out of memory must not report that before its steps.
        with self._reporting:
            steps = self._steps.take(last=last)
            facts: dict[str, Any] = {"source": self._steps.source, "began_us": self._steps.began_us}
            parts = None
            if self._clock is not None:
                parts = self._clock.take(last=last)
            if parts is not None:
                facts["parts"] = parts
            if steps or parts is not None:
                self.post({"type": "steps", "steps": steps, **facts})
        return bool(steps)

    def _report_scalars(self) -> bool:
        if self._scalars is None:
            return False
        found = self._scalars.take()
        if found:
            self.post({"type": "scalars", "tracker": self._scalars.tracker, "scalars": found})
        return bool(found)

    def _report_rank(self, *, last: bool = False) -> bool:
        if self._distributed is None:
            return False
        return self._distributed.report({} if self._gpus is None else self._gpus.figures, last=last)

    def _report_last_of_rank(self) -> None:
        self._report_rank(last=True)

    def _before_fork(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def _resume(self) -> None:
        if self._sampler is not None and self._channel.alive:
            self._sampler.start()

    def _after_fork_in_child(self) -> None:
        # Another thread may have held them at the fork.
        self._wiring = _thread.RLock()
        self._reporting = _thread.RLock()
        if self._sampler is not None:
            self._sampler.forget()
        self._channel.close(forked=True)
        self._steps.take(last=True)
        if self._scalars is not None:
            self._scalars.take()
        self._steps.lost = self._reported_lost = 0
        self._steps.began_us = None
        self._began_s = time.monotonic()
        try:
            self._channel = Channel(self._path)
        except OSError:
            self._leave()
            return
        if self._sampler is not None:
            self._sampler.is_requested = self._channel.is_spoken_to
        self._hello(forked=True)
        if self._distributed is not None:
            self._distributed.forked()
        if self._clock is not None:
            self._clock.forked()
        if self._gpus is not None:
            self._gpus.forked()
        self._resume()

    def _end(self) -> None:
        """Called last of the program's exit handlers."""
        if self._sampler is not None:
            self._sampler.stop(LAST_POLL_S)
        if self._gpus is not None:
            self._gpus.report()
            self._gpus.write_traces()
        self._report_steps(last=True)
        self._report_scalars()
        guarded(self._report_last_of_rank)()
        # Python stores it before it calls sys.excepthook, which can therefore remain the program's own.
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            from .endings import raised

            self.keep(raised(error))
        self._report_faults()
        self._say_goodbye()
        self._channel.close()


def _print_by_lines() -> None:
    """Use line buffering for output to the dashboard, as on a terminal, instead of block buffering."""
    if os.environ.get("GPUDASH_STDOUT") == str(os.fstat(1).st_ino):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # guarded: of a stream without it


def _dated(message: Message) -> Message:
    return {**message, "pid": os.getpid(), "time_us": time.time_ns() // 1000}


def _command() -> list[str]:
    """The command line, from the system: Python only has all of it from 3.10 on."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            found = os.fsdecode(file.read()).split("\0")[:-1]
    except OSError:
        found = []
    return found or list(sys.argv)


def _run_name() -> str | None:
    """Identity shared by all processes of a distributed run: its id, else its rendezvous address; ``None`` for
    others."""
    found = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if found != "none":
        return found
    if address and port:
        return f"{address}:{port}"
    return None


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    if text.isdecimal():
        return int(text)
    return None

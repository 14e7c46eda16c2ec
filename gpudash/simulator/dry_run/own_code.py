"""Follows a user's code: a function that takes a device, builds everything on it and returns its step.

Placeholders for numbers that a dry run lacks may be displayed and kept, but must not decide anything: ``loss.item()``
is mostly printed, summed or appended to a list, for which any number will do. Code that branches on one is refused,
unless it only guards against what does not happen in a run that goes well.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import distributed, nn

from gpudash.memory.allocator.trace import Trace
from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.device.backend import registered
from gpudash.simulator.device.naming import DEVICE, device_of
from gpudash.simulator.device.simulated_gpu import A100
from gpudash.simulator.device.storage import BLOCK, lacks_numbers, unwrapped
from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.dry_run import missing_numbers
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.formatting import fills_in_text
from gpudash.simulator.dry_run.generating import generating_to_the_end
from gpudash.simulator.dry_run.host_tensors import HostTensors
from gpudash.simulator.dry_run.line_search import SEARCHES
from gpudash.simulator.dry_run.missing_numbers import DECIDES, FINITE, READS, TAKES_OUT, DataDependentError
from gpudash.simulator.dry_run.programs.checkpoints import KeptCheckpoints
from gpudash.simulator.dry_run.refusals import explaining_errors, place_of
from gpudash.simulator.dry_run.uncompiled import LeftUncompiled, compiling_nothing
from gpudash.simulator.dry_run.whole_training import WholeTraining
from gpudash.simulator.faults import hands_on
from gpudash.simulator.refusal import OR_ANOTHER_PYTHON, CannotPredictError
from gpudash.simulator.replacing import Replacements

Build = Callable[[Any], Callable[[], object]]

DATA_PARALLEL = (
    "The code uses torch.nn.DataParallel{where}, which drives all GPUs from one process; a dry run follows one GPU."
)
RANKS = (
    "The code asks for other processes{where} (as init_process_group, DistributedDataParallel and fully_shard do); a "
    "dry run of it follows one process on one GPU."
)
PREDICT_ONE = "Predict the model without it; torch's documentation advises DistributedDataParallel in its place."
PREDICT_SHARE = (
    "Predict the model without it; for what sharding leaves each GPU: gpudash estimate training --devices sim:0,sim:1 "
    "--parallel fsdp"
)

NOTHING_SAVED = "saving, which writes nothing now, takes no memory of the GPU"


class Followed(NamedTuple):
    """The requests of the user's code to the allocator, and the assumptions behind them.

    Attributes:
        trace: from start to end.
        assumptions: sentences without a full stop, each preceded by the line that it concerns.
    """

    trace: Trace
    assumptions: tuple[str, ...]


MOST_CODE_BYTES = 64 * 2**20
"""The largest file in bytes that is read as Python code."""

NAME_IT = "Write package.module:function, looked for from the working directory, or folder/file.py:function."


def load(name: str) -> Build:
    """The function that ``package.module:function`` or ``folder/file.py:function`` names.

    A module is searched from the working directory, as with Python's -m; a file's imports also from its folder.

    Raises:
        CannotPredictError: in one sentence, if it cannot be imported.
    """
    module, _, function = name.rpartition(":")
    file = None
    if module.endswith(".py"):
        file = Path(module)
    if file is not None and file.exists():  # importing a FIFO would hang
        if not file.is_file():
            raise CannotPredictError("callable", f"{name} cannot be loaded: {file} is no regular file.", NAME_IT)
        if file.stat().st_size > MOST_CODE_BYTES:
            many = f"{file.stat().st_size:,} bytes, more than a file of Python code has"
            raise CannotPredictError("callable", f"{name} cannot be loaded: {file} has {many}.", NAME_IT)
    here = str(Path.cwd() if file is None else file.absolute().parent)
    if here not in sys.path:
        sys.path.insert(0, here)
    # Importing is followed too: modules compile code and create tensors when loaded.
    left = LeftUncompiled()
    try:
        with several_gpus_refused(), compiling_nothing(left), HostTensors():
            found: Build = getattr(importlib.import_module(module) if file is None else _of_file(file), function)
    except CannotPredictError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # a user's module may raise anything
        first = next(iter(str(error).splitlines()), "")
        raise CannotPredictError(
            "callable",
            f"{name} cannot be loaded ({type(error).__name__}: {first}).",
            _loadable(error, module, file),
        ) from error
    _uncompiled.setdefault(getattr(found, "__module__", ""), left)
    return found


_uncompiled: dict[str, LeftUncompiled] = {}
"""What was left uncompiled when a module was loaded, by its name: a second load would not run it again."""


def _loadable(error: BaseException, module: str, file: Path | None) -> str:
    """What to do if a function cannot be loaded: correct its name, install a library, or fix its file."""
    if isinstance(error, ModuleNotFoundError) and error.name and error.name not in _parents(module):
        return f"Install {error.name}{OR_ANOTHER_PYTHON}"
    if file is not None:
        there = file.exists()
    else:
        there = module in sys.modules or not isinstance(error, ModuleNotFoundError)
    if there and not isinstance(error, AttributeError):
        return "Fix that first."
    return NAME_IT


def _parents(module: str) -> set[str]:
    """The name of a module and those of its parent packages."""
    parts = module.split(".")
    return {".".join(parts[: count + 1]) for count in range(len(parts))}


def _of_file(file: Path) -> ModuleType:
    """The module for a file, imported once, even if another module has its name."""
    path, name = str(file.absolute()), f"_gpudash_followed_{file.stem}"  # a json.py must not replace the json module
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no file of Python code")
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def follow(
    build: Build, dry: DryRun, *, steps: int, architecture: Architecture = A100, device: torch.device | None = None
) -> Followed:
    """Follow any code that builds a model and runs its steps.

    Args:
        build: takes the device (a ``torch.device``), builds everything on it and returns a function that runs one
            step: ``def build(device): model = Net().to(device); ...; return step``.
        dry: of this process.
        steps: how many; two or more, since optimizers create their state in the first. A step that turns out to be a
            whole training, as ``trainer.train`` is, runs once.
        architecture: of the GPU.
        device: the one to pass; ``sim:0`` unless it stands in for CUDA, see `answering_for_cuda`.

    Raises:
        CannotPredictError: the code raises or exits, depends on numbers in tensors, or does not use the device.
        ValueError: ``steps`` is below 2.
    """
    if steps < 2:
        # The first step creates the optimizer's state; what repeats shows from the second on.
        raise ValueError(f"steps: a prediction follows at least 2 steps, not {steps}")

    @hands_on
    def run(tracker: Tracker) -> None:
        torch.manual_seed(0)  # the same code gives the same answer
        dry.know_custom_operations()
        with HostTensors():
            step = build(torch.device(DEVICE, 0) if device is None else device)
        if not callable(step):
            raise CannotPredictError(
                "callable",
                f"The function returned {'nothing' if step is None else type(step).__name__} in place of its step.",
                "Let it return a function that takes one step, such as: def step(): ...; return step",
            )
        # Again after `build`, which may have imported code that defines operations.
        dry.know_custom_operations()
        with training, generating_to_the_end(assume):
            for number in range(1, steps + 1):
                tracker.step = number
                step()
                # A whole training: a second call would train once more.
                if training.steps:
                    tracker.divide_steps()
                    break
        tracker.finish()

    training = WholeTraining()
    left = LeftUncompiled(_uncompiled.get(getattr(build, "__module__", "")))
    with (
        explaining_errors(),
        several_gpus_refused(),
        checkpoints_without_numbers(),
        standing_in(),
        compiling_nothing(left),
    ):
        trace = dry.record(run, architecture=architecture, assume=assume)
        followed = replace(trace, followed=training.steps or steps)
        return Followed(followed, (*assumptions(), *left.assumptions()))


@contextmanager
def several_gpus_refused() -> Iterator[None]:
    """Explain to code that waits for ranks, or uses all GPUs of the machine, why it is not followed."""
    groups: Any = getattr(distributed, "distributed_c10d", None)
    with Replacements() as replaced:
        replaced.put(nn.DataParallel, "__init__", _refuse_data_parallel)
        # In every module of torch that has the function under its name: `from ... import` copies it.
        torchs = [module for path, module in list(sys.modules.items()) if path.startswith("torch.")]
        for name, unless in (("init_process_group", _unless_alone), ("_get_default_group", _unless_ranks)):
            original = getattr(groups, name, None)
            if original is None:
                continue
            made = unless(original)
            for module in torchs:
                # Only modules that still have the original: functions replaced by a library stay.
                if vars(module).get(name) is original:
                    replaced.put(module, name, made)
        yield


def _unless_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    @hands_on
    def begin(*args: Any, **kwargs: Any) -> Any:
        ranks = kwargs.get("world_size", args[3] if len(args) > 3 else -1)
        if ranks in (-1, None):
            ranks = os.environ.get("WORLD_SIZE", "")
        # Single-GPU code creates a group of one process to satisfy a library.
        if str(ranks) == "1":
            return original(*args, **kwargs)
        raise _ranks()

    return begin


def _unless_ranks(original: Callable[..., Any]) -> Callable[..., Any]:
    @hands_on
    def default_group() -> Any:
        if distributed.is_initialized():
            return original()
        raise _ranks()

    return default_group


def _ranks() -> CannotPredictError:
    return CannotPredictError("several_gpus", RANKS.format(where=_where()), PREDICT_SHARE)


def _refuse_data_parallel(*_args: Any, **_kwargs: Any) -> None:
    raise CannotPredictError("data_parallel", DATA_PARALLEL.format(where=_where()), PREDICT_ONE)


def _where() -> str:
    where = place_of(sys._getframe(2), within_torch=True)
    if where:
        return f" at {where}"
    return ""


@contextmanager
def checkpoints_without_numbers(kept: KeptCheckpoints | None = None) -> Iterator[None]:
    """Map a file's tensors in ``torch.load`` where possible, instead of reading numbers that will not be used.

    ``torch.save`` writes nothing: a file of that name may exist with the numbers of a real run.

    Args:
        kept: stores what is passed to ``torch.save``, for code that loads it again.
    """
    original = torch.load

    @hands_on
    def save_sizes(obj: Any, f: Any, *_args: Any, **_kwargs: Any) -> None:
        if kept is not None:
            kept.save(obj, f)
        save_nothing()

    def save_nothing(*_args: Any, **_kwargs: Any) -> None:
        if not any(said.endswith(NOTHING_SAVED) for said in _assumed):  # a library may save in many places
            assume(NOTHING_SAVED)

    @hands_on
    def load_mapped(file: Any, *args: Any, **kwargs: Any) -> Any:
        found = None
        if kept is not None:
            found = kept.find(file)
        if kept is not None and found is not None:
            return kept.loaded(found, kwargs.get("map_location", args[0] if args else None))
        return _mapped(original, file, *args, **kwargs)

    with Replacements() as replaced:
        replaced.put_all(torch, {"load": load_mapped, "save": save_sizes})
        files = _safetensors()
        if files is not None:
            replaced.put_all(files, dict.fromkeys(_WRITING, save_nothing))
        yield


def _mapped(load: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
    """What ``load`` returns for a file, mapped if the code leaves that open and the file can be."""
    # mmap is given, or it is a stream: leave the call as the code wrote it.
    if "mmap" in kwargs or not isinstance(file, (str, os.PathLike)):
        return load(file, *args, **kwargs)
    try:
        return load(file, *args, mmap=True, **kwargs)
    except RuntimeError:  # it has the format of before torch 1.6, which cannot be mapped
        return load(file, *args, **kwargs)


_WRITING = ("serialize_file", "_flatten_as_ptr")
"""The functions with which ``safetensors.torch`` writes a file and, before that, lays out its tensors."""


def _safetensors() -> Any:
    """``safetensors.torch``, which libraries use to save models; ``None`` if it is not installed."""
    if importlib.util.find_spec("safetensors") is None:
        return None
    return importlib.import_module("safetensors.torch")


MOST_LISTED = 2**16
"""Number of elements up to which a tensor becomes a list of unknown numbers."""

FALLS = "each number that is compared with an earlier one of its kind is smaller, as a loss that falls"
AS_ONE = "a tensor's number that is turned into a plain one is 1, whatever is decided by it"
AS_ZEROS = "numbers that are turned into an array of NumPy's are 0, whatever is decided by them"

GUESSED = "what is asked of a number that is not known is false, whatever is decided by it"


class Guesses:
    """Whether code that branches on unknown numbers continues with a guess, which is noted, or is refused."""

    on = False


guesses = Guesses()

_order = itertools.count()
_assumed: list[str] = []


class UnknownTruth:
    """The result of a comparison with an unknown number; its own class, because bool cannot be subclassed."""

    def __bool__(self) -> bool:
        """Refuse or guess, because a branch depends on it."""
        if guesses.on:
            assume(GUESSED)
            return False
        raise DataDependentError(f"{DECIDES}.")

    def __repr__(self) -> str:
        return "unknown"

    def _number(self, *_other: Any) -> UnknownNumber:
        return UnknownNumber()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __float__ = _number

    def _truth(self, *_other: Any) -> UnknownTruth:
        return self

    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _truth


class UnknownNumber(float):
    """A number that code read out of a tensor. It is displayed as 1."""

    _made: int

    def __new__(cls, *_given: Any) -> UnknownNumber:  # noqa: PYI034 - Python 3.9 has no Self
        made = float.__new__(cls, 1.0)
        made._made = next(_order)
        return made

    def __bool__(self) -> bool:
        """Refuse or guess, as with every way of branching on it."""
        # The truth value of an unknown number: guessed if the user allows guesses, otherwise refused.
        if guesses.on:
            assume(AS_ONE)
            return True
        raise DataDependentError(f"{DECIDES}.")

    def _refuse(self, *_other: Any) -> int:
        # `"%d" % number` only displays it.
        if fills_in_text(sys._getframe(1)):
            return 1
        if guesses.on:
            assume(AS_ONE)
            return 1
        raise DataDependentError(f"{READS}.")

    __int__ = __index__ = __trunc__ = __floor__ = __ceil__ = _refuse

    def _number(self, *_other: Any) -> UnknownNumber:
        return UnknownNumber()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _number
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _number
    __neg__ = __pos__ = __abs__ = __round__ = _number  # type: ignore[assignment]

    def __float__(self) -> float:
        assume(AS_ONE)
        return 1.0

    def __format__(self, wanted: str) -> str:
        try:
            return format(1.0, wanted)
        except ValueError:  # such as :d, if the code knows it is an integer
            return format(1, wanted)

    __hash__ = float.__hash__

    def __eq__(self, other: object) -> Any:
        return self._compared(other, float.__eq__, None)

    def __ne__(self, other: object) -> Any:
        return self._compared(other, float.__ne__, None)

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, float.__lt__, True)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, float.__le__, True)

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, float.__gt__, False)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, float.__ge__, False)

    def _compared(self, other: Any, compare: Callable[[float, Any], Any], smaller: bool | None) -> Any:
        """The result for ordinary numbers, or for a falling series; unknown if neither decides it.

        Args:
            smaller: the result if this number is the smaller one; ``None`` for equality.
        """
        # A number equals itself whatever it is, unless it is NaN.
        if other is self:
            assume(FINITE)
            return compare(1.0, 1.0)
        # By the order in which they were read: a later loss is assumed to be smaller.
        if isinstance(other, UnknownNumber):
            assume(FALLS)
            if smaller is None:
                return compare is float.__ne__
            return smaller is (self._made > other._made)
        if isinstance(other, (int, float)) and missing_numbers.is_beyond(other):
            assume(FINITE)
            return compare(1.0, other)
        return UnknownTruth()


def assume(what: str, *, within_torch: bool = False) -> None:
    """Note an assumption of the prediction, at the code that makes it necessary.

    Args:
        within_torch: whether to note it also if torch is the caller.
    """
    where = place_of(sys._getframe(1), within_torch=within_torch)
    said = f"{where}: {what}"
    if where and said not in _assumed:
        _assumed.append(said)


def assumptions() -> tuple[str, ...]:
    """The assumptions since `standing_in` was entered, each with the line that caused it."""
    return tuple(_assumed)


@contextmanager
def standing_in() -> Iterator[None]:
    """Make tensors without numbers return unknown ones while this is active."""
    _assumed.clear()
    with Replacements() as replaced:
        for name, made in _METHODS.items():
            replaced.wrap(torch.Tensor, name, functools.partial(_unless_known, unknown=made))
        for name in ("isnan", "isinf", "isfinite"):
            replaced.wrap(math, name, _of_a_finite)
        for owner, name in _TAKING_NUMBERS:
            replaced.wrap(owner, name, _into_a_tensor)
        yield


_TAKING_NUMBERS: tuple[tuple[Any, str], ...] = (
    (torch, "tensor"),
    (torch, "as_tensor"),
    (torch.Tensor, "__setitem__"),
)
"""Functions that convert their argument to a plain number."""


def _into_a_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    @hands_on
    def made(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *(value for part in args if isinstance(part, (list, tuple)) for value in part))
        if any(isinstance(value, UnknownNumber) for value in given):
            assume(AS_ONE)
        return original(*args, **kwargs)

    return made


def _of_a_finite(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @hands_on
    def tested(number: Any) -> bool:
        if isinstance(number, UnknownNumber) or (isinstance(number, torch.Tensor) and lacks(number)):
            assume(FINITE)
            return test(1.0)
        return test(number)

    return tested


def lacks(tensor: torch.Tensor) -> bool:
    """Whether the numbers of ``tensor`` are unknown. For one that stands for a batch within ``torch.vmap``, torch
    itself raises an error."""
    if torch._C._functorch.is_batchedtensor(tensor):
        return False
    tensor = unwrapped(tensor)
    kind = device_of(tensor).type
    if kind == DEVICE:
        return getattr(getattr(tensor.untyped_storage(), BLOCK, None), "host", None) is None
    return kind == "meta" or (kind == "cpu" and lacks_numbers(tensor))


def _unless_known(original: Callable[..., Any], unknown: Callable[..., Any]) -> Callable[..., Any]:
    @hands_on
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if lacks(self):
            if device_of(self).type == DEVICE:
                _note_wait()
            return unknown(self, original, *args, **kwargs)
        return original(self, *args, **kwargs)

    return method


@hands_on
def _item(self: torch.Tensor, original: Callable[..., Any]) -> Any:
    # GradScaler and L-BFGS get the number with which they continue.
    answer = missing_numbers.for_known_code()
    if self.numel() != 1 or self.is_complex() or answer is not None:
        if answer is None:
            return original(self)
        return answer
    if self.dtype is torch.bool:
        if missing_numbers.answer_to(self) is None:
            return UnknownTruth()
        return _ordinary(self)
    return UnknownNumber()


@hands_on
def _truth(self: torch.Tensor, original: Callable[..., Any]) -> bool:
    if missing_numbers.answer_to(self) is not None:
        return _ordinary(self)
    # A single truth value decides a branch; for several, torch itself raises that this is ambiguous.
    if self.numel() == 1:
        if guesses.on:
            assume(GUESSED)
            return False
        raise DataDependentError(f"{DECIDES}.")
    return bool(original(self))


def _ordinary(truth: torch.Tensor) -> bool:
    """The expected value of a truth tensor; notes that it was assumed."""
    answer = missing_numbers.answer_to(truth)
    assert answer is not None
    assume(answer.because, within_torch=answer.because == SEARCHES)
    return answer.truth


@hands_on
def _plain(self: torch.Tensor, original: Callable[..., Any]) -> float:
    answer = missing_numbers.for_known_code()
    if answer is None:
        if self.numel() != 1:
            return float(original(self))
        assume(AS_ONE)
    if answer is None:
        return 1.0
    return answer


@hands_on
def _whole(self: torch.Tensor, original: Callable[..., Any]) -> int:
    if not guesses.on or self.numel() != 1:
        return int(original(self))
    assume(AS_ONE)
    return 1


@hands_on
def _formatted(self: torch.Tensor, original: Callable[..., Any], wanted: str) -> str:
    return str(format(UnknownNumber(), wanted) if not self.dim() and wanted else original(self, wanted))


def _listed(self: torch.Tensor, _original: Callable[..., Any]) -> Any:
    if self.numel() > MOST_LISTED or self.is_complex():
        raise DataDependentError(f"{TAKES_OUT}.")

    def part(sizes: tuple[int, ...]) -> Any:
        if sizes:
            return [part(sizes[1:]) for _ in range(sizes[0])]
        return UnknownNumber()

    return part(tuple(self.shape))


@hands_on
def _array(self: torch.Tensor, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An array of zeros, if torch returns one at all: not for a tensor on the device or one that requires grad."""
    if device_of(self).type == DEVICE or self.requires_grad or self.is_conj():
        return original(self, *args, **kwargs)
    example = original(torch.zeros(1, dtype=self.dtype), *args, **kwargs)
    assume(AS_ZEROS)
    made = type(example)(tuple(self.shape), example.dtype)
    made.fill(0)
    return made


def _note_wait() -> None:
    """Record that the host waits for a number from the device."""
    backend = registered()
    if backend is not None:
        backend.engine.note_wait()


_METHODS: dict[str, Callable[..., Any]] = {
    "item": _item,
    "tolist": _listed,
    "numpy": _array,
    "__array__": _array,
    "__bool__": _truth,
    "__float__": _plain,
    "__int__": _whole,
    "__index__": _whole,
    "__format__": _formatted,
}

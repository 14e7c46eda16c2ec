"""Following the code of a user: a function that is given a device, builds everything there and returns its step."""

from __future__ import annotations

import importlib
import importlib.util
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
from gpudash.simulator.device.simulated_gpu import A100
from gpudash.simulator.device.storage import DEVICE
from gpudash.simulator.device.tracking import Tracker
from gpudash.simulator.dry_run import unknown_numbers
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.failing_line import place_of
from gpudash.simulator.dry_run.host_tensors import HostTensors
from gpudash.simulator.dry_run.refusals import CannotPredictError, in_words

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

NOTHING_SAVED = "torch.save, which writes nothing now, takes no memory of the GPU"


class Followed(NamedTuple):
    """What a piece of code asks of the allocator, and what that rests on.

    Attributes:
        trace: from its beginning to its end.
        assumptions: sentences without a full stop, each after the line that it is about.
    """

    trace: Trace
    assumptions: tuple[str, ...]


def load(name: str) -> Build:
    """The function that ``package.module:function`` or ``folder/file.py:function`` names.

    A module is searched from the working directory as Python's -m does, a file's neighbours from its folder.

    Raises:
        CannotPredictError: one sentence, when it cannot be imported.
    """
    module, _, function = name.rpartition(":")
    file = Path(module) if module.endswith(".py") else None
    here = str(Path.cwd() if file is None else file.absolute().parent)
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with several_gpus_refused(), HostTensors():
            found: Build = getattr(importlib.import_module(module) if file is None else _of_file(file), function)
    except CannotPredictError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # anyone's module may raise anything
        first = next(iter(str(error).splitlines()), "")
        raise CannotPredictError(
            "callable",
            f"{name} cannot be loaded ({type(error).__name__}: {first}).",
            _loadable(error, module, file),
        ) from error
    return found


def _loadable(error: BaseException, module: str, file: Path | None) -> str:
    """What to do about a function that cannot be loaded: write its name, get a library, or fix its file."""
    if isinstance(error, ModuleNotFoundError) and error.name and error.name not in _parents(module):
        return f"Install {error.name}, or name the Python that has it with --python."
    there = file.exists() if file is not None else module in sys.modules or not isinstance(error, ModuleNotFoundError)
    if there and not isinstance(error, AttributeError):
        return "Fix that first."
    return "Write package.module:function, looked for from the working directory, or folder/file.py:function."


def _parents(module: str) -> set[str]:
    """A module's name and those of the packages that it is in."""
    parts = module.split(".")
    return {".".join(parts[: count + 1]) for count in range(len(parts))}


def _of_file(file: Path) -> ModuleType:
    """The module that a file is, whatever else has its name; imported once."""
    path = str(file.absolute())
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    spec = importlib.util.spec_from_file_location(file.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no file of Python code")
    made = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def follow(build: Build, dry: DryRun, *, steps: int, architecture: Architecture = A100) -> Followed:
    """Follow any code that builds a model and steps it.

    Args:
        build: is given the device (a ``torch.device``), builds everything on it and returns a function that takes one
            step: ``def build(device): model = Net().to(device); ...; return step``.
        dry: of this process.
        steps: how many; two or more, since optimizers make their state in the first.
        architecture: of the GPU.

    Raises:
        CannotPredictError: when the code raises or exits, decides by numbers in tensors, or leaves the device.
        ValueError: when ``steps`` is below 2.
    """
    if steps < 2:
        raise ValueError(f"steps: a prediction follows at least 2 steps, not {steps}")

    def run(tracker: Tracker) -> None:
        torch.manual_seed(0)  # the same question has the same answer
        dry.know_custom_operations()
        with HostTensors():
            step = build(torch.device(DEVICE, 0))
        if not callable(step):
            raise CannotPredictError(
                "callable",
                f"The function returned {'nothing' if step is None else type(step).__name__} in place of its step.",
                "Let it return a function that takes one step, such as: def step(): ...; return step",
            )
        dry.know_custom_operations()
        for number in range(1, steps + 1):
            tracker.step = number
            step()
        tracker.finish()

    with in_words(), several_gpus_refused(), checkpoints_without_numbers(), unknown_numbers.standing_in():
        trace = dry.record(run, architecture=architecture)
        return Followed(replace(trace, followed=steps), unknown_numbers.assumptions())


@contextmanager
def several_gpus_refused() -> Iterator[None]:
    """Tell code that wants ranks, or all GPUs of the machine, why it is not followed, before it waits for them."""
    groups: Any = getattr(distributed, "distributed_c10d", None)
    replaced: list[tuple[Any, str, Any]] = [(nn.DataParallel, "__init__", _refuse_data_parallel)]
    for name, unless in (("init_process_group", _unless_alone), ("_get_default_group", _unless_ranks)):
        original = getattr(groups, name, None)
        made = None if original is None else unless(original)
        torchs = [module for path, module in list(sys.modules.items()) if path.startswith("torch.")]
        replaced += [(one, name, made) for one in torchs if made and vars(one).get(name) is original]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, made in replaced:
        setattr(owner, name, made)
    try:
        yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)


def _unless_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(*args: Any, **kwargs: Any) -> Any:
        ranks = kwargs.get("world_size", args[3] if len(args) > 3 else -1)
        if ranks in (-1, None):
            ranks = os.environ.get("WORLD_SIZE", "")
        if str(ranks) == "1":
            return original(*args, **kwargs)
        raise _ranks()

    return begin


def _unless_ranks(original: Callable[..., Any]) -> Callable[..., Any]:
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
    return f" at {where}" if where else ""


@contextmanager
def checkpoints_without_numbers() -> Iterator[None]:
    """Let ``torch.load`` map a file's tensors where it may, instead of reading numbers that nobody will look at.

    ``torch.save`` writes nothing: there may be a file of that name, with the numbers of a real run.
    """
    module: Any = torch
    original, save = module.load, module.save

    def save_nothing(*_args: Any, **_kwargs: Any) -> None:
        unknown_numbers.assume(NOTHING_SAVED)

    def load_mapped(file: Any, *args: Any, **kwargs: Any) -> Any:
        if "mmap" in kwargs or not isinstance(file, (str, os.PathLike)):
            return original(file, *args, **kwargs)
        try:
            return original(file, *args, mmap=True, **kwargs)
        except RuntimeError:  # it has the format of before torch 1.6, which cannot be mapped
            return original(file, *args, **kwargs)

    module.load, module.save = load_mapped, save_nothing
    try:
        yield
    finally:
        module.load, module.save = original, save

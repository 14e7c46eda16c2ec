"""Collectives on tensors of a simulated device, which exchange host bytes through a backend for the CPU.

Every rank is a process, and no other process has its tensors, so ranks share numbers only. A backend such as gloo has
no kernels for a device registered from Python. It therefore gets the host bytes that hold the numbers, and writes its
results there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from gpudash.simulator.device.storage import AS_ON_CPU, KEY, kernel_library
from gpudash.simulator.faults import hands_on
from gpudash.simulator.operations.operations import Engine

NAMESPACE = "c10d"

NOT_WAITED_FOR = frozenset(("send", "recv_", "recv_any_source_"))
"""Operations whose work may complete after the call returns: two ranks may each send before they receive."""


class Spent:
    """Time this process has spent in collectives: exchanging, and waiting for slower ranks.

    Attributes:
        seconds: since the process started.
        inside: how many threads are in a collective at present.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.inside = 0


spent = Spent()
"""Of this process. If two threads are in collectives at once, both count."""


def install(engine: Engine) -> list[Any]:
    """Register the collectives, for as long as the library lives. Nothing if this torch has no ranks.

    Each is complete when its call returns, like everything on a simulated device, except `NOT_WAITED_FOR`.
    """
    if not torch.distributed.is_available() or not hasattr(torch.distributed.Work, "unbox"):
        return []
    library = kernel_library(NAMESPACE)
    with warnings.catch_warnings():
        # torch has a kernel for such devices, but it needs a backend that only C++ can provide
        warnings.filterwarnings("ignore", category=UserWarning)
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith(f"{NAMESPACE}::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, KEY):
                short = name[len(NAMESPACE) + 2 :]
                library.impl(short, _collective(engine, short), KEY)
    return [library]


def _collective(engine: Engine, name: str) -> Callable[..., Any]:
    operation = getattr(torch.ops.c10d, name).default

    def on_host(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return engine.like(value)
        if isinstance(value, list):
            return list(map(on_host, value))
        return value

    @hands_on
    def run(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        spent.inside += 1
        try:
            return exchange(*args, **kwargs)
        finally:
            spent.inside -= 1
            spent.seconds += time.perf_counter() - began

    def exchange(*args: Any, **kwargs: Any) -> Any:
        found = operation.redispatch(AS_ON_CPU, *map(on_host, args), **kwargs)
        if name in NOT_WAITED_FOR or found is None:
            return found
        work = _finished(found[-1] if isinstance(found, tuple) else found, args[0])
        # operations with results besides their work return the first argument, which they filled
        if isinstance(found, tuple):
            return (args[0], work)
        return work

    return run


@hands_on
def _finished(boxed: Any, outputs: Any) -> Any:
    """Wait for a work handle, and return one whose result is on the simulated device.

    DistributedDataParallel reads the gradients from the result.
    """
    from torch._C import _distributed_c10d

    ranks: Any = _distributed_c10d
    ranks.Work.unbox(boxed).wait()
    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result(outputs)
    return ranks._create_work_from_future(done).boxed()

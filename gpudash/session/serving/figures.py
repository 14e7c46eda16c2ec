"""What is served, gathered from a session: for every metric of the catalogue its rows of label values and a number."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpudash import __version__
from gpudash.devices.names import Gpu
from gpudash.memory.watching.levels import HOST
from gpudash.session.serving import catalogue as names
from gpudash.session.serving.catalogue import READINGS, ServedMetric
from gpudash.session.serving.run_figures import Rows, rank_names, run_rows
from gpudash.telemetry.records import State
from gpudash.telemetry.store import NEVER_READ, Reading, Store

if TYPE_CHECKING:
    from gpudash.memory.predicting.estimate import Estimate
    from gpudash.session.live.session import Session
    from gpudash.session.serving.warnings import StandingWarnings

FRESH_S = 10.0
"""Age from which a reading is no longer served: a lane that is stuck says so sooner, one that is gone never."""

PROCESSES = 5
"""Processes of each GPU that are served, the largest; each brings series of its own to the server that scrapes."""


class Figures:
    """Gathers the figures of ``session``. Belongs to one thread, the one that serves."""

    def __init__(self, session: Session, warnings: StandingWarnings) -> None:
        self._session = session
        self._warnings = warnings
        self._host = socket.gethostname()

    def gather(self, predicted: Estimate | None) -> Mapping[ServedMetric, Rows]:
        """Rows of every metric that has any. Holds the store's lock for as long as copying takes.

        Args:
            predicted: of the run that is on.
        """
        session, now_s = self._session, self._session.clock()
        gpus, status = session.gpus, session.status()
        cpu, *others = session.devices()
        memories = {device.name: device.uuid for device in others if device.uuid} | {cpu.name: HOST}
        ahead = {
            memory: found.seconds
            for memory in (HOST, *(gpu.uuid for gpu in gpus))
            if (found := session.forecast(memory))
        }
        rows: defaultdict[ServedMetric, Rows] = defaultdict(list)
        with session.store.lock:
            store, run = session.store, session.store.run
            self._warnings.follow(store)
            devices = _devices(gpus, [device.name for device in others], rank_names(run))
            _readings(store, now_s, devices, 0.0 if run is None else run.began_s, rows)
            for gpu in gpus:
                self._gpu(store, gpu, now_s, rows)
            _age(rows, HOST, store.latest("host", "used_bytes"), now_s)
            if run is not None:
                left_s = ahead.get(memories.get(run.device, ""))
                run_rows(run, store, now_s, left_s, predicted, self._host, rows)
        rows[names.GPU_FORECAST] = [(_labels(gpu), ahead[gpu.uuid]) for gpu in gpus if gpu.uuid in ahead]
        rows[names.HOST_FORECAST] = [((), ahead[HOST])] if HOST in ahead else []
        rows[names.BUILD] = [((__version__,), 1.0)]
        rows[names.HOST_INFO] = [((self._host, cpu.product, session.host_capacity_source), 1.0)]
        rows[names.WARNING] = [(standing, 1.0) for standing in self._warnings.standing()]
        rows[names.WARNINGS] = [((level,), float(count)) for level, count in self._warnings.raised.items()]
        rows[names.MISSED] = [((), float(status.missed))]
        rows[names.OWN_CPU] = [((), status.own_cpu_ratio)]
        return rows

    def _gpu(self, store: Store, gpu: Gpu, now_s: float, rows: defaultdict[ServedMetric, Rows]) -> None:
        labels = _labels(gpu)
        told = (str(gpu.nvml_index), gpu.product, store.torch_name(gpu.uuid) or "", _flag(gpu.simulated), self._host)
        rows[names.GPU_INFO].append(((*labels, *told), 1.0))
        used = store.latest("gpu", "used_bytes", gpu.uuid)
        if used is not NEVER_READ:
            state = used.state if _fresh(used, now_s) else State.STALE
            rows[names.GPU_STATE] += [((*labels, each.value), float(each is state)) for each in State]
        _age(rows, gpu.uuid, used, now_s)
        sized = [(size, row) for row in store.processes(gpu.uuid) if isinstance(size := row.get("memory_bytes"), int)]
        for size, row in sorted(sized, key=lambda item: item[0], reverse=True)[:PROCESSES]:
            rows[names.GPU_PROCESS].append(((*labels, str(row.get("pid")), str(row.get("name") or "")), float(size)))


Devices = Mapping[str, Sequence[tuple[str | None, tuple[str, ...]]]]
"""Reading table → its devices, each with its label values."""


def _devices(gpus: Iterable[Gpu], torch_names: Iterable[str], ranks: Iterable[str]) -> Devices:
    return {
        "host": [(None, ())],
        "gpu": [(gpu.uuid, _labels(gpu)) for gpu in gpus],
        "allocator": [(name, (name,)) for name in torch_names],
        "rank": [(rank, (rank,)) for rank in ranks],
    }


def _readings(
    store: Store, now_s: float, devices: Devices, run_began_s: float, rows: defaultdict[ServedMetric, Rows]
) -> None:
    for served in READINGS:
        assert served.reading is not None
        table, metric = served.reading
        for device, labels in devices[table]:
            reading = store.latest(table, metric, device)
            # a step may take longer than any reading is fresh; a rank's row holds until the next one
            holds = _fresh(reading, now_s) if table != "rank" else (reading.time_s or 0.0) >= run_began_s
            if holds and isinstance(reading.value, int | float):
                rows[served].append((labels, float(reading.value)))


def _labels(gpu: Gpu) -> tuple[str, str]:
    return gpu.uuid, f"sim:{gpu.nvml_index}" if gpu.simulated else str(gpu.nvml_index)


def _fresh(reading: Reading, now_s: float) -> bool:
    return reading.time_s is not None and now_s - reading.time_s <= FRESH_S


def _age(rows: defaultdict[ServedMetric, Rows], memory: str, reading: Reading, now_s: float) -> None:
    if reading.time_s is not None:
        rows[names.READING_AGE].append(((memory,), max(0.0, now_s - reading.time_s)))


def _flag(value: bool) -> str:
    return "true" if value else "false"

"""The figures of several machines on one page: each metric as of one, with the label ``machine`` before its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpudash import __version__
from gpudash.session.serving import catalogue as names
from gpudash.session.serving.catalogue import CATALOGUE, ServedMetric
from gpudash.session.serving.figures import Figures, Rows

if TYPE_CHECKING:
    from gpudash.session.remote.machine import RemoteMachine

OF_THIS_PROCESS = (names.BUILD, names.MISSED, names.OWN_CPU, names.ANSWERS, names.DROPPED)
"""Metrics of no machine, but of the gpudash that serves."""

OF_A_MACHINE = {
    served: replace(served, labels=("machine", *served.labels)) for served in CATALOGUE if served not in OF_THIS_PROCESS
}

LINKED = ServedMetric(
    "gpudash_machine_linked", "gauge", "1 while the machine is linked over ssh, 0 while it is not.", ("machine",)
)

FLEET_CATALOGUE = (*OF_A_MACHINE.values(), LINKED, *OF_THIS_PROCESS)
"""Every metric of a fleet, in the order of a scrape."""


class FleetFigures:
    """Gathers the figures of machines over ssh. Belongs to one thread, the one that serves."""

    def __init__(self, machines: Sequence[RemoteMachine]) -> None:
        self._machines = [(machine, Figures(machine, machine.name)) for machine in machines]

    def gather(self) -> Mapping[ServedMetric, Rows]:
        """Rows of every metric that has any; a machine that was never linked has no readings."""
        rows: defaultdict[ServedMetric, Rows] = defaultdict(list)
        rows[names.BUILD] = [((__version__,), 1.0)]
        for machine, figures in self._machines:
            rows[LINKED].append(((machine.name,), float(machine.state == "linked")))
            if machine.greeting is None:
                continue
            for served, found in figures.gather(None).items():
                if served in OF_A_MACHINE:
                    rows[OF_A_MACHINE[served]] += [((machine.name, *labels), value) for labels, value in found]
        return rows

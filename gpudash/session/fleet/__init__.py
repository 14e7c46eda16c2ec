"""A fleet of machines that a Prometheus server monitors: an overview of every GPU, and the history of each."""

from gpudash.session.fleet.fleet import Fleet
from gpudash.session.fleet.view import FleetView

__all__ = ["Fleet", "FleetView"]

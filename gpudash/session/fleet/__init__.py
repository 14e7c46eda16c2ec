"""A fleet of machines, as a Prometheus server knows it: an overview of every GPU, and the past of each."""

from gpudash.session.fleet.fleet import Fleet
from gpudash.session.fleet.view import FleetView

__all__ = ["Fleet", "FleetView"]

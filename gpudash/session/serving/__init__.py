"""A session's figures for Prometheus: a small web server that is off by default."""

from __future__ import annotations

from gpudash.session.serving.address import ServingError
from gpudash.session.serving.serving import ServeRequest, Serving, companions, serve_by_settings, setting_problem

__all__ = ["ServeRequest", "Serving", "ServingError", "companions", "serve_by_settings", "setting_problem"]

"""Asking a Prometheus server about GPUs: its HTTP API, and the names that three exporters give to the same readings."""

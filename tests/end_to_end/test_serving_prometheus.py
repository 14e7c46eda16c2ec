"""A real Prometheus server scrapes what is served, through TLS and with the token, and has our rules."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudash.session.serving import companions
from tests.end_to_end.conftest import start_python
from tests.prometheus_server.server import prometheus
from tests.unit.session.serving.certificates import certificate

SECRET = "0123456789abcdef0123"

PATIENCE_S = 180.0

RUN = ("run", "training", "--no-record", "--device", "sim:0", "--simulate", "2GiB", "--steps", "100000")

ONLY_ELSEWHERE = {
    "gpudash_gpu_memory_utilisation_ratio",
    "gpudash_gpu_pcie_receive_bytes_per_second",
    "gpudash_gpu_pcie_transmit_bytes_per_second",
    "gpudash_gpu_temperature_celsius",
    "gpudash_gpu_power_watts",
    "gpudash_gpu_sm_clock_hertz",
    "gpudash_gpu_memory_clock_hertz",
    "gpudash_gpu_process_memory_bytes",
    "gpudash_gpu_memory_forecast_seconds",
    "gpudash_host_memory_forecast_seconds",
    "gpudash_rank_step_seconds",
    "gpudash_rank_waiting_ratio",
    "gpudash_warning",
}
"""What a calm run on a simulated GPU has not: sensors, growth, ranks, warnings."""


class Prometheus:
    """What a server's API answers."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: str) -> Any:
        """An answer of its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._address}/api/v1/{path}?{query}", timeout=120) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """What an expression is now."""
        return [float(sample["value"][1]) for sample in self.ask("query", query=expression)["result"]]

    def until(self, expression: str) -> list[float]:
        """The values of an expression once there are some."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.values(expression)):
            assert time.monotonic() < deadline, (expression, self.ask("targets"))
            time.sleep(0.1)
        return found


@pytest.fixture
def served(home: Path, tmp_path: Path) -> Iterator[Prometheus]:
    """Prometheus, which scrapes a run on a simulated GPU."""
    cert, key = certificate(tmp_path / "tls")
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n", encoding="utf-8")
    token.chmod(0o600)
    guards = ("--serve-token-file", str(token), "--serve-cert", str(cert), "--serve-key", str(key))
    process = start_python(home, "-m", "gpudash", *RUN, "--serve", ":0", *guards, stdout=subprocess.DEVNULL)
    try:
        assert process.stderr is not None
        place = re.search(r"https://(\S+)/metrics", process.stderr.readline())
        assert place is not None
        scrape = {
            "scheme": "https",
            "tls_config": {"ca_file": str(cert)},
            "authorization": {"credentials_file": str(token)},
        }
        rules = [companions() / "alert-rules.yml"]
        with prometheus(tmp_path, {"gpudash": [place[1]]}, scrape=scrape, rules=rules) as address:
            yield Prometheus(address)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)


def test_prometheus_scrapes_through_tls_with_the_token_and_fills_the_dashboard(served: Prometheus) -> None:
    assert served.until("up") == [1.0]
    assert served.until('gpudash_gpu_memory_total_bytes{uuid="SIM-0-2GiB"}') == [2.0 * 1024**3]
    served.until("gpudash_run_predicted_peak_bytes")
    served.until("gpudash_run_throughput_items_per_second")
    board = json.loads((companions() / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = 0
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$instance", ".*").replace("$gpu", ".*")
            if not set(re.findall(r"\bgpudash_\w+", expression)) & ONLY_ELSEWHERE:
                assert served.until(expression.replace("$__rate_interval", "10s")), panel["title"]
                asked += 1
    assert asked > 15
    rules = served.ask("rules")["groups"]
    written = (companions() / "alert-rules.yml").read_text(encoding="utf-8").count("- alert:")
    assert sum(len(group["rules"]) for group in rules) == written > 0
    assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}

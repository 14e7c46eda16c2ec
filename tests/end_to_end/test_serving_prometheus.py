"""A real Prometheus server scrapes what is served, through TLS and with the token, and has our rules."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudash.session.serving import companions
from tests.end_to_end.conftest import environment
from tests.programs import program
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
    """A server on a free port of this machine."""

    def __init__(self, folder: Path, scrape: dict[str, Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        rules = [str(companions() / "alert-rules.yml")]
        config = {"global": {"scrape_interval": "1s"}, "rule_files": rules, "scrape_configs": [scrape]}
        file = folder / "prometheus.yml"  # JSON is YAML
        file.write_text(json.dumps(config), encoding="utf-8")
        self._log = (folder / "prometheus.log").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )

    def ask(self, path: str, **parameters: str) -> Any:
        """An answer of its API; ``None`` while it starts."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}?{query}", timeout=120) as answer:
                return json.load(answer)["data"]
        except OSError:
            assert self.process.poll() is None, self.log()
            return None

    def values(self, expression: str) -> list[float]:
        """What an expression is now."""
        found = self.ask("query", query=expression)
        return [] if found is None else [float(sample["value"][1]) for sample in found["result"]]

    def until(self, expression: str) -> list[float]:
        """The values of an expression once there are some."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.values(expression)):
            assert time.monotonic() < deadline, (expression, self.ask("targets"), self.log())
            time.sleep(0.1)
        return found

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self._log.close()


@pytest.fixture
def served(home: Path, tmp_path: Path) -> Iterator[Prometheus]:
    """Prometheus, which scrapes a run on a simulated GPU."""
    cert, key = certificate(tmp_path / "tls")
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n", encoding="utf-8")
    token.chmod(0o600)
    guards = ("--serve-token-file", str(token), "--serve-cert", str(cert), "--serve-key", str(key))
    process = subprocess.Popen(
        [sys.executable, "-m", "gpudash", *RUN, "--serve", ":0", *guards],
        env=environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        place = re.search(r"https://(\S+)/metrics", process.stderr.readline())
        assert place is not None
        scrape = {
            "job_name": "gpudash",
            "scheme": "https",
            "tls_config": {"ca_file": str(cert)},
            "authorization": {"credentials_file": str(token)},
            "static_configs": [{"targets": [place[1]]}],
        }
        prometheus = Prometheus(tmp_path, scrape)
        try:
            yield prometheus
        finally:
            prometheus.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)


def test_prometheus_scrapes_through_tls_with_the_token_and_fills_the_dashboard(served: Prometheus) -> None:
    assert served.until("up") == [1.0]
    assert served.until('gpudash_gpu_memory_total_bytes{uuid="SIM-0"}') == [2.0 * 1024**3]
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
    assert sum(len(group["rules"]) for group in rules) == 12
    assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}

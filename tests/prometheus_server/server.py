"""Debian's Prometheus on a loopback port of its own choice, over a folder that goes away."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.programs import program

PROGRAM, TOOL = "prometheus", "promtool"

START_S = 60.0
"""Longest that a server may take to start on a busy machine."""

LOOKED_S = 0.02

_LISTENING = re.compile(r'msg="Listening on" address=(\S+)')
_READY = "Server is ready to receive web requests"


@contextmanager
def prometheus(
    folder: Path,
    targets: Mapping[str, Sequence[str]],
    *,
    interval: str = "1s",
    options: Sequence[str] = (),
    scrape: Mapping[str, Any] = MappingProxyType({}),
    rules: Sequence[Path] = (),
) -> Iterator[str]:
    """A server that scrapes ``targets`` (job → "host:port"), and its address.

    Args:
        folder: for its data; what is there already is served too.
        options: more flags.
        scrape: how, as in its configuration.
        rules: files of rules.
    """
    jobs = [{"job_name": job, "static_configs": [{"targets": [*at]}], **scrape} for job, at in targets.items()]
    intervals = {"scrape_interval": interval, "scrape_timeout": interval}
    config = folder / "prometheus.yml"  # JSON is YAML
    config.write_text(json.dumps({"global": intervals, "rule_files": [*map(str, rules)], "scrape_configs": jobs}))
    log = folder / "prometheus.log"
    data = f"--storage.tsdb.path={folder / 'data'}"
    command = [program(PROGRAM), f"--config.file={config}", data, "--web.listen-address=127.0.0.1:0", *options]
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written)
    try:
        yield f"http://{_listening(process, log)}"
    finally:
        process.terminate()
        process.wait(START_S)


def _listening(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, once it is ready."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        text = log.read_text(errors="replace")
        found = _LISTENING.search(text)
        if found is not None and _READY in text:
            return found[1]
        time.sleep(LOOKED_S)
    pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")


def import_past(folder: Path, text: str) -> None:
    """Put samples with times of their own (OpenMetrics text) into the data of a server that is not running yet."""
    source = folder / "past.om"
    source.write_text(text if text.endswith("# EOF\n") else f"{text}# EOF\n")
    command = [program(TOOL), "tsdb", "create-blocks-from", "openmetrics", str(source), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True, timeout=START_S)

"""``gpudash watch --simulate … --as-cuda``: one card for all processes of a program, and each with its own readings."""

from __future__ import annotations

import sys
from pathlib import Path

from gpudash.telemetry.recording.reading import open_recording
from tests.end_to_end.conftest import Command

SCRIPT = Path(__file__).parent / "watched_scripts" / "two_on_a_card.py"
MIB = 2**20


def test_two_processes_share_a_simulated_card_and_each_has_its_readings(gpudash: Command) -> None:
    outcome = gpudash("watch", "--json", "--simulate", "2GiB", "--as-cuda", "--", sys.executable, str(SCRIPT))
    assert outcome.code == 0, outcome.stderr
    printed = outcome.stderr.splitlines()
    free = [line for line in printed if line.startswith("free ")]
    # 2048 less two contexts of 300, 1000 and 100; once the server is killed, less one context, 1200 and 100
    assert free == ["free 348", "free 448"]
    server = int(next(line for line in printed if line.startswith("server ")).split()[1])
    refused = next(line for line in printed if line.startswith("CUDA out of memory."))
    assert f"Process {server} has 1.27 GiB memory in use. " in refused
    assert "Including non-PyTorch memory, this process has 400.00 MiB memory in use. " in refused

    found = outcome.document
    rows = {row["pid"]: row for row in found["result"]["processes"]}
    (own,) = rows.keys() - {server}
    assert rows[server]["peak_reserved_bytes"] == 1000 * MIB and rows[own]["peak_reserved_bytes"] == 1300 * MIB
    assert {row["context_bytes"] for row in rows.values()} == {300 * MIB}

    with open_recording(Path(found["recording"])) as opened:
        listed = [row.values for row in opened.samples("process") if row.device is not None]
        used = {row.values["used_bytes"] for row in opened.samples("gpu")}
    sizes = {pid: {row["memory_bytes"] for row in listed if row["pid"] == pid} for pid in (own, server)}
    assert 1300 * MIB in sizes[server] and {400 * MIB, 1600 * MIB} <= sizes[own]
    assert {1700 * MIB, 1600 * MIB} <= used and max(size for size in used if size is not None) <= 1700 * MIB

"""Two runs in one session: ``python -m tests.end_to_end.guarded RECORDING`` has the first stopped by the guard."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpudash.cli.terminal.output import leave
from gpudash.session import Session
from gpudash.specs import PressureSpec
from gpudash.units import GIB, MIB

PATIENCE_S = 60.0


def run(session: Session, spec: PressureSpec, guard_bytes: int | None = None) -> dict[str, Any]:
    session.start_run(spec, "cpu", guard_bytes)
    assert session.runs.wait(PATIENCE_S)
    with session.store.lock:
        assert session.store.run is not None
        return session.store.run.summary()


def main() -> int:
    session = Session(recording=Path(sys.argv[1]))
    session.start()
    session.load_torch()
    assert session.wait_ready(PATIENCE_S)
    small = PressureSpec(step=16 * MIB, rate=50.0, cap=64 * MIB, hold=0.1)
    summaries = [run(session, small), run(session, PressureSpec(), GIB), run(session, small)]
    joined = session.close()
    sys.stdout.write(json.dumps(summaries) + "\n")
    return leave(0, joined)


if __name__ == "__main__":
    sys.exit(main())

"""A dashboard that listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.dashboard import Dashboard


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    """One that closes with the test."""
    made = Dashboard(tmp_path)
    yield made
    made.close()

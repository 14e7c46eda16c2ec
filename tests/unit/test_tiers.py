"""Every test has one tier."""

from __future__ import annotations

import pytest

from tests import tiers


def test_every_test_has_one_tier(request: pytest.FixtureRequest) -> None:
    found = [[tier for tier in tiers.TIERS if item.get_closest_marker(tier)] for item in request.session.items]
    assert {len(names) for names in found} == {1}

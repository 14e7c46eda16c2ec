"""What ``gpudash doctor`` says of the torch that is installed."""

from __future__ import annotations

import pytest
import torch

from gpudash.cli import doctor


def test_a_torch_that_predictions_were_not_measured_with_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "predictions" not in {check.name for check in doctor.examine()}
    monkeypatch.setattr(torch, "__version__", "2.16.0+cpu")
    check = next(check for check in doctor.examine() if check.name == "predictions")
    assert check.state == "note"
    assert check.text == "measured with torch 2.11 to 2.15; torch 2.16.0 may allocate differently"


def test_a_platform_that_shows_nothing_is_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    check = next(check for check in doctor.examine() if check.name == "display")
    assert (check.state, check.text) == ("note", "QT_QPA_PLATFORM is offscreen, so that no window is seen on a screen")

"""What the fit panel says of a run on several devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpudash.memory.predicting.estimate import Alternative, Estimate, RankEstimate
from gpudash.memory.predicting.prediction import COMMUNICATION
from gpudash.memory.predicting.rank_estimates import NCCL_BYTES
from gpudash.ui.widgets.theme import Choice
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import GIB
from tests.ui.asked_form import asked_window
from tests.ui.conftest import OpenWindow, settle
from tests.ui.estimates import FITS, SHORT
from tests.ui.fake_session import FakeSession, gpu
from tests.ui.test_fit_panel import emit
from tests.ui.words import complaints, weakest
from tests.unit.clock import Clock

OVER_TWO = Alternative(
    "FSDP2 over cuda:0, cuda:1",
    {"devices": "cuda:0,cuda:1", "parallel": "fsdp", "global_batch": 16},
    peak_reserved_bytes=6 * GIB,
    fits=True,
    ranks=2,
)
TWO_CARDS = Alternative("2 × 24 GiB with FSDP2", card_bytes=24 * GIB, peak_reserved_bytes=13 * GIB, fits=True, ranks=2)


def of_ranks(whole: Estimate, free: list[int], deciding: int) -> Estimate:
    """``whole`` as the deciding rank's of several on ``cuda:0``, ``cuda:1`` and so on."""
    overhead = whole.overhead_bytes + NCCL_BYTES
    ranks = tuple(
        RankEstimate(
            rank=rank,
            device=f"cuda:{rank}",
            capacity_bytes=8 * GIB,
            free_bytes=size,
            peak_allocated_bytes=whole.peak_allocated_bytes,
            peak_reserved_bytes=whole.peak_reserved_bytes,
            minimum_capacity_bytes=whole.minimum_capacity_bytes,
            overhead_bytes=overhead,
            fits=(whole.peak_reserved_bytes or 0) + overhead <= size,
            spare_bytes=size - overhead - (whole.peak_reserved_bytes or 0),
            margin_bytes=whole.margin_bytes,
        )
        for rank, size in enumerate(free)
    )
    chosen = ranks[deciding]
    return replace(
        whole,
        device=chosen.device,
        free_bytes=chosen.free_bytes,
        fits=chosen.fits,
        spare_bytes=chosen.spare_bytes,
        overhead_bytes=overhead,
        ranks=ranks,
        deciding_rank=deciding,
        strategy="fsdp",
        communication_bytes=NCCL_BYTES,
        largest_global_batch=(whole.largest_batch_size or 0) * len(ranks),
    )


TWO_RANKS = of_ranks(FITS, [8 * GIB, 8 * GIB], 0)
UNEQUAL_RANKS = of_ranks(SHORT, [16 * GIB, 8 * GIB], 1)
EIGHT_RANKS = of_ranks(FITS, [8 * GIB] * 8, 0)


@pytest.fixture
def session() -> FakeSession:
    return FakeSession([gpu(0), gpu(1)]).feed(1)


def shown(open_window: OpenWindow, session: FakeSession, estimate: Estimate, theme: Choice = "dark") -> MainWindow:
    window = asked_window(open_window, session, Clock(), (1280, 800), theme)
    emit(window, session, estimate)
    return window


def test_equal_ranks_are_told_with_what_is_assumed_for_nccl(open_window: OpenWindow, session: FakeSession) -> None:
    fit = shown(open_window, session, TWO_RANKS).workspace.dashboard.panel.fit
    assert fit.headline.endswith("spare per rank")
    assert fit.rank_lines.splitlines() == [
        "2 ranks, all alike: rank 0 above",
        "rank 1 on cuda:1: 3.19 GiB of 8.00 GiB free, fits",
        "assumed: NCCL about 192 MiB per rank",
    ]
    assert COMMUNICATION in fit.bar.accessibleDescription()


def test_the_rank_with_least_memory_is_named(open_window: OpenWindow, session: FakeSession) -> None:
    fit = shown(open_window, session, UNEQUAL_RANKS).workspace.dashboard.panel.fit
    assert "on rank 1" in fit.headline
    assert "rank 1 on cuda:1 has least and decides" in fit.rank_lines
    assert "rank 0 on cuda:0: 11.19 GiB of 16.00 GiB free, fits" in fit.rank_lines


def test_of_eight_ranks_one_is_shown(open_window: OpenWindow, session: FakeSession) -> None:
    fit = shown(open_window, session, EIGHT_RANKS).workspace.dashboard.panel.fit
    assert fit.rank_lines.startswith("8 ranks, the fullest shown")
    assert len(fit.rank_lines.splitlines()) == 2


def test_a_run_on_one_device_has_no_line_of_ranks(open_window: OpenWindow, session: FakeSession) -> None:
    window = shown(open_window, session, TWO_RANKS)
    emit(window, session, SHORT)
    assert window.workspace.dashboard.panel.fit.rank_lines == ""
    assert not window.workspace.dashboard.panel.fit._ranks.isVisible()


def test_two_gpus_are_a_button_where_they_are_there_and_a_wish_where_not(
    open_window: OpenWindow, session: FakeSession
) -> None:
    window = shown(open_window, session, replace(SHORT, alternatives=(OVER_TWO, TWO_CARDS)))
    fit = window.workspace.dashboard.panel.fit
    fit.open_details()
    settle(window)
    there, wish = fit.alternatives
    assert wish.button is None
    assert there.button is not None
    there.button.click()
    settle(window)
    spec = window.workspace.dashboard.panel.spec()
    assert spec is not None
    assert (spec.devices, spec.parallel, spec.global_batch) == ("cuda:0,cuda:1", "fsdp", 16)  # type: ignore[attr-defined]


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("estimate", [TWO_RANKS, UNEQUAL_RANKS, EIGHT_RANKS], ids=["two", "unequal", "eight"])
def test_the_words_about_ranks_can_be_read(
    open_window: OpenWindow, session: FakeSession, theme: Choice, estimate: Estimate
) -> None:
    window = shown(open_window, session, estimate, theme)
    window.workspace.dashboard.panel.fit.open_details()
    settle(window)
    assert complaints(window) == []
    assert [found for found in weakest(window, window.grab().toImage()) if found[0] < 4.5] == []

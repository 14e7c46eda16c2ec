"""A script of the user's, predicted before it runs: followed once, judged for every card."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudash.devices.names import SimulatedCard
from gpudash.devices.simulated_cards import exact_text
from gpudash.session import Answer, Session
from gpudash.session.watching.request import WatchRequest
from gpudash.system.sandbox import can_hold_back
from gpudash.system.settings import Settings
from gpudash.units import GIB, MIB

pytestmark = pytest.mark.process

PATIENCE_S = 120.0

TRAINS = """
import torch

net = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(5):
    net(torch.randn(64, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""A training that needs 128 MiB for its weights, as much for gradients and twice as much for the optimizer."""


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session(Settings(record=False))
    session.start(worker=False)
    yield session
    assert session.close()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def request_of(script: Path, *cards: SimulatedCard) -> WatchRequest:
    command = (sys.executable, str(script))
    return WatchRequest(command, folder=script.parent, simulate=cards, as_cuda=bool(cards))


def answered(session: Session, request: WatchRequest) -> Answer:
    assert session.scripts.wait(PATIENCE_S)
    found = session.scripts.of(request)
    assert found is not None and session.scripts.following is None
    return found


def test_a_script_is_followed_once_and_then_judged_for_every_card(session: Session, script: Path) -> None:
    script.write_text(TRAINS)
    small, large = request_of(script, 512 * MIB), request_of(script, 2 * GIB)
    assert session.scripts.of(small) is None
    session.scripts.begin(small, (2 * GIB,))
    assert session.scripts.following is not None and session.scripts.following.name == "train.py"
    found = answered(session, small)
    assert found.estimate is not None and found.estimate.fits is False and found.ghost is not None
    assert found.ghost.highest == found.estimate.needed_bytes
    assert found.cards[exact_text(2 * GIB)].fits is True
    session.scripts.request(large)
    other = answered(session, large)
    assert other.estimate is not None and other.estimate.fits is True
    assert other.estimate.peak_allocated_bytes == found.estimate.peak_allocated_bytes


def test_an_edited_script_has_no_answer_until_it_is_predicted_again(session: Session, script: Path) -> None:
    script.write_text(TRAINS)
    request = request_of(script, 2 * GIB)
    session.scripts.begin(request)
    assert answered(session, request).problem is None
    script.write_text(TRAINS + "# edited\n")
    assert session.scripts.of(request) is None
    session.scripts.request(request)
    assert session.scripts.following is None


def test_one_that_fails_says_why_and_one_that_is_stopped_says_nothing(session: Session, script: Path) -> None:
    script.write_text("raise ValueError('no data')\n")
    request = request_of(script, GIB)
    session.scripts.begin(request)
    problem = answered(session, request).problem
    assert problem is not None and problem.remedy.endswith("ValueError: no data")
    script.write_text("import sys\nsys.stdin.readline()\nimport time\nwhile True: time.sleep(60)\n")
    session.scripts.begin(request)
    with pytest.raises(RuntimeError, match="stop that first"):
        session.scripts.begin(request)
    session.scripts.stop()
    assert session.scripts.wait(PATIENCE_S) and session.scripts.of(request) is None


def test_without_any_card_there_is_nothing_to_predict_it_for(session: Session, script: Path) -> None:
    script.write_text(TRAINS)
    with pytest.raises(ValueError, match="choose a card above"):
        session.scripts.begin(request_of(script))


def test_a_script_that_does_not_fit_is_drawn_with_the_largest_batch_that_does(session: Session, script: Path) -> None:
    script.write_text(TRAINS.replace("64", "batch_size").replace("\nnet", "\nbatch_size = 16384\nnet", 1))
    request = request_of(script, 1100 * MIB)
    session.scripts.begin(request)
    answer = answered(session, request)
    assert answer.final and answer.estimate is not None and answer.ghost is not None
    assert answer.estimate.fits is False
    if not can_hold_back():  # no overlays here: an edit cannot be tried, and what is not verified is not said
        assert not any(one.patch for one in answer.estimate.alternatives)
        return
    first = answer.estimate.alternatives[0]
    assert first.fits is True
    assert first.change.startswith("train.py:4: a batch of ") and "+batch_size = " in first.patch
    assert answer.remedies[0].highest == first.needed_bytes
    assert answer.remedies[0].highest <= 1100 * MIB < answer.ghost.highest

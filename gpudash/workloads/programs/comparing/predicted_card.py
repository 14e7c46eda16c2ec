"""Predicts a step on a card that is not present, and compares it in text with a measured CPU.

The dry run needs a process that computes nothing else, so the process for predictions does it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gpudash.devices.card_performance import performance_of
from gpudash.devices.known_gpus import KnownGpu
from gpudash.devices.names import simulated_product
from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.card_text import spare_text
from gpudash.simulator.device.simulated_gpu import CONTEXT_BYTES
from gpudash.specs import Spec
from gpudash.speed.prediction import predict
from gpudash.speed.time_text import bound_text, span_text
from gpudash.speed.work import StepTime, StepWork
from gpudash.workloads.predicting.host_speed import known_host_speed

COMMAND = (sys.executable, "-m", "gpudash.workloads.predicting.estimate_process")

TIME_LIMIT_S = 120.0
"""Seconds after which predicting is abandoned."""

Outcome = Literal["faster", "slower", "close", "unknown"]


@dataclass(frozen=True)
class CardStep:
    """The prediction for a workload on a card.

    Attributes:
        fits: as in an estimate; ``None`` if unknown.
        spare_bytes: as in an estimate.
        time: of a step; ``None`` if it could not be predicted.
        problem: the reason, in a sentence; "" if it could.
    """

    fits: bool | None = None
    spare_bytes: int | None = None
    time: StepTime | None = None
    problem: str = ""


@dataclass(frozen=True)
class PredictedVerdict:
    """The verdict on a measured CPU and a predicted card, as text.

    Attributes:
        outcome: of the card; "unknown" if nothing could be predicted.
        headline: one sentence with the number.
        because: both times and what limits the card.
    """

    outcome: Outcome
    headline: str
    because: str

    @property
    def text(self) -> str:
        return f"{self.headline} {self.because}"


def card_step(spec: Spec, card: KnownGpu) -> CardStep:
    """Predict a step of ``spec`` on an empty ``card``."""
    performance = performance_of(card.key)
    if performance is None:
        return CardStep(problem=f"How fast {a_card(card.name)} is is not known here.")
    answer = _answer_to(_question(spec, card))
    estimate = answer.get("estimate") or {}
    if not estimate:
        error = answer.get("error") or {}
        return CardStep(problem=str(error.get("message") or "The process that predicts gave no answer."))
    fits = estimate.get("fits")
    spare = estimate.get("spare_bytes")
    if not answer.get("work"):
        return CardStep(fits, spare, problem="What a step does was not written down.")
    work = StepWork.from_dict(answer["work"])
    return CardStep(fits, spare, predict(work, performance, known_host_speed()))


def _question(spec: Spec, card: KnownGpu) -> dict[str, Any]:
    target = {
        "device": "sim:0",
        "product": simulated_product(card),
        "capacity_bytes": card.total_bytes,
        "free_bytes": card.total_bytes,
        "overhead_bytes": CONTEXT_BYTES,
        "overhead_words": "",
        "settings": "",
        "architecture": asdict(Architecture(card.capability, card.multiprocessors)),
    }
    fields = spec.model_dump(mode="json", exclude_defaults=True)
    return {"id": 1, "workload": spec.name, "spec": fields, "target": target, "used_bytes": 0, "alternatives": False}


def _answer_to(question: Mapping[str, Any]) -> dict[str, Any]:
    """All answers of the prediction process, the latest value of each key; empty if it sent none."""
    found: dict[str, Any] = {}
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        watchdog = threading.Timer(TIME_LIMIT_S, process.kill)
        watchdog.start()
        try:
            process.stdin.write(f"{json.dumps(question)}\n")
            process.stdin.flush()
            # It ends when its standard input closes, which stays open until all has arrived.
            for line in process.stdout:
                found |= json.loads(line)
                if found.get("final") or found.get("ready") is False:
                    break
        except (OSError, ValueError):
            pass  # killed or interrupted: what it sent until then is the answer
        finally:
            watchdog.cancel()
            process.kill()
    return found


def a_card(name: str) -> str:
    """The name of a card with its article: "an RTX 4090", "a T4"."""
    # By the sound of the letter's name: R, L, A and H are spelt, and start with a vowel.
    if name[:1] in "AEFHILMNORSX":
        return f"an {name}"
    return f"a {name}"


def predicted_verdict(measured_s: float, name: str, step: CardStep) -> PredictedVerdict:
    """Compare a measured CPU with a predicted card.

    Args:
        measured_s: seconds of a step on the CPU.
        name: of the card.
        step: the prediction for it.
    """
    measured = f"Measured {_alone(measured_s)} a step on this CPU"
    card = a_card(name)
    if step.fits is False:
        short = ""
        if step.spare_bytes is not None:
            short = f", {spare_text(step.spare_bytes)}"
        return PredictedVerdict("unknown", f"{_capital(card)} is predicted not to hold it{short}.", f"{measured}.")
    time = step.time
    if time is None:
        return PredictedVerdict("unknown", f"{measured}; {card} could not be predicted.", step.problem)
    predicted = f"{card} is predicted to take {span_text(time.median_s, time.low_s, time.high_s)}"
    because = f"{measured}; {predicted}: {bound_text(time)}."
    ratio = measured_s / time.median_s
    least = measured_s / time.high_s
    most = measured_s / time.low_s
    span = f"{_times(ratio)} as fast as this CPU ({_times(least)} to {_times(most)})"
    if least > 1:
        return PredictedVerdict("faster", f"{_capital(card)} is predicted to be {span}.", because)
    if most < 1:
        headline = f"A GPU is predicted not to be worth it here: {card} would be {span}."
        return PredictedVerdict("slower", headline, because)
    return PredictedVerdict("close", f"Too close to predict: {card} would be {span}.", because)


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _alone(seconds: float) -> str:
    return span_text(seconds, seconds, seconds).partition(" (")[0]


def _times(ratio: float) -> str:
    if ratio >= 9.95:
        return f"{ratio:.0f}×"
    return f"{ratio:.2g}×"

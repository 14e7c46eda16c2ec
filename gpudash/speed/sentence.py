"""What limits a predicted step, and what would help, in a sentence."""

from __future__ import annotations

from gpudash.speed.work import Gain, StepTime


def sentence(time: StepTime) -> str:
    """For example, "Launch-bound: for 71 % of the step the GPU waits for Python; batch 64: 2.6× samples/s." """
    parts = [held_back(time)]
    parts += [gain_text(gain, f"{gain.factor:.1f}× {time.unit}/s") for gain in time.gains[:2]]
    said = "; ".join(parts) + "."
    if time.unknown == 0:
        return said
    share = _percent(time.unknown_s / time.device_s)
    operations = "operation is" if time.unknown == 1 else "operations are"
    return f"{said} {time.unknown} {operations} of no known kind, {share} of the GPU's time."


def gain_text(gain: Gain, brings: str) -> str:
    """A change with what it ``brings``, and whether it fits in the device's memory."""
    remark = {True: "", None: ", if it fits", False: ", but does not fit"}
    return f"{gain.change}: {brings}{remark[gain.fits]}"


LEAST_WAITING = 0.3
"""Share of the step without work for the GPU that is told as what limits it; a smaller one would contradict that."""


def held_back(time: StepTime) -> str:
    """What limits the step, and its share: a sentence without a full stop."""
    if time.bound == "launches":
        waiting = 1 - time.device_s / time.median_s
        if waiting < LEAST_WAITING:
            return "Launch-bound: the kernels are so small that starting them takes longest"
        return f"Launch-bound: for {_percent(waiting)} of the step the GPU waits for Python"
    if time.bound == "copies":
        return f"Bound by copies: {_percent(time.copy_s / time.median_s)} of the step go to copies from and to the host"
    if time.bound == "communication":
        share = _percent(time.communication_s / time.median_s)
        return f"Bound by communication: for {share} of the step the GPUs wait for each other's gradients"
    kind, seconds = max(time.by_kind.items(), key=lambda item: item[1])
    most = f"{_percent(seconds / time.device_s)} of the GPU's time is in {_PLURAL.get(kind, kind)}"
    if time.bound == "compute":
        return f"Compute-bound: {most}"
    return f"Bound by memory bandwidth: {most}"


_PLURAL = {
    "product": "matrix products",
    "convolution": "convolutions",
    "depthwise convolution": "depthwise convolutions",
    "grouped convolution": "grouped convolutions",
    "recurrent layer": "recurrent layers",
    "normalisation": "normalisations",
    "elementwise": "elementwise operations",
    "reduction": "reductions",
    "embedding": "embeddings",
    "sort": "sorts",
    "optimizer": "the optimizer",
    "copy": "copies within its memory",
    "unknown": "operations of no known kind",
}


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

"""From work to time: what must hold whatever the constants are."""

from __future__ import annotations

import json
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest

from gpudash.devices.card_performance import CARD_PERFORMANCE, CardPerformance
from gpudash.speed.prediction import predict
from gpudash.speed.sentence import gain_text, sentence
from gpudash.speed.work import (
    ATTENTION,
    BOUNDS,
    CONVOLUTION,
    DEPTHWISE,
    ELEMENTWISE,
    EMBEDDING,
    GROUPED,
    NORMALISATION,
    OPTIMIZER,
    PRODUCT,
    RECURRENT,
    REDUCTION,
    SORT,
    UNKNOWN,
    Gain,
    HostSpeed,
    Operation,
    StepTime,
    StepWork,
)

CARD = CARD_PERFORMANCE["rtx4090"]
HOST = HostSpeed()


def product(size: int, dtype: str = "float16", phase: str = "forward") -> Operation:
    element = 4 if dtype == "float32" else 2
    area = size * size * element
    return Operation("mm", PRODUCT, dtype, 2 * size**3, 2 * area, area, (1, size, size, size), phase=phase)


def addition(mebibytes: float, phase: str = "forward") -> Operation:
    size = int(mebibytes * 2**20)
    return Operation("add", ELEMENTWISE, "float16", 0, 2 * size, size, phase=phase)


def of_kind(kind: str, scale: int) -> Operation:
    shapes = {
        PRODUCT: (1, 1024 * scale, 1024, 1024),
        ATTENTION: (scale, 16, 1024, 1024, 64),
        CONVOLUTION: (8 * scale, 64, 128, 1, 9, 3136),
        GROUPED: (8 * scale, 64, 64, 8, 9, 3136),
        DEPTHWISE: (8 * scale, 64, 64, 64, 9, 3136),
    }
    name = {ATTENTION: "_scaled_dot_product_flash_attention", NORMALISATION: "native_layer_norm"}.get(kind, "operation")
    moved = 2**24 * scale
    return Operation(name, kind, "float16", 2**31 * scale, moved, moved, shapes.get(kind, ()))


def time_of(
    *operations: Operation, count: int = 100, host: HostSpeed = HOST, card: CardPerformance = CARD, **more: Any
) -> StepTime:
    return predict(StepWork(dict.fromkeys(operations, count), items=32, **more), card, host)


KINDS_WITH_WORK = (
    PRODUCT, ATTENTION, CONVOLUTION, GROUPED, DEPTHWISE, NORMALISATION, ELEMENTWISE, REDUCTION, EMBEDDING, SORT,
    OPTIMIZER, UNKNOWN,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS_WITH_WORK)
def test_more_work_takes_longer(kind: str) -> None:
    times = [time_of(of_kind(kind, scale)).median_s for scale in (1, 2, 4, 8)]
    assert times == sorted(times)
    assert times[-1] > 3 * times[0]


@pytest.mark.parametrize("kind", KINDS_WITH_WORK)
@pytest.mark.parametrize("change", ["bytes_per_s", "multiprocessors", "clock_hz", "l2_bytes", "flops"])
def test_a_card_that_has_more_of_one_thing_is_never_slower(kind: str, change: str) -> None:
    operation = of_kind(kind, 4)
    faster = {name: 2 * rate for name, rate in CARD.flops.items()}
    if change == "flops":
        better = replace(CARD, flops=faster)
    elif change == "multiprocessors":
        better = replace(CARD, flops=faster, multiprocessors=2 * CARD.multiprocessors)
    else:
        doubled: dict[str, Any] = {change: 2 * getattr(CARD, change)}
        better = replace(CARD, **doubled)
    assert time_of(operation, card=better).median_s <= time_of(operation).median_s * 1.000001


@pytest.mark.parametrize("kind", KINDS_WITH_WORK)
def test_the_interval_holds_the_median(kind: str) -> None:
    time = time_of(of_kind(kind, 2))
    assert time.low_s < time.median_s < time.high_s


def width(time: StepTime) -> float:
    return time.high_s / time.low_s


def test_operations_of_no_known_kind_widen_the_interval_and_are_counted() -> None:
    known = time_of(product(4096))
    unknown = time_of(product(4096), of_kind(UNKNOWN, 8))
    assert width(unknown) > width(known)
    assert (known.unknown, unknown.unknown) == (0, 100)
    assert unknown.unknown_s > 0
    assert "100 operations are of no known kind" in sentence(unknown)


def test_a_card_that_the_fit_had_not_seen_widens_the_interval() -> None:
    assert width(time_of(product(4096), card=CARD_PERFORMANCE["h100"])) > width(time_of(product(4096)))


def test_a_guessed_host_widens_the_interval_of_what_it_holds_back() -> None:
    measured = HostSpeed(7e-6, 5e-6, "measured on this computer")
    assert width(time_of(addition(0.001), host=measured)) < width(time_of(addition(0.001)))


def test_small_kernels_are_bound_by_their_launches_and_a_larger_batch_helps() -> None:
    time = time_of(addition(0.01), product(64), count=1000)
    assert time.bound == "launches"
    assert time.host_s > time.device_s
    changes = {gain.change for gain in time.gains}
    assert "CUDA graphs" in changes
    assert any(change.startswith("batch ") for change in changes)
    assert sentence(time).startswith("Launch-bound: for ")
    assert "× samples/s" in sentence(time)


def larger_batch(room: float | None) -> Gain:
    """What is said of a larger batch of small kernels, of which so many times as large a one has memory."""
    work = StepWork({addition(0.01): 1000, product(64): 1000}, items=32, batch=32)
    return next(gain for gain in predict(work, CARD, HOST, room).gains if "batch" in gain.change)


def test_a_larger_batch_is_offered_as_far_as_it_fits() -> None:
    free = larger_batch(1000.0)
    assert free.fits is True
    assert int(free.change.removeprefix("batch ")) > 63
    tight = larger_batch(63 / 32)
    assert (tight.change, tight.fits) == ("batch 63, the most that fits", True)
    assert 1 < tight.factor < free.factor


def test_a_larger_batch_that_has_no_memory_is_said_not_to_fit_and_comes_last() -> None:
    short = larger_batch(1.0)
    assert short.fits is False
    assert gain_text(short, "2.0×").endswith(": 2.0×, but does not fit")
    work = StepWork({addition(0.01): 1000, product(64): 1000}, items=32, batch=32)
    assert predict(work, CARD, HOST, 1.0).gains[-1] == short


def test_where_memory_is_not_known_a_larger_batch_is_offered_if_it_fits() -> None:
    unknown = larger_batch(None)
    assert unknown.fits is None
    assert gain_text(unknown, "2.0×").endswith(": 2.0×, if it fits")


def recurrent(steps: int, batch: int, phase: str = "forward") -> Operation:
    name = "_cudnn_rnn" if phase == "forward" else "_cudnn_rnn_backward"
    flops = 2 * steps * batch * 2048 * 1024 * (1 + (phase == "backward"))
    moved = 2 * steps * batch * 1024
    return Operation(
        name, RECURRENT, "float16", flops, moved, moved, (1, steps, batch, 2048, 512, 512), 2 * steps, phase
    )


def test_recurrent_layers_take_a_time_for_each_step_and_no_less_than_their_arithmetic() -> None:
    short, long = (time_of(recurrent(steps, 64)).device_s for steps in (100, 200))
    assert 1.9 * short < long < 2.1 * short
    assert time_of(recurrent(100, 64, "backward")).device_s > short
    large = recurrent(100, 4096)
    assert time_of(large, count=1).device_s > large.flops / CARD.flops["float16"]
    # A step waits for the one before: a small batch takes nearly as long as a larger one.
    assert time_of(recurrent(100, 4)).device_s > 0.8 * short


def test_a_larger_batch_of_recurrent_layers_has_no_more_steps() -> None:
    work = StepWork({recurrent(100, 4): 1, addition(0.01): 1000}, items=4, batch=4)
    gain = next(gain for gain in predict(work, CARD, HOST, 1000.0).gains if gain.change.startswith("batch "))
    assert gain.factor > 0.8 * int(gain.change.removeprefix("batch ")) / 4


def test_products_are_bound_by_arithmetic_and_additions_by_bandwidth() -> None:
    assert time_of(product(4096)).bound == "compute"
    time = time_of(addition(512))
    assert time.bound == "memory bandwidth"
    assert sentence(time) == "Bound by memory bandwidth: 100 % of the GPU's time is in elementwise operations."


def test_mixed_precision_helps_products_in_fp32_and_is_not_offered_twice() -> None:
    names = [gain.change for gain in time_of(product(4096, "float32")).gains]
    assert "mixed precision (AMP)" in names
    assert "mixed precision (AMP)" not in [gain.change for gain in time_of(product(4096)).gains]


def test_channels_last_is_offered_to_convolutions_that_are_not() -> None:
    convolution = of_kind(CONVOLUTION, 16)
    offered = [gain.change for gain in time_of(convolution).gains]
    assert time_of(convolution._replace(channels_last=True)).median_s <= time_of(convolution).median_s
    assert "channels last" not in [gain.change for gain in time_of(convolution._replace(channels_last=True)).gains]
    assert "channels last" in offered


def test_an_optimizer_tensor_by_tensor_would_gain_by_a_fused_one() -> None:
    step = Operation("addcdiv_", ELEMENTWISE, "float32", 0, 2**20, 2**19, phase="optimizer")
    assert "a fused optimizer" in [gain.change for gain in time_of(product(1024), step, count=500).gains]
    fused = Operation("_fused_adamw_", OPTIMIZER, "float32", 0, 2**20, 2**19, phase="optimizer")
    assert "a fused optimizer" not in [gain.change for gain in time_of(product(1024), fused, count=500).gains]


def test_copies_from_pageable_memory_hold_back_and_pinned_ones_less() -> None:
    pageable = time_of(product(1024), copied_in_bytes=2**30, copies=1)
    pinned = time_of(product(1024), copied_in_bytes=2**30, copies=1, pinned=True)
    assert pageable.bound == "copies"
    assert pinned.copy_s < pageable.copy_s
    assert pageable.gains[0].change == "pinned memory, copied ahead"


def test_gradients_are_exchanged_beside_backward_as_far_as_it_lasts() -> None:
    long = product(8192, phase="backward")
    short = product(512, phase="backward")
    alone = time_of(long)
    hidden = time_of(long, exchanged_bytes=2**28, ranks=4)
    open_ = time_of(short, exchanged_bytes=2**34, ranks=4)
    assert alone.communication_s == 0
    assert hidden.communication_s < 0.05 * hidden.median_s
    assert open_.bound == "communication"
    assert time_of(short, exchanged_bytes=2**34, ranks=8).median_s > open_.median_s


def test_a_small_tensor_that_stays_in_the_cache_takes_less_than_its_share() -> None:
    small = time_of(addition(1), count=4096, host=HostSpeed(1e-9, 1e-9))
    large = time_of(addition(1024), count=4, host=HostSpeed(1e-9, 1e-9))
    assert small.device_s - 4096 * 5e-6 < large.device_s


def test_the_time_is_json_with_all_that_a_face_needs() -> None:
    document = json.loads(json.dumps(time_of(product(1024), addition(1)).to_dict()))
    assert document["predicted"] is True
    assert document["bound"] in BOUNDS
    assert document["low_s"] < document["median_s"] < document["high_s"]
    assert sum(document["by_kind"].values()) == pytest.approx(document["device_s"], rel=0.05)
    assert "timm" in document["source"]


def test_an_empty_step_takes_no_time_to_speak_of() -> None:
    time = predict(StepWork({}), CARD, HOST)
    assert 0 < time.median_s < 1e-3


def test_three_thousand_different_operations_are_predicted_in_a_few_milliseconds_a_card() -> None:
    work = StepWork({addition(1 + index / 1000, "forward"): 1 for index in range(3000)}, items=32)
    predict(work, CARD, HOST)
    begin = perf_counter()
    for card in ("rtx3090", "h100", "t4"):
        predict(work, CARD_PERFORMANCE[card], HOST)
    # 10 ms each where nothing else runs; a loaded machine has four times that.
    assert (perf_counter() - begin) / 3 < 0.04

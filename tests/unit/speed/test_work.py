"""What a step does, written down and read again."""

from __future__ import annotations

import json

from gpudash.devices.card_performance import CARD_PERFORMANCE
from gpudash.speed.prediction import predict
from gpudash.speed.work import ELEMENTWISE, PRODUCT, HostSpeed, Operation, StepWork

PRODUCT_OF_4096 = Operation("mm", PRODUCT, "float16", 2 * 4096**3, 2**26, 2**25, (1, 4096, 4096, 4096))
ADDITION = Operation("add", ELEMENTWISE, "float16", 0, 2**10, 2**9)


def test_the_work_of_a_step_is_the_same_after_json() -> None:
    work = StepWork({PRODUCT_OF_4096: 3, ADDITION: 100}, items=32, copied_in_bytes=4096, copies=1)
    assert StepWork.from_dict(json.loads(json.dumps(work.to_dict()))) == work


def test_a_step_of_many_small_operations_is_held_back_by_their_launches_and_one_of_large_products_by_arithmetic() -> (
    None
):
    card = CARD_PERFORMANCE["rtx4090"]
    assert predict(StepWork({ADDITION: 1000}), card, HostSpeed()).bound == "launches"
    assert predict(StepWork({PRODUCT_OF_4096: 1000}), card, HostSpeed()).bound == "compute"

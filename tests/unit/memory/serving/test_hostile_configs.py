"""Whatever a config says, a server is answered or one sentence comes out."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from gpudash.memory.serving.plan import ModelServer, ServerCard, ServerFlags
from gpudash.simulator.models.config import read
from gpudash.simulator.refusal import CannotPredictError
from tests.unit.memory.serving.logs import configs
from tests.unit.memory.serving.test_published import published

CARD = ServerCard("a card", 80 * 2**30)

STRANGE: tuple[Any, ...] = (
    *(-1, 0, 1, 3, 2**31, 10**30, 1e300, float("nan"), float("inf"), -0.5, 4096.0),
    *("", "many", None, True, False, [], {}, [[[]]], {"a": {"b": 1}}, [1] * 50, ["full_attention"] * 5000),
)


def outcome(folder: Path, text: str) -> str:
    """What is said of a config, or why nothing is."""
    (folder / "config.json").write_text(text, encoding="utf-8")
    try:
        server = ModelServer(read(str(folder)).values)
        service = server.on(CARD, ServerFlags(max_model_len=4096))
    except (CannotPredictError, ValueError) as error:
        return str(error)
    assert service.weights_bytes >= 0 and service.cache.blocks >= 0
    return f"{service.concurrency:.2f}"


def mutated(config: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A config with some of its values, at any depth, replaced or left out."""
    whole: dict[str, Any] = json.loads(json.dumps(config))
    for _ in range(chance.randint(1, 3)):
        place = whole
        while inside := [value for value in place.values() if isinstance(value, dict) and value]:
            if chance.random() < 0.3:
                break
            place = chance.choice(inside)
        name = chance.choice(list(place))
        place[name] = json.loads(json.dumps(chance.choice(STRANGE)))
        if chance.random() < 0.1:
            del place[name]
        if not whole:
            return whole
    return whole


def test_five_hundred_changed_configs_are_answered_or_refused_in_a_sentence(tmp_path: Path) -> None:
    chance = random.Random(28)
    known = [*configs().values(), *(facts["config"] for facts in published().values())]
    begun = time.process_time()
    for _ in range(500):
        said = outcome(tmp_path, json.dumps(mutated(chance.choice(known), chance)))
        assert "\n" not in said and len(said) < 500
    assert time.process_time() - begun < 60


@pytest.mark.parametrize("depth", [500, 1000, 100_000])
def test_a_config_of_any_depth_is_refused_or_read(tmp_path: Path, depth: int) -> None:
    text = json.dumps(configs()["Qwen3-8B"])[:-1] + ', "deep": ' + '{"a": ' * depth + "1" + "}" * depth + "}"
    assert "\n" not in outcome(tmp_path, text)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_size": -4096}, "hidden_size is -4096"),
        ({"hidden_size": float("nan")}, "hidden_size is nan"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers is 1e+30"),
        ({"num_hidden_layers": "36"}, "num_hidden_layers is '36'"),
        ({"layer_types": ["full_attention"] * 5000}, "5,000 layers"),
        ({"hidden_size": 8}, "keys of 0 numbers"),
    ],
)
def test_sizes_that_no_model_has_are_named(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    config = {**configs()["Mixtral-8x7B-Instruct-v0.1"], "head_dim": None, **changed}
    assert said in outcome(tmp_path, json.dumps(config))

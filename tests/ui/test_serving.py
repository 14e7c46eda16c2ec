"""A model that is to be served: the form asks, every card answers, the plot shows what its memory is for."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from gpudash.cli import run
from gpudash.devices.known_gpus import find
from gpudash.devices.names import SimulatedCard, simulated_gpu
from gpudash.devices.simulated_cards import exact_text
from gpudash.memory.predicting.estimate import CardRequest, Target
from gpudash.memory.serving.on_card import ServerOnCard
from gpudash.session.predicting.ghosts import server_ghost
from gpudash.simulator.refusal import CannotPredictError
from gpudash.specs import ModelSpec
from gpudash.ui.window.main_window import MainWindow
from gpudash.units import format_count
from gpudash.workloads.predicting.servers import servers_on
from tests.ui.asked_form import ask_again, asked_window
from tests.ui.conftest import OpenWindow, settle
from tests.ui.fake_session import FakeSession, gpu
from tests.unit.clock import Clock
from tests.unit.memory.serving.gguf_files import LLAMA_3_8B, header
from tests.unit.memory.serving.logs import configs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(configs()["Llama-3.1-8B-Instruct"]), encoding="utf-8")
    return tmp_path


def requested(card: SimulatedCard | None) -> CardRequest:
    assert card is not None and not isinstance(card, int)
    product = simulated_gpu(0, card).product
    return CardRequest(exact_text(card), Target("sim:0", card.total_bytes, card.total_bytes, product=product))


def served(spec: ModelSpec, *names: str) -> dict[str, ServerOnCard]:
    """What the estimator's process answers, read as the window reads it."""
    found = servers_on(spec, [requested(find(name)) for name in names], names[0])
    read = TypeAdapter(list[ServerOnCard]).validate_json(json.dumps(found))
    return {server.key: server for server in read}


@pytest.mark.parametrize("name", ["rtx4090", "l40s", "h100"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sequence": 8192, "users": 40},
        {"sequence": 4096, "tensor_parallel": 2},
        {"sequence": 8192, "quantisation": "fp8"},
        {"sequence": 8192, "quantisation": "awq", "engine": "vllm==0.19"},
    ],
)
def test_a_chip_has_the_figures_of_the_command(
    model: Path, name: str, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["estimate", "--model", str(model), "--task", "serve", "--simulate", name, "--json"]
    flags = {name: f"--{name.replace('_', '-')}" for name in fields} | {"sequence": "--max-model-len"}
    assert run([*words, *(word for field, value in fields.items() for word in (flags[field], str(value)))]) == 0
    told = json.loads(capsys.readouterr().out)
    shown = served(ModelSpec(path=str(model), task="serve", **fields), name)[name]
    same = ("weights_bytes", "activation_bytes", "non_torch_bytes", "kv_bytes", "tokens", "users")
    figures = asdict(shown)
    assert {field: figures[field] for field in same} == {field: told[field] for field in same}
    assert (shown.length, shown.cards, shown.enough) == (told["max_model_len"], told["cards"], told["enough"])
    assert (shown.fits or None) == (told["fits"] or None)
    assert (shown.tokens_per_s is None) == (told["time"] is None)
    if told["time"] is not None:
        assert shown.tokens_per_s == pytest.approx(told["time"]["tokens_per_s"], rel=1e-3)


def asked(open_window: OpenWindow, model: Path, **fields: int) -> tuple[MainWindow, FakeSession, ModelSpec]:
    """A window whose form asks for a server."""
    session = FakeSession([gpu(0)]).feed(3)
    clock = Clock()
    window = asked_window(open_window, session, clock)
    panel = window.workspace.dashboard.panel
    panel.take_model(model, task="serve")
    panel.form.change_fields(fields)
    ask_again(window)
    spec = panel.spec()
    assert isinstance(spec, ModelSpec) and spec.task == "serve"
    return window, session, spec


def test_every_card_says_how_many_users_it_serves(open_window: OpenWindow, model: Path) -> None:
    window, session, spec = asked(open_window, model, sequence=8192, users=16)
    found = served(spec, "rtx4090", "h100", "rtx3060")
    own = ServerOnCard(**{**asdict(found["rtx4090"]), "key": session.estimates.questions[-1][1]})
    session.estimates.report_servers([own, *found.values()])
    settle(window)
    dashboard = window.workspace.dashboard
    chips = {chip.content.key: chip.content.text for chip in dashboard.chooser.shown}
    assert chips["rtx4090"].standing == "short" and chips["rtx4090"].verdict.endswith("of 16 users")
    assert chips["rtx3060"].verdict.endswith("short")
    assert dashboard.panel.fit.headline.startswith("✕ starts, but serves")
    assert "KV cache" in dashboard.panel.fit.figures
    assert "enough on 2 of these cards, tensor-parallel" in dashboard.panel.fit.figures


def test_a_length_with_which_no_server_starts_is_named_beside_one_with_which_it_does(
    open_window: OpenWindow, model: Path
) -> None:
    window, session, spec = asked(open_window, model)
    key = session.estimates.questions[-1][1]
    found = served(spec, "rtx4090")["rtx4090"]
    assert not found.fits and found.shorter_length
    session.estimates.report_servers([ServerOnCard(**{**asdict(found), "key": key})])
    settle(window)
    fit = window.workspace.dashboard.panel.fit
    assert fit.headline == f"✕ does not start at {format_count(found.length)} tokens"
    assert f"a length of up to {format_count(found.longest)} tokens starts" in fit.figures
    assert fit._apply_first.isVisible()
    fit._apply_first.click()
    settle(window)
    asked_again = session.estimates.questions[-1][0]
    assert isinstance(asked_again, ModelSpec) and asked_again.sequence == found.longest
    assert served(asked_again, "rtx4090")["rtx4090"].fits


def test_what_is_left_beside_the_weights_is_drawn_as_the_cache(model: Path) -> None:
    server = served(ModelSpec(path=str(model), task="serve", sequence=8192), "h100")["h100"]
    ghost = server_ghost(server)
    assert ghost.parts["KV cache"] == server.kv_bytes and ghost.parts["weights"] == server.weights_bytes
    assert ghost.highest == server.kv_bytes + sum(server.parts.values()) <= server.limit_bytes
    assert [stage.name for stage in ghost.one_step.stages] == ["weights loaded", "largest step tried", "serving"]


def test_a_server_without_room_for_its_weights_is_drawn_above_its_limit(model: Path) -> None:
    server = served(ModelSpec(path=str(model), task="serve", sequence=2048), "rtx3060")["rtx3060"]
    ghost = server_ghost(server)
    assert ghost.limit is not None and ghost.highest - ghost.limit == -server.kv_bytes
    assert server.standing == "short" and "does not start" in server.headline


def test_a_server_is_predicted_and_not_started(open_window: OpenWindow, model: Path) -> None:
    window, _session, spec = asked(open_window, model)
    assert any("vllm serve" in problem for problem in spec.run_problems("cuda:0"))
    assert not window.workspace.dashboard.panel.button.isEnabled()
    assert not window.workspace.dashboard.panel.form.control("batch").isEnabled()
    assert window.workspace.dashboard.panel.form.control("users").isEnabled()


def test_what_sglang_takes_beside_its_share_is_within_the_limit(model: Path) -> None:
    server = served(ModelSpec(path=str(model), task="serve", sequence=8192, engine="sglang"), "h100")["h100"]
    assert server_ghost(server).highest <= server.limit_bytes <= server.capacity_bytes


def test_a_gguf_file_is_answered_for_in_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header(*LLAMA_3_8B))
    with pytest.raises(CannotPredictError, match="GGUF") as refused:
        served(ModelSpec(path=str(file), task="serve"), "h100")
    assert "--task serve" in refused.value.remedy

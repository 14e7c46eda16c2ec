"""The Grafana dashboard, the alert rules and dcgm-exporter's names, which come with what is served."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudash.session.serving import companions
from gpudash.session.serving.catalogue import CATALOGUE
from gpudash.sources.prometheus.names import NAMES
from tests.programs import program

SERVED = {served.name: served for served in CATALOGUE}
RULES = companions() / "alert-rules.yml"


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((companions() / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return found


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


def names(text: str) -> set[str]:
    return set(re.findall(r"\bgpudash_[a-z0-9_]+", text))


def test_every_metric_of_the_dashboard_is_served() -> None:
    mentioned = set().union(*map(names, expressions()))
    assert mentioned <= SERVED.keys()
    assert len(mentioned) > 25


def test_every_label_of_the_dashboard_is_there() -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            labels = set.intersection(*(set(SERVED[name].labels) for name in names(target["expr"])))
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) | set(
                re.findall(r"(\w+)=~", target["expr"])
            )
            assert used <= labels | {"instance", "job"}, panel["title"]


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    assert board["id"] is None
    assert board["uid"] == "gpudash"
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "instance", "gpu"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    rows = {panel["title"] for panel in board["panels"] if panel["type"] == "row"}
    assert rows == {"Memory", "GPU", "Run", "Warnings"}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"


def test_no_panel_of_the_dashboard_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.process
def test_prometheus_understands_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"x:{number}", "expr": expr.replace("$__rate_interval", "1m")}
        for number, expr in enumerate(expr for expr in expressions() if not expr.startswith("label_values"))
    ]
    file = tmp_path / "rules.yml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    promtool("check", "rules", str(file))


def promtool(*arguments: str) -> None:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.process
def test_promtool_has_nothing_to_say_of_the_rules() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


@pytest.mark.process
def test_the_rules_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", str(Path(__file__).with_name("alert-rules-test.yml")))


def test_every_metric_of_the_rules_is_served() -> None:
    text = RULES.read_text(encoding="utf-8")
    mentioned = set().union(*(names(line) for line in text.splitlines() if "expr:" in line))
    assert mentioned <= SERVED.keys()
    assert len(mentioned) > 6
    tested = Path(__file__).with_name("alert-rules-test.yml").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", text)
    assert len(alerts) == 15
    for alert in alerts:
        assert re.search(rf"alertname: {alert}\b", tested), f"{alert} has no test"


def test_what_is_said_of_dcgm_exporter_is_what_the_reading_side_knows() -> None:
    mapping = json.loads((companions() / "dcgm-exporter.json").read_text(encoding="utf-8"))["metrics"]
    assert {row["gpudash"] for row in mapping} <= SERVED.keys()
    for row in mapping:
        ours = SERVED[row["gpudash"]].reading
        assert ours is not None
        theirs = NAMES.get(row["dcgm"])
        if theirs is not None:
            assert (theirs.kind, theirs.metric) == ours
            assert theirs.scale == pytest.approx(row["factor"])


def test_what_the_reading_side_calls_gpudashs_is_served() -> None:
    read = {name for name, known in NAMES.items() if known.exporter == "gpudash"}
    assert read <= SERVED.keys()
    for name in read:
        reading = SERVED[name].reading
        if reading is not None:
            assert (NAMES[name].kind, NAMES[name].metric) == reading


def test_the_wheel_carries_them() -> None:
    project = Path(__file__).parents[4] / "pyproject.toml"
    carried = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert carried["force-include"]["resources/prometheus"] == "gpudash/_resources/prometheus"
    assert {file.name for file in companions().iterdir()} == {
        "grafana-dashboard.json",
        "alert-rules.yml",
        "dcgm-exporter.json",
    }

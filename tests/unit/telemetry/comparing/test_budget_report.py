"""Budgets as JUnit, SARIF and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpudash.telemetry.comparing.budget_report import (
    RULES,
    CheckedBudget,
    junit_text,
    report_text,
    sarif_text,
    write_text,
)

CHECKS = [
    CheckedBudget("tests/test_a.py::test_fits", "passed", "peak 1 B", 1, 2),
    CheckedBudget(
        "tests/test_a.py::test_grew", "grown", "tests/test_a.py::test_grew takes 3 B.", 3, 4, 9, 1, "my model.py", 7
    ),
    CheckedBudget("tests/test_a.py::test_[<&>]\x1b", "ran out", "for &\x00 me", 5, 6, file="/abs/train.py", line=3),
    CheckedBudget("train.py:build", "over", "needs more", 5, 6),
    CheckedBudget("tests/test_a.py::test_wrong", "failed", "assert 1 == 2", 1, 2, file="tests/test_a.py", line=2),
]

REQUIRED = {
    "log": {"version", "runs"},
    "run": {"tool"},
    "driver": {"name"},
    "rule": {"id"},
    "result": {"message"},
    "location": set[str](),
    "physicalLocation": {"artifactLocation"},
    "artifactLocation": {"uri"},
}
"""What the schema of SARIF 2.1.0 requires, and what GitHub's code scanning needs beside it."""

ALLOWED = {
    "log": {"$schema", "version", "runs", "inlineExternalProperties", "properties"},
    "run": {"tool", "results", "columnKind", "originalUriBaseIds", "artifacts", "invocations", "properties"},
    "driver": {"name", "version", "semanticVersion", "informationUri", "rules", "properties"},
    "rule": {
        "id",
        "name",
        "shortDescription",
        "fullDescription",
        "help",
        "helpUri",
        "defaultConfiguration",
        "properties",
    },
    "result": {
        *("ruleId", "ruleIndex", "level", "kind", "message", "locations", "partialFingerprints", "properties"),
    },
    "location": {"physicalLocation", "logicalLocations", "message", "id"},
    "physicalLocation": {"artifactLocation", "region", "contextRegion"},
    "artifactLocation": {"uri", "uriBaseId", "index", "description"},
}
"""Keys of the schema, which takes no others (``additionalProperties`` is false everywhere)."""


def held(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    assert REQUIRED[kind] <= set(value) <= ALLOWED[kind], (kind, value)
    return value


def test_sarif_has_what_its_schema_requires_and_nothing_else() -> None:
    log = held("log", json.loads(sarif_text(CHECKS)))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = held("driver", held("run", run)["tool"]["driver"])
    rules = [held("rule", rule)["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules) == len(RULES)
    for result in run["results"]:
        held("result", result)
        assert (
            rules[result["ruleIndex"]] == result["ruleId"] and result["level"] == "error" and result["message"]["text"]
        )
        for location in result["locations"]:
            physical = held("location", location).get("physicalLocation")
            if physical is not None:
                held("artifactLocation", held("physicalLocation", physical)["artifactLocation"])
                assert physical["region"]["startLine"] >= 1
                base = physical["artifactLocation"].get("uriBaseId")
                assert base is None or base in run["originalUriBaseIds"]


def test_sarif_has_the_findings_alone_each_at_its_line_and_known_again() -> None:
    (run,) = json.loads(sarif_text(CHECKS))["runs"]
    places = [result["locations"][0].get("physicalLocation") for result in run["results"]]
    assert [result["ruleId"] for result in run["results"]] == [
        "gpu-memory-grown",
        "gpu-memory-ran-out",
        "gpu-memory-over-limit",
    ]
    assert places[0] == {
        "artifactLocation": {"uri": "my%20model.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 7},
    }
    assert places[1]["artifactLocation"] == {"uri": "file:///abs/train.py"} and places[2] is None
    assert run["results"][0]["message"]["text"].count("test_grew") == 1
    again = json.loads(sarif_text([CHECKS[1]]))["runs"][0]["results"][0]
    assert again["partialFingerprints"] == run["results"][0]["partialFingerprints"]
    assert json.loads(sarif_text([]))["runs"][0]["results"] == []


def test_junit_is_xml_whatever_is_in_names_and_has_failures_and_figures() -> None:
    (suite,) = ElementTree.fromstring(junit_text(CHECKS, "gpudash estimate"))
    assert (suite.get("tests"), suite.get("failures")) == ("5", "4")
    cases = suite.findall("testcase")
    assert [case.find("failure") is not None for case in cases] == [False, True, True, True, True]
    figures = {one.get("name"): one.get("value") for one in cases[1].iter("property")}
    assert figures == {
        "gpu_memory_peak_bytes": "3",
        "gpu_memory_needed_bytes": "4",
        "gpu_memory_allowed_bytes": "9",
        "gpu_memory_stored_bytes": "1",
    }
    assert (cases[1].get("file"), cases[1].get("line")) == ("my model.py", "7")


def test_the_report_has_every_check_whole() -> None:
    document = json.loads(report_text(CHECKS))
    assert (document["format"], document["kind"]) == (1, "gpudash memory report")
    assert [CheckedBudget(**test) for test in document["tests"]] == CHECKS


def test_a_report_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere/x.sarif cannot be written: No such file or directory\."):
        write_text(tmp_path / "nowhere" / "x.sarif", "")

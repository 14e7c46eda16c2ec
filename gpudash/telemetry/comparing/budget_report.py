"""Results of budget checks as files for other tools: JUnit for CI servers, SARIF for code scanning, JSON for the
rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal
from urllib.parse import quote
from xml.etree import ElementTree

from gpudash import __version__
from gpudash.system.files import written_whole
from gpudash.system.foreign_text import visible

FORMAT = 1
KIND = "gpudash memory report"

SARIF_VERSION = "2.1.0"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

ROOT = "%SRCROOT%"
"""Base of the paths in SARIF, by the name that GitHub and others use."""

Outcome = Literal["passed", "ran out", "grown", "over", "failed"]

RULES: Mapping[str, tuple[str, str]] = {
    "ran out": ("gpu-memory-ran-out", "More GPU memory was needed than the card of the budget has."),
    "grown": ("gpu-memory-grown", "The peak of GPU memory is more than the baseline has stored."),
    "over": ("gpu-memory-over-limit", "More GPU memory is needed than the limit allows."),
}
"""Identifier and description of a finding, by outcome; failures for other reasons are not findings."""


@dataclass(frozen=True)
class CheckedBudget:
    """A test or prediction checked against its budget.

    Attributes:
        name: name of the test, or of the predicted program.
        outcome: "ran out" of its card's memory; "grown" beyond its baseline; "over" its limit; "failed" for another
            reason.
        message: the result, in a sentence.
        peak_bytes: peak of allocated memory.
        needed_bytes: memory needed on the card, including the context.
        allowed_bytes: limit set by the budget; ``None`` without a limit.
        stored_bytes: size in the baseline; ``None`` without one.
        file, line: where most of it was allocated, else position of the test; "" and 0 if unknown.
        lines: bytes at the peak by "file:line", most first.
    """

    name: str
    outcome: Outcome
    message: str
    peak_bytes: int
    needed_bytes: int
    allowed_bytes: int | None = None
    stored_bytes: int | None = None
    file: str = ""
    line: int = 0
    lines: Mapping[str, int] = field(default_factory=dict)


def write_text(path: Path, text: str) -> None:
    """Write a report whole.

    Raises:
        ValueError: one sentence, if it cannot be written.
    """
    try:
        with written_whole(path) as part:
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}.") from None


def report_text(checks: Sequence[CheckedBudget]) -> str:
    """All results as JSON: ``{"format": 1, "kind": …, "tests": [{…}]}`` with the fields of `CheckedBudget`."""
    document = {"format": FORMAT, "kind": KIND, "tests": list(map(asdict, checks))}
    return f"{json.dumps(document, indent=1, ensure_ascii=False)}\n"


def sarif_text(checks: Sequence[CheckedBudget]) -> str:
    """The exceeded budgets as SARIF 2.1.0 (OASIS, 2020), for code scanning.

    One run, with a result for each finding at the line that allocated most; no results if no budget is exceeded.
    """
    found = [check for check in checks if check.outcome in RULES]
    identifiers = [identifier for identifier, _text in RULES.values()]
    rules = [
        {"id": identifier, "shortDescription": {"text": text}, "defaultConfiguration": {"level": "error"}}
        for identifier, text in RULES.values()
    ]
    driver = {
        "name": "gpudash",
        "version": __version__,
        "informationUri": "https://pypi.org/project/gpudash/",
        "rules": rules,
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "The folder that the checks ran in."}}},
        "results": [_result(check, identifiers) for check in found],
    }
    log = {"$schema": SARIF_SCHEMA, "version": SARIF_VERSION, "runs": [run]}
    return f"{json.dumps(log, indent=1, ensure_ascii=False)}\n"


def junit_text(checks: Sequence[CheckedBudget], suite: str) -> str:
    """The checks as a JUnit file, each a test case; figures are properties, as in pytest's own file.

    Args:
        checks: the results.
        suite: name of the suite.
    """
    beyond = [check for check in checks if check.outcome != "passed"]
    root = ElementTree.Element("testsuites")
    counts = {"tests": str(len(checks)), "failures": str(len(beyond)), "errors": "0", "skipped": "0"}
    element = ElementTree.SubElement(root, "testsuite", {"name": suite, **counts})
    for check in checks:
        case = ElementTree.SubElement(element, "testcase", {"classname": suite, "name": visible(check.name)})
        if check.file:
            case.set("file", visible(check.file))
            case.set("line", str(check.line))
        properties = ElementTree.SubElement(case, "properties")
        for name in ("peak_bytes", "needed_bytes", "allowed_bytes", "stored_bytes"):
            value = getattr(check, name)
            if value is not None:
                ElementTree.SubElement(properties, "property", {"name": f"gpu_memory_{name}", "value": str(value)})
        if check.outcome != "passed":
            failure = ElementTree.SubElement(
                case, "failure", {"type": check.outcome, "message": visible(check.message)}
            )
            failure.text = visible(check.message)
    ElementTree.indent(root, " ")
    return f"{ElementTree.tostring(root, encoding='unicode', xml_declaration=True)}\n"


def _result(check: CheckedBudget, identifiers: Sequence[str]) -> dict[str, Any]:
    identifier = RULES[check.outcome][0]
    text = check.message
    if not text.startswith(check.name):
        text = f"{check.name}: {text}"
    result: dict[str, Any] = {
        "ruleId": identifier,
        "ruleIndex": identifiers.index(identifier),
        "level": "error",
        "message": {"text": text},
        # Identifies the same finding in the next run, even if its figures change or its line moves.
        "partialFingerprints": {"gpudashBudget/v1": f"{identifier}:{check.name}"},
        "properties": {"peakBytes": check.peak_bytes, "neededBytes": check.needed_bytes},
    }
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": check.name, "kind": "function"}]}
    if check.file:
        location["physicalLocation"] = {
            "artifactLocation": _artifact(check.file),
            "region": {"startLine": max(1, check.line)},
        }
    result["locations"] = [location]
    return result


def _artifact(file: str) -> dict[str, str]:
    if PurePath(file).is_absolute():
        return {"uri": PurePath(file).as_uri()}
    return {"uri": quote(PurePath(file).as_posix()), "uriBaseId": ROOT}

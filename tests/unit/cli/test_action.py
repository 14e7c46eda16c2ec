"""The action of GitHub: its table, and the shell of its steps, run one after another in a clean clone."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from gpudash.system.files import resource
from tests.unit.session.bisecting.histories import History

ACTION = Path(resource("action", "action.yml")).parent

MIB = 2**20


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("action_table", ACTION / "table.py")
    assert spec is not None and spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def report(*tests: tuple[str, int, str]) -> str:
    """What the plug-in of pytest writes: name, peak and outcome of tests."""
    written = [{"name": name, "peak_bytes": size, "outcome": how, "message": "said"} for name, size, how in tests]
    return json.dumps({"tests": written})


def written(folder: Path, *tests: tuple[str, int, str], **documents: dict[str, Any]) -> Path:
    """A folder as check.sh leaves it."""
    folder.mkdir()
    (folder / "tests.json").write_text(report(*tests))
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


def test_the_table_has_the_difference_to_the_base_and_what_is_beyond_comes_first(
    table: ModuleType, tmp_path: Path
) -> None:
    head = written(
        tmp_path / "head",
        ("test_same", 10 * MIB, "passed"),
        ("test_new", 7, "passed"),
        ("test_less", 9 * MIB, "passed"),
        ("test_grew", 30 * MIB, "grown"),
        **{
            "estimate-1": {
                "workload": "train.py:build",
                "needed_bytes": 3 * MIB,
                "within_max": False,
                "max_bytes": MIB,
            },
            "estimate-2": {"workload": "x", "needed_bytes": None, "error": {"message": "no such file"}},
        },
    )
    base = written(
        tmp_path / "base",
        *(("test_same", 10 * MIB, "passed"), ("test_less", 10 * MIB, "passed"), ("test_grew", 20 * MIB, "passed")),
        ("test_gone", 1, "passed"),
    )
    (base / "broken.json").write_text("{")
    text = table.table(table.rows_of(head), table.rows_of(base))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[1] == "| test&#95;grew | 20 MiB | 30 MiB | +10 MiB (+50.0 %) | **more than the baseline** |"
    assert "| train.py:build &#40;estimate-1&#41; | new | 3 MiB |  | **more than the limit** |" in rows
    assert "| test&#95;less | 10 MiB | 9 MiB | −1 MiB (-10.0 %) | within |" in rows
    assert "| test&#95;same | 10 MiB | 10 MiB | 0 | within |" in rows
    assert "3 of 6 are beyond their budgets or failed." in text and "Only the base has: test&#95;gone." in text
    assert "* x &#40;estimate-2&#41;: no such file" in text


def test_names_in_the_table_are_text_and_a_long_one_is_cut(table: ModuleType, tmp_path: Path) -> None:
    hostile = "<img src=x>|@everyone [a](http://x) `b`\n## c"
    head = written(tmp_path / "head", (hostile, 1, "passed"), *((f"t{number}", 1, "passed") for number in range(300)))
    text = table.table(table.rows_of(head), None)
    assert not re.search(r"<img|@every|\]\(|^## c", text, re.MULTILINE)
    assert "101 more are not shown." in text and len(text) < 65_536
    assert "Nothing was measured" in table.table({}, None)


PYTHON = """#!/bin/sh
# Instead of pytest: what a commit has in its file "report" is what its tests took.
if [ "$2" != pytest ]; then exec {python} "$@"; fi
echo "$@" "$PYTHONPATH" >> {log}
for word in "$@"; do
  case $word in
    --gpu-memory-report=*) cat report > "${{word#*=}}";;
    --gpu-memory-sarif=*|--junit-xml=*) echo x > "${{word#*=}}";;
  esac
done
! grep -q "ran out" report
"""


GH = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *--paginate*) cat {known};;
  *-F*) for word in "$@"; do case $word in body=@*) cp "${{word#body=@}}" {body};; esac; done;;
esac
"""


class Steps:
    """The steps of the action as GitHub runs them: the shell of each, with what it says of its environment.

    Args:
        clone: a clean clone of a project.
        folder: for all else.
        inputs: of the action.
    """

    def __init__(self, clone: Path, folder: Path, inputs: dict[str, str], number: str) -> None:
        action = yaml.safe_load((ACTION / "action.yml").read_text())
        self._steps = action["runs"]["steps"]
        defaults = {name: one["default"] for name, one in action["inputs"].items()}
        assert set(inputs) <= set(defaults)
        self._values = {f"inputs.{name}": value for name, value in {**defaults, **inputs}.items()}
        self._values["github.event.pull_request.number"] = number
        self._clone = clone
        self._folder = folder
        self.summary = folder / "summary"
        self.printed = ""

    def run(self) -> int:
        """Run all of them; the exit code of the one that failed."""
        for step in self._steps:
            if not self._is_wanted(step.get("if", "")):
                continue
            assert step["shell"] == "bash" and "${{" not in step["run"], "what is given reaches a step as variables"
            code = self._step(step)
            if code:
                return code
        return 0

    def _is_wanted(self, condition: str) -> bool:
        inner = condition.removeprefix("${{").removesuffix("}}")
        for part in filter(None, (part.strip() for part in inner.split("&&"))):
            if not self._values.get(part.removesuffix("!= ''").strip(), ""):
                return False
        return True

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: self._values.get(found[1], ""), str(text))

    def _step(self, step: dict[str, Any]) -> int:
        output = self._folder / "output"
        output.write_text("")
        given = {name: self._filled(value) for name, value in step.get("env", {}).items()}
        paths = {
            "GITHUB_ACTION_PATH": str(ACTION),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_REPOSITORY": "ada/project",
            "RUNNER_TEMP": str(self._folder / "temp"),
        }
        done = subprocess.run(
            # As a runner does it: https://docs.github.com/actions (shell: bash).
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self._clone / self._filled(step.get("working-directory", ".")),
            env={**os.environ, **paths, **given},
            capture_output=True,
            text=True,
            check=False,
        )
        self.printed += done.stdout + done.stderr
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            self._values[f"steps.{step['id']}.outputs.{name}"] = value
        return done.returncode


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_steps_compare_with_the_base_comment_the_table_once_and_fail_beyond_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path / "project")
    base = history.commit("base", report=report(("tests/test_memory.py::test_step", 4 * MIB, "passed")))
    history.commit("larger", report=report(("tests/test_memory.py::test_step", 256 * MIB, "ran out")))
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", f"file://{history.folder}", str(clone)],
        check=True,
        capture_output=True,
    )
    programs, known, body = tmp_path / "programs", tmp_path / "known", tmp_path / "body"
    programs.mkdir()
    known.write_text("")
    gh = programs / "gh"
    gh.write_text(GH.format(log=tmp_path / "asked", known=known, body=body))
    gh.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    python = programs / "python"
    python.write_text(PYTHON.format(python=sys.executable, log=tmp_path / "runs"))
    python.chmod(0o755)
    inputs = {
        "tests": "tests -q",
        "install": "",
        "python": str(python),
        "base": base,
        "token": "secret",
    }
    steps = Steps(clone, tmp_path, inputs, "12")
    assert steps.run() == 1, steps.printed
    assert "::error::A budget of GPU memory was exceeded" in steps.printed
    summary = steps.summary.read_text()
    assert "1 of 1 are beyond their budgets or failed." in summary, steps.printed
    assert re.search(
        r"\| tests/test&#95;memory.py::test&#95;step \| 4 MiB \| \S+ \S+ \|.*\| \*\*out of memory\*\*", summary
    )
    assert body.read_text() == f"<!-- gpudash budgets -->\n{summary}"
    asked = (tmp_path / "asked").read_text()
    assert "--method POST repos/ada/project/issues/12/comments" in asked and "secret" not in steps.printed + asked
    head = tmp_path / "temp" / "gpudash" / "head"
    assert (head / "tests.sarif").exists() and (head / "tests.junit.xml").exists()
    ours, bases = (tmp_path / "runs").read_text().splitlines()
    assert "-m pytest tests -q --gpu-memory-report=" in ours and f"{tmp_path}/temp/gpudash/tree" not in ours
    assert f"{tmp_path}/temp/gpudash/tree/:{tmp_path}/temp/gpudash/tree/src" in bases
    assert subprocess.check_output(["git", "worktree", "list"], cwd=clone, text=True).count("\n") == 1

    known.write_text("4711\n")
    inputs |= {"base": "", "token": "secret"}
    history.commit("smaller", report=report(("tests/test_memory.py::test_step", 2 * MIB, "passed")))
    for words in (("fetch", "--quiet", "--depth=1", "origin", "main"), ("reset", "--quiet", "--hard", "FETCH_HEAD")):
        subprocess.run(["git", *words], cwd=clone, check=True, capture_output=True)
    again = Steps(clone, tmp_path, inputs, "12")
    assert again.run() == 0, again.printed
    assert "--method PATCH repos/ada/project/issues/comments/4711" in (tmp_path / "asked").read_text()
    silent = Steps(clone, tmp_path, {**inputs, "token": "", "tests": ""}, "12")
    before = (tmp_path / "asked").read_text()
    assert silent.run() == 0 and (tmp_path / "asked").read_text() == before

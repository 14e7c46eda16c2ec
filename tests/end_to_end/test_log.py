"""The log of real commands: what it says of a run, and what it keeps to itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpudash.system.folders import log_file
from tests.end_to_end.conftest import Command

HANDLER = """
class CallbackHandler:
    def on_step_end(self, args, state, control):
        return control
    def on_log(self, args, state, control, logs):
        return control
"""

TRAINING = """
from transformers.trainer_callback import CallbackHandler
class State:
    @property
    def global_step(self):
        raise RuntimeError("the step is not known")
print(CallbackHandler().on_step_end(None, State(), "the program goes on"))
"""


def messages() -> list[str]:
    """What was logged, without the time and who logged it."""
    return [line.partition(": ")[2] for line in log_file().read_text(encoding="utf-8").splitlines() if ": " in line]


def test_a_run_is_logged_from_its_command_to_its_exit_code_and_no_reading_is(gpudash: Command) -> None:
    outcome = gpudash("run", "matmul", "--device", "cpu", "--size", "64", "--json")
    assert outcome.code == 0, outcome.stderr
    logged = messages()
    expected = (
        "gpudash run --device --size --json: version",
        "recording to",
        "the session began, recorded",
        "the worker began",
        "torch of this machine: torch 2.",
        "run 1 began: matmul on cpu",
        "run 1 ended after",
        "the session ended, every thread with it",
        "the command ended with exit code 0",
    )
    places = [next(n for n, line in enumerate(logged) if line.startswith(begin)) for begin in expected]
    assert places[0] == 0 and places[-1] == len(logged) - 1
    assert len(logged) < 30


def test_what_goes_wrong_in_the_agent_is_logged_by_the_session_and_the_program_sees_nothing(
    gpudash: Command, tmp_path: Path
) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers" / "trainer_callback.py").write_text(HANDLER)
    (tmp_path / "train.py").write_text(TRAINING)
    outcome = gpudash("watch", "--json", "--", sys.executable, str(tmp_path / "train.py"))
    assert outcome.code == 0 and "the program goes on" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    text = log_file().read_text(encoding="utf-8")
    assert "met an error\n    " in text and "    RuntimeError: the step is not known" in text
    assert "steps.py:" in text and "the program that is watched, ended with code 0" in text


def test_what_is_logged_is_seen_with_verbose_and_tokens_and_addresses_of_notices_are_not_in_it(
    gpudash: Command, tmp_path: Path
) -> None:
    secrets = ("t0ken-0123456789abcdef", "hook-s3cret", "ntfy-s3cret")
    token = tmp_path / "token"
    token.write_text(secrets[0])
    token.chmod(0o600)
    notify = ("--notify", f"http://127.0.0.1:1/{secrets[1]}", "--notify", f"ntfy:http://127.0.0.1:1/{secrets[2]}")
    outcome = gpudash(
        *("run", "matmul", "--device", "cpu", "--size", "64", "--json", "--verbose"),
        *("--serve", "127.0.0.1:0", "--serve-token-file", str(token), *notify),
    )
    assert outcome.code == 0, outcome.stderr
    text = log_file().read_text(encoding="utf-8")
    assert "could not be notified" in text
    assert [secret for secret in secrets if secret in text or secret in outcome.stderr] == []
    assert outcome.document["status"] == "finished", "the document is as without"
    lines = [line for line in text.splitlines() if " INFO gpudash.cli: " in line]
    assert len(lines) == 2 and all(line in outcome.stderr for line in lines)


def test_a_log_that_cannot_be_written_costs_nothing_but_itself(gpudash: Command) -> None:
    log_file().parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(log_file())
    assert gpudash("devices", "--json").code == 0

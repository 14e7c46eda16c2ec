"""The one line of the standard library: recognised, while logging does exactly what it does unwatched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.dashboard import Dashboard, unwatched

pytestmark = pytest.mark.process

SCRIPT = """
import logging, logging.config, sys
{before}
log = logging.getLogger("gpudash")
def train():
    log.info("step", extra={{"step": 7, "loss": 0.5, "accuracy": 0.25, "epoch": 1}})
    log.info("step", extra={{"step": 8, "val_loss": 0.75}}, stacklevel=2)
    log.info("other", extra={{"step": 9}})
    log.info("step")
    log.info("step", extra=None)
    log.warning("step", extra={{"step": 10}})
    log.info("hello %s", "you")
train()
print(log, type(log).__name__, type(log).__module__, type(log).__mro__[-2:], log.level, log.disabled, log.handlers)
print(log.parent, log.getEffectiveLevel(), logging.getLogger("gpudash") is log)
print(logging.getLogger("gpudash.part").parent)
import pickle; print(pickle.loads(pickle.dumps(log)) is log)
"""

FORMAT = (
    "logging.basicConfig(stream=sys.stdout, level={level},"
    " format='%(levelname)s %(name)s %(pathname)s %(lineno)d %(funcName)s %(message)s')"
)

CONFIGURE = "logging.config.dictConfig({'version': 1, 'root': {'level': 'INFO'}})"
"""Disables the loggers that there are, as it does unless told otherwise."""

BEFORE = {
    "silent": "",
    "shown": FORMAT.format(level=10),
    "warnings only": FORMAT.format(level=30),
    "own level": FORMAT.format(level=30) + "\nlogging.getLogger('gpudash').setLevel(10)",
    "no propagation": FORMAT.format(level=10) + "\nlogging.getLogger('gpudash').propagate = False",
    "disabled": FORMAT.format(level=10) + "\nlogging.disable(50)",
    "child first": FORMAT.format(level=10) + "\nlogging.getLogger('gpudash.part').warning('part')",
    "configured": CONFIGURE,
    "configured after": f"logging.getLogger('gpudash')\n{CONFIGURE}",
    "own class": FORMAT.format(level=10)
    + """
class Mine(logging.Logger):
    def info(self, *args, **kwargs):
        print("mine", args, kwargs)
        super().info(*args, **kwargs)
logging.setLoggerClass(Mine)""",
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_the_line_is_recognised_and_logging_is_as_unwatched(dashboard: Dashboard, before: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(before=before))
    done, alone = dashboard.run(str(script)), unwatched(str(script))
    assert done.returncode == 0 and done.stderr == alone.stderr
    assert done.stdout == alone.stdout
    steps = [[step, *told] for message in dashboard.of("steps") for step, _time_us, *told in message["steps"]]
    assert steps == [[7, 0.5, 0.25, 1.0, None], [8, None, None, None, 0.75]]
    assert {message["source"] for message in dashboard.of("steps")} == {"logging"}


@pytest.mark.parametrize("python", sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")), ids=str)
def test_the_callers_line_is_found_by_every_python(dashboard: Dashboard, python: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(before=BEFORE["shown"]))
    assert dashboard.run(str(script), python=str(python)).stdout == unwatched(str(script), python=str(python)).stdout


def test_a_logger_that_was_there_before_listens_too() -> None:
    code = """
import logging
log = logging.getLogger("gpudash")
from gpudash.agent.stepping.steps import listen
told = []
listen(logging, told.append)
log.info("step", extra={"step": 1})
assert told == [{"step": 1}] and logging.getLogger("gpudash") is log
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_steps_arrive_while_the_program_runs(dashboard: Dashboard) -> None:
    code = "import logging, sys\nlogging.getLogger('gpudash').info('step', extra={'step': 1})\nsys.stdin.read()"
    environment: dict[str, Any] = dashboard.environment()
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE) as process:
        dashboard.wait_until(lambda: any(message["type"] == "steps" for message in dashboard.messages))
        process.communicate(b"")

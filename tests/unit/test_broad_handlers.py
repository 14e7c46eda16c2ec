"""A handler of any exception hides nothing: it logs what it caught, or raises it again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpudash

PACKAGE = Path(gpudash.__file__).parent

BROAD = {"Exception", "BaseException"}

HANDED_ON = "kept, and raised or told by whoever waits for it"
ON_THE_WIRE = "in somebody's program: its sentence goes over the wire"
ANSWER = "whatever it raises is the answer to a question"
OWN_END = "on the way out, when nobody is left who could use it"
LEAVING = "in somebody's program: who waits for the agent is told that it did not come"
OWN_ERROR = "another exception is on its way, which is the one worth telling"

EXCEPTIONS = {
    "agent/attach/attach_socket.py _answer": LEAVING,
    "agent/attach/attach_socket.py _take": LEAVING,
    "agent/attach/entering.py enter": LEAVING,
    "agent/inject/sitecustomize.py": ON_THE_WIRE,
    "agent/memory/history.py _start_cuda": ON_THE_WIRE,
    "agent/memory/history.py attached": ANSWER,
    "agent/memory/simulating.py simulate": ON_THE_WIRE,
    "agent/memory/snapshots.py _out_of_memory": ON_THE_WIRE,
    "agent/memory/snapshots.py write_on_request": ON_THE_WIRE,
    "agent/memory/snapshots.py on_cuda_full": ANSWER,
    "agent/predicting/__init__.py _torch_imported": ON_THE_WIRE,
    "agent/stepping/steps.py float_of": ANSWER,
    "agent/stepping/steps.py whole_number": ANSWER,
    "session/live/notifying.py run": HANDED_ON,
    "session/watching/messages/hearing.py hear": "`_left_out` logs it, once for each kind of message",
    "simulator/device/autograd.py type_": HANDED_ON,
    "simulator/dry_run/own_code_process.py _prepare": "before there is a log: its sentence is the answer",
    "simulator/faults.py _takes": ANSWER,
    "sources/nvml/gpu_watch.py close": OWN_END,
    "sources/nvml/library.py _run": HANDED_ON,
    "telemetry/recording/facts.py _views": "of a damaged row, of which there may be thousands",
    "workloads/live_blocks.py _full": OWN_ERROR,
    "workloads/profiling.py _leave": OWN_ERROR,
    "workloads/programs/parallel/rank_link.py memory_facts": OWN_ERROR,
}
"""Where one does neither, as "file function", and why it may."""


def broad_handlers(tree: ast.AST, function: str = "") -> Iterator[tuple[str, int, list[ast.stmt]]]:
    """Each handler of any exception: the function that it stands in, its line, and what it does."""
    for child in ast.iter_child_nodes(tree):
        within = child.name if isinstance(child, ast.FunctionDef) else function
        if isinstance(child, ast.ExceptHandler) and (child.type is None or names_in(child.type) & BROAD):
            yield within, child.lineno, child.body
        if isinstance(child, ast.Call) and called(child) == "suppress" and any(names_in(a) & BROAD for a in child.args):
            yield within, child.lineno, []
        yield from broad_handlers(child, within)


def names_in(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def hides(body: list[ast.stmt]) -> bool:
    """Whether what is done about an exception neither logs it with its traceback nor raises."""
    for node in (found for statement in body for found in ast.walk(statement)):
        if isinstance(node, ast.Raise):
            return False
        if isinstance(node, ast.Call) and called(node) in ("exception", "format_exc", "note_fault"):
            return False
        if isinstance(node, ast.Call) and any(keyword.arg == "exc_info" for keyword in node.keywords):
            return False
    return True


def hiding() -> list[tuple[str, int]]:
    """Each handler in the package that hides what it catches, as "file function", with its line."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for function, line, body in broad_handlers(ast.parse(path.read_text(encoding="utf-8"))):
            if hides(body):
                found.append((f"{name} {function}".strip(), line))
    return found


def test_every_handler_of_any_exception_logs_it_or_raises() -> None:
    assert [f"{place}, line {line}" for place, line in hiding() if place not in EXCEPTIONS] == []


def test_every_exception_to_it_is_still_one() -> None:
    assert sorted(set(EXCEPTIONS) - {place for place, _ in hiding()}) == []


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        ("except Exception:\n    x = 1", True),
        ("except:\n    pass", True),
        ("except (OSError, BaseException) as error:\n    told(error)", True),
        ("except Exception:\n    logger.warning('so it is')", True),
        ("except OSError:\n    pass", False),
        ("except Exception:\n    logger.exception('so it is')", False),
        ("except Exception as error:\n    logger.error('so it is', exc_info=error)", False),
        ("except Exception as error:\n    raise ValueError from error", False),
    ],
)
def test_a_handler_that_hides_what_it_caught_is_found(handler: str, found: bool) -> None:
    tree = ast.parse(f"def f():\n  try:\n    g()\n  {handler.replace(chr(10), chr(10) + '  ')}")
    assert [hides(body) for _, _, body in broad_handlers(tree)].count(True) == int(found)


def test_a_suppressed_exception_is_found() -> None:
    tree = ast.parse("def f():\n  with contextlib.suppress(ValueError, Exception):\n    g()")
    assert [(function, hides(body)) for function, _, body in broad_handlers(tree)] == [("f", True)]

"""Hearing of an import without taking part in it."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudash.agent.importing import PostImport
from tests.unit.agent.dashboard import Dashboard, unwatched

NAME = "imported_for_a_test"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module that can be imported."""
    path = tmp_path / f"{NAME}.py"
    path.write_text("class Thing: pass\nloaded = __name__, __spec__.name, type(__loader__).__name__")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield path
    sys.modules.pop(NAME, None)


def told_of(name: str = NAME) -> tuple[PostImport, list[Any]]:
    found: list[Any] = []
    imports = PostImport()
    imports.call(name, found.append)
    return imports, found


def test_a_module_is_told_of_once_when_it_is_whole(module: Path) -> None:
    imports, found = told_of()
    assert found == [] and imports in sys.meta_path
    made: Any = importlib.import_module(NAME)
    assert found == [made] and made.loaded == (NAME, NAME, type(made.__loader__).__name__)
    assert imports not in sys.meta_path, "nothing stays behind"
    assert "exec_module" not in vars(made.__loader__)
    importlib.reload(made)
    assert found == [made] and pickle.loads(pickle.dumps(made.Thing)) is made.Thing
    assert made.__spec__.loader is made.__loader__ and made.__spec__.origin == str(module)


def test_looking_whether_a_module_is_there_is_no_import(module: Path) -> None:
    _imports, found = told_of()
    assert importlib.util.find_spec(NAME) is not None and found == []
    made = importlib.import_module(NAME)
    assert found == [made]


def test_a_module_that_is_there_already_is_told_of_at_once() -> None:
    imports, found = told_of("json")
    assert found == [sys.modules["json"]] and imports not in sys.meta_path


def test_who_has_withdrawn_hears_nothing_and_leaves_no_finder(module: Path) -> None:
    before = list(sys.meta_path)
    imports, found = told_of()
    going_over = sys.meta_path
    imports.withdraw()
    imports.call(NAME, found.append)  # as one that was on its way when another thread withdrew
    importlib.import_module(NAME)
    assert found == [] and sys.meta_path == before and going_over is not sys.meta_path


def test_a_module_that_is_nowhere_is_missed_as_ever(module: Path) -> None:
    _imports, found = told_of("a_module_that_is_nowhere")
    with pytest.raises(ModuleNotFoundError, match="No module named 'a_module_that_is_nowhere'"):
        importlib.import_module("a_module_that_is_nowhere")
    assert found == []


def test_a_module_that_fails_is_told_of_when_it_succeeds(module: Path) -> None:
    _imports, found = told_of()
    text = module.read_text()
    module.write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(NAME)
    assert found == []
    module.write_text(f"{text}\n# longer than before")
    importlib.invalidate_caches()
    assert found == [] and importlib.import_module(NAME) in found


def test_a_loader_of_several_modules_is_told_of_by_the_one_that_was_asked_for(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loader:
        def create_module(self, spec: Any) -> None:
            return None

        def exec_module(self, made: Any) -> None:
            made.done = True

    class Finder:
        loader = Loader()

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            return importlib.util.spec_from_loader(name, self.loader) if name.startswith("shared_") else None

    sys.meta_path.insert(0, Finder())
    _imports, found = told_of("shared_second")
    assert importlib.util.find_spec("shared_second") is not None
    for name in ("shared_first", "shared_second", "shared_third"):
        made = importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        assert made.done and [one.__name__ for one in found] == ["shared_second"][: name != "shared_first"]
    assert vars(Finder.loader) == {}


@pytest.mark.process
@pytest.mark.parametrize("text", ["1 / 0", "import a_module_that_is_nowhere", "1 +", "raise ImportError('so')"])
def test_the_traceback_of_a_failing_import_is_that_of_an_unwatched_one(
    dashboard: Dashboard, tmp_path: Path, text: str
) -> None:
    (tmp_path / "torch.py").write_text(text)
    (tmp_path / "script.py").write_text("import torch")
    done, alone = dashboard.run(str(tmp_path / "script.py")), unwatched(str(tmp_path / "script.py"))
    assert (done.stderr, done.returncode) == (alone.stderr, alone.returncode) and "Traceback" in done.stderr


IMPORTED_MEANWHILE = """
import sys, threading
from gpudash.agent.channel import Channel
from gpudash.agent.program import attach

begun, asked, answered = threading.Event(), threading.Event(), threading.Event()
receive = Channel.receive

def receive_and_say_so(self):
    found = receive(self)
    if asked.is_set():
        answered.set()  # what came before has been handled
    if any(message["type"] == "snapshot" for message in found):
        asked.set()
    return found

Channel.receive = receive_and_say_so
sys.path.insert(0, sys.argv[1])
threading.Thread(target=__import__, args=("torch",)).start()
begun.wait()
attach(sys.argv[2], '{"period_s": 0.02}')
sys.stdin.read()
"""


@pytest.mark.process
def test_a_snapshot_that_is_asked_for_while_torch_is_being_imported_waits_for_it(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "torch.py").write_text("import __main__\n__main__.begun.set()\n__main__.answered.wait()\n")
    command = [sys.executable, "-c", IMPORTED_MEANWHILE, str(folder), str(dashboard.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
        dashboard.wait_until(lambda: dashboard.of("hello"))
        dashboard.send({"type": "snapshot", "path": str(tmp_path / "asked.pickle"), "reason": "key"})
        dashboard.wait_until(lambda: dashboard.of("snapshot"))
        process.communicate(b"")
    (answer,) = dashboard.of("snapshot")
    assert answer["problem"] != "The program has not imported PyTorch."

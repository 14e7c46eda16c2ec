"""A program with a change runs from copies: its own files stay, and it finds itself and what lies beside it as ever."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpudash.session.watching.edited_copy import why_no_copy
from gpudash.session.watching.request import WatchRequest
from gpudash.system.folders import data_folder
from gpudash.telemetry.explanation import Remedy
from tests.unit.session.watched import Watcher

pytestmark = pytest.mark.process

SCRIPT = """\
import inspect, multiprocessing, os, sys
from package.keeping import keep

def value():
    return 1

def tell(queue):
    queue.put(value())

if __name__ == "__main__":
    print(value(), keep())
    print(__file__, sys.argv, sys.path[0], os.getcwd(), __name__, __doc__)
    print(inspect.getsource(value).count("return 2"), inspect.getsource(keep).count("changed"))
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=tell, args=(queue,))
        process.start()
        print(method, queue.get())
        process.join()
"""
MODULE = "def keep():\n    return 'as it was', __file__\n"
OF_SCRIPT = """\
--- script.py
+++ script.py
@@ -4,2 +4,3 @@
 def value():
-    return 1
+    # twice as much
+    return 2
"""
OF_MODULE = """\
--- package/keeping.py
+++ package/keeping.py
@@ -1,2 +1,2 @@
 def keep():
-    return 'as it was', __file__
+    return 'changed', __file__
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "keeping.py").write_text(MODULE)
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.py")}


def test_script_and_module_are_changed_for_the_run_and_nowhere_else(
    watcher: Watcher, tmp_path: Path, package: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    before = files_in(tmp_path)
    run = watcher.run(SCRIPT, edit=OF_SCRIPT + OF_MODULE, environment={"PYTHONDONTWRITEBYTECODE": "1"})
    script, module = tmp_path / "script.py", package / "keeping.py"
    assert run.status == "finished", watcher.printed()
    assert watcher.printed() == [
        f"2 ('changed', '{module}')",
        f"{script} ['{script}'] {tmp_path} {tmp_path} __main__ None",
        "1 1",
        "spawn 2",
        "fork 2",
    ]
    assert files_in(tmp_path) == before
    assert run.spec["edit"] == OF_SCRIPT + OF_MODULE and run.spec["command"] == [sys.executable, str(script)]
    assert WatchRequest.from_spec(run.spec).edit == OF_SCRIPT + OF_MODULE
    assert not list(data_folder().glob(".edited-*")), "the copies are gone with the run"


def test_an_exception_of_a_copy_has_the_place_in_the_script(watcher: Watcher, tmp_path: Path) -> None:
    edit = "--- script.py\n+++ script.py\n@@ -1,1 +1,1 @@\n-value = 1\n+value = 1 / 0\n"
    run = watcher.run("value = 1\n", edit=edit)
    assert run.error is not None and run.error.error == "ZeroDivisionError"
    assert [(frame["file"], frame["line"]) for frame in run.result["frames"]] == [(str(tmp_path / "script.py"), 1)]


def test_the_last_line_may_end_without_a_newline(watcher: Watcher) -> None:
    edit = "--- script.py\n+++ script.py\n@@ -1,1 +1,1 @@\n-print(1)\n\\ No newline at end of file\n+print(2)\n"
    watcher.run("print(1)", edit=edit)
    assert watcher.printed() == ["2"]


@pytest.mark.parametrize(
    ("command", "edit", "why"),
    [
        ([sys.executable, "script.py"], OF_SCRIPT, ""),
        ([sys.executable, "-u", "script.py", "script.py"], OF_SCRIPT, ""),
        ([sys.executable, "-m", "script"], OF_SCRIPT, "A copy can only be run of a script"),
        (["torchrun", "script.py"], OF_SCRIPT, "A copy can only be run of a script"),
        ([sys.executable, "script.py"], OF_MODULE, "package/keeping.py cannot be read: No such file or directory."),
        ([sys.executable, "script.py"], OF_SCRIPT.replace("return 1", "return 3"), "script.py has other lines"),
        ([sys.executable, "script.py"], "", "There is no change of a file to be made."),
    ],
)
def test_why_no_copy_can_be_run_is_told_in_a_sentence(tmp_path: Path, command: list[str], edit: str, why: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    assert why_no_copy(WatchRequest(command, tmp_path, edit=edit)).startswith(why)
    assert bool(why_no_copy(WatchRequest(command, tmp_path, edit=edit))) == bool(why)


def test_a_fifo_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "script.py")
    assert "it is a FIFO" in why_no_copy(WatchRequest([sys.executable, "script.py"], tmp_path, edit=OF_SCRIPT))


def test_a_program_that_cannot_be_copied_is_not_started(watcher: Watcher) -> None:
    with pytest.raises(ValueError, match=r"script\.py has other lines than the run had"):
        watcher.run("value = 7\n", edit=OF_SCRIPT)
    assert not watcher.session.running


def test_a_request_takes_all_that_a_remedy_changes_and_is_what_it_was_besides() -> None:
    request = WatchRequest(["python", "train.py"], Path("/data"), {"MINE": "1"}, as_cuda=True, simulate=(2**30,))
    remedy = Remedy("two", flags="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", patch=OF_SCRIPT)
    made = request.with_remedy(remedy)
    assert made.environment == {"MINE": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert (made.command, made.edit, made.find_need) == (request.command, OF_SCRIPT, False)
    assert WatchRequest.from_spec(request.spec()).spec() == request.spec()
    assert request.with_remedy(Remedy("batch 8", command=("python", "train.py", "--batch", "8"))).command[-1] == "8"

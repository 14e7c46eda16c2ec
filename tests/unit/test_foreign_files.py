"""Files that are not gpudash's own: opened in one place, without waiting, and no more than a bound of them read."""

from __future__ import annotations

import ast
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import gpudash
from gpudash.session.api.mcp_server.root import Root
from gpudash.simulator.models.config import read
from gpudash.simulator.refusal import CannotPredictError
from gpudash.specs.model_names import find_model
from gpudash.system.foreign_files import (
    LARGEST_SOURCE,
    READS_WITHIN,
    NotRegularError,
    TooLargeError,
    copy_regular,
    open_regular,
    read_regular,
    read_regular_text,
    source_line,
)

PACKAGE = Path(gpudash.__file__).parent

HOME = "system/foreign_files.py"
"""The one place."""

INSIDE = "runs inside other people's Python, which lacks this module"
KERNEL = "a file of the kernel, whose path begins with /proc or /sys"
OURS = "a file that gpudash has just made, in a folder of its own"
SHIPPED = "a file of the package"
CHECKED = "a library opens it by its name, which require_regular or open_regular has checked"

EXCEPTIONS = {
    "agent/attach/attach_socket.py _received": KERNEL,
    "agent/attach/attach_socket.py _may_enter": KERNEL,
    "agent/attach/attach_socket.py _capabilities": KERNEL,
    "agent/edited.py": "runs the user's script in the user's Python, which opens it as this does",
    "agent/memory/simulating.py find_spec": SHIPPED,
    "agent/predicting/__init__.py _lend": SHIPPED,
    "memory/snapshot/reading/stored.py load": OURS,
    "memory/snapshot/reading/stored.py _mapped": OURS,
    "session/predicting/bisecting/callable_program.py _module": INSIDE,
    "system/child_process.py _family": KERNEL,
    "session/serving/address.py tls_context": CHECKED,
    "session/watching/attaching/entry_methods.py _send_as_this_process": KERNEL,
    "simulator/convolutions/cudnn_process.py __init__": INSIDE,
    "simulator/device/process_table.py open": INSIDE,
    "simulator/dry_run/programs/checkpoints.py find": INSIDE,
    "simulator/dry_run/own_code.py _of_file": INSIDE,
    "simulator/dry_run/own_code_process.py _prepare": SHIPPED,
    "session/lessons/lesson_list.py listed_lessons": SHIPPED,
    "sources/host.py _since_last": KERNEL,
    "sources/host.py _is_package": KERNEL,
    "sources/ssh/connection.py can_prompt": "the terminal itself, /dev/tty",
    "sources/ssh/connection.py _stripped_reader": SHIPPED,
    "sources/ssh/remote_reader.py text_of": KERNEL,
    "telemetry/recording/lasting_locks.py __init__": OURS,
    "system/files.py": "files of the kernel, and the locks of its private folders",
    "specs/model_names.py known_models": SHIPPED,
    "memory/serving/defaults.py families": SHIPPED,
    "memory/serving/engines.py _engines": SHIPPED,
    "speed/constants.py _document": SHIPPED,
    "system/log.py _open": OURS,
    "system/processes.py _address_space": KERNEL,
    "system/processes.py resident_bytes": KERNEL,
    "system/processes.py waited_seconds": KERNEL,
    "system/sandbox.py _located": "a place (O_PATH), of which nothing is opened",
    "telemetry/recording/facts.py annotate": CHECKED,
    "telemetry/recording/recorder.py _create": OURS,
    "telemetry/recording/recorder.py copy_recording": CHECKED,
    "telemetry/recording/untrusted_database.py __init__": CHECKED,
    "ui/window/guide.py pages": SHIPPED,
    "workloads/profiling.py _write_trace": OURS,
    "workloads/programs/parallel/job.py read_job": OURS,
    "workloads/programs/text.py _read": SHIPPED,
}
"""Where files are opened in another way, as "file function" or "file", and why they may be."""

OF_MODULES = {
    ("os", "open"),
    ("io", "open"),
    ("gzip", "open"),
    ("tokenize", "open"),
    ("tomllib", "load"),
    ("sqlite3", "connect"),
    ("np", "load"),
    ("np", "loadtxt"),
    ("torch", "load"),
    ("shutil", "copy"),
    ("shutil", "copy2"),
    ("shutil", "copyfile"),
    ("linecache", "getline"),
    ("linecache", "getlines"),
    ("runpy", "run_path"),
    ("util", "spec_from_file_location"),
}
"""Calls that open what they are given, by module and function."""

FUNCTIONS = {"open", "spec_from_file_location", "safe_open"}
"""Calls that open what they are given, by name."""

METHODS = {"read_text", "read_bytes", "load_cert_chain", "load_verify_locations"}
"""Methods that open what they belong to or are given."""


def opened_at(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Every call that opens a file for reading, with the function that it stands in."""
    for child in ast.iter_child_nodes(tree):
        named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        within = child.name if named else function
        if isinstance(child, ast.Call) and opens(child):
            yield within, child
        yield from opened_at(child, within)


def opens(call: ast.Call) -> bool:
    """Whether a call opens a file for reading: none that is new or empty, none of the kernel by its name."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in FUNCTIONS and not (is_written(call, 1) or of_kernel(call.args))
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value
    module = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    if (module, function.attr) in OF_MODULES:
        made_or_empty = any(name in ast.unparse(call) for name in ("O_EXCL", "os.devnull"))
        return not (made_or_empty or is_written(call, 1))
    if function.attr in METHODS:
        return not (isinstance(owner, ast.Call) and of_kernel(owner.args))
    return function.attr == "open" and is_mode(call, 0) and not is_written(call, 0)


def is_mode(call: ast.Call, place: int) -> bool:
    """Whether the argument there is the mode of a file, such as "rb"."""
    value = call.args[place] if len(call.args) > place else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and set(value.value) <= set("rwaxbt+")


def is_written(call: ast.Call, place: int) -> bool:
    """Whether a file is opened for writing alone."""
    if not is_mode(call, place):
        return False
    mode = ast.literal_eval(call.args[place])
    return "r" not in mode and "+" not in mode


def of_kernel(arguments: list[ast.expr]) -> bool:
    """Whether a path that stands in the code is one of the kernel's."""
    path = arguments[0] if arguments else None
    first = path.values[0] if isinstance(path, ast.JoinedStr) else path
    return isinstance(first, ast.Constant) and str(first.value).startswith(("/proc/", "/sys/"))


def test_no_other_place_opens_files_for_reading() -> None:
    found = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        if name == HOME:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found |= {name if name in EXCEPTIONS else f"{name} {function}" for function, _ in opened_at(tree)}
    assert found == set(EXCEPTIONS), "read it by gpudash.system.foreign_files, or say in EXCEPTIONS why not"


@pytest.mark.parametrize(
    "code",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open('rb')",
        "path.open('r+')",
        "Path(name).read_text()",
        "os.open(path, os.O_RDONLY)",
        "np.load(path)",
        "sqlite3.connect(path)",
        "linecache.getline(file, 1)",
        "shutil.copyfile(path, target)",
    ],
)
def test_whatever_opens_a_file_is_found(code: str) -> None:
    assert [function for function, _ in opened_at(ast.parse(f"def read(path):\n    {code}"))] == ["read"]


@pytest.mark.parametrize("code", ["path.open('wb')", "dialog.open()", "Path('/proc/stat').read_text()", "find(path)"])
def test_what_reads_nothing_foreign_is_not(code: str) -> None:
    assert list(opened_at(ast.parse(code))) == []


def no_files(folder: Path) -> dict[str, Path]:
    """What has a name as a file has, and is none."""
    folder.mkdir(exist_ok=True)
    fifo, zero, listening = folder / "fifo", folder / "zero", folder / "socket"
    os.mkfifo(fifo)
    zero.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
    return {"a FIFO": fifo, "a device": zero, "a socket": listening}


def test_what_is_no_regular_file_is_refused_by_what_it_is_and_never_waited_for(tmp_path: Path) -> None:
    for kind, path in no_files(tmp_path).items():
        with pytest.raises(NotRegularError) as refusal:
            open_regular(path)
        assert refusal.value.strerror == f"it is {kind}, not a regular file"
    with pytest.raises(IsADirectoryError) as refused:
        open_regular(tmp_path)
    assert refused.value.strerror == "it is a folder, not a file"
    with pytest.raises(ValueError, match="null"):
        open_regular("a\0b")


def test_no_more_than_a_bound_of_a_file_is_read_however_large_it_is(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == b"12345"
    assert read_regular_text(file, 5) == "12345"
    with file.open("r+b") as sparse:
        sparse.truncate(5 * 2**30)
    with pytest.raises(TooLargeError) as refusal:
        read_regular(file, 1_000)
    assert refusal.value.strerror == "it has more than the 1,000 bytes that are read"


def test_a_copy_is_made_of_regular_files_alone(tmp_path: Path) -> None:
    file, copy = tmp_path / "file", tmp_path / "copy"
    file.write_bytes(b"12345")
    copy_regular(file, copy)
    assert copy.read_bytes() == b"12345"
    for path in no_files(tmp_path).values():
        with pytest.raises(NotRegularError):
            copy_regular(path, copy)


def test_a_line_of_the_program_is_read_where_its_file_is_and_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(b"import torch\r\n    b = 2  \n\x0cc = 3\n\xff")
    assert source_line(str(file), 2) == "    b = 2"
    assert source_line(str(file), 3) == "\x0cc = 3"  # a form feed ends no line of Python
    assert source_line(str(file), 4) == "\N{REPLACEMENT CHARACTER}"
    assert [source_line(str(file), line) for line in (-1, 0, 9, 10**400)] == [""] * 4
    file.write_text("import torch\nchanged = 1\n", encoding="utf-8")
    assert source_line(str(file), 2) == "changed = 1"


def test_no_line_is_read_of_what_is_no_python_file_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [tmp_path / f"{kind.split()[1]}.py" for kind in no_files(tmp_path)]
    for name, path in zip(names, no_files(tmp_path / "more").values(), strict=True):
        name.symlink_to(path)
    huge = tmp_path / "huge.py"
    with huge.open("wb") as sparse:
        sparse.truncate(LARGEST_SOURCE + 1)
    key = tmp_path / "id_rsa"
    key.write_text("secret", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relative.py").write_text("a = 1", encoding="utf-8")
    for file in (*names, huge, key, tmp_path, tmp_path / "none.py", "relative.py", "<string>", "a\0b.py"):
        assert source_line(str(file), 1) == ""


@pytest.fixture
def bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that nothing named in it leads out of, beside a file that is not to be read through it."""
    folder = tmp_path / "bounded"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "mine").write_bytes(b"mine")
    (tmp_path / "mine").write_bytes(b"secret")
    monkeypatch.setenv(READS_WITHIN, f"{tmp_path / 'other'}{os.pathsep}{folder}")
    return folder


def test_what_is_swapped_for_a_link_after_it_was_looked_at_is_not_read(bounded: Path, tmp_path: Path) -> None:
    place = bounded / "inner" / "mine"
    root = Root(bounded)
    assert root.file("inner/mine") == place and read_regular(place, 100) == b"mine"
    place.unlink()
    place.symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="leads out of the folder that may be read"):
        read_regular(place, 100)
    place.unlink()
    (bounded / "inner").rmdir()
    (bounded / "inner").symlink_to(tmp_path)
    with pytest.raises(OSError, match="leads out of the folder"):
        copy_regular(place, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_links_within_the_folder_and_what_is_named_elsewhere_are_read_as_ever(bounded: Path, tmp_path: Path) -> None:
    (bounded / "link").symlink_to("inner/mine")
    assert read_regular(bounded / "link", 100) == b"mine" and read_regular(tmp_path / "mine", 100) == b"secret"
    with pytest.raises(OSError, match="leads out"):
        read_regular(bounded / ".." / "mine", 100)


def test_a_model_s_config_and_weights_that_are_swapped_for_links_are_not_read(bounded: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    model = bounded / "model"
    for folder in (secret, model):
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "gpt2"}')
        save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    root = Root(bounded)
    assert read(root.model("model")).values == {"model_type": "gpt2"}
    for name in ("model.safetensors", "config.json"):
        (model / name).unlink()
        (model / name).symlink_to(secret / name)
        with pytest.raises(CannotPredictError, match="leads out of the folder that may be read"):
            read(str(model))


def test_an_adapter_within_the_folder_names_no_model_outside_of_it(bounded: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (bounded / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    with pytest.raises(ValueError, match="whose config is not here"):
        find_model(str(bounded))

"""Runs a command so that nothing it writes persists: ``python -I -S sandbox.py SCRATCH KEPT... -- COMMAND...``.

The command sees every file as it is. Its writes go to SCRATCH through overlays (overlayfs in a user namespace), or are
refused as on a read-only file system if no overlay is possible; only the folders KEPT, and /dev/shm, are written
directly. It has no network except its own loopback, the lowest priority, and is the first to be killed when the
computer's memory is full. Without SCRATCH only the last two apply. With ``--as-usual`` before SCRATCH it has the
network, services' sockets and normal priority, and does not end with its parent. Runs as a separate process, with only
the standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

AS_USUAL = "--as-usual"

PROBE = "--probe"

NOT_HELD_BACK = 121
"""Exit code if writes cannot be held back, so that the command did not run."""

CANNOT_EXECUTE = 126
"""Exit code if the command does not exist or is not executable, as in shells."""

PROBE_S = 10.0
"""Longest wait for the answer."""

_NEWNS, _NEWUSER, _NEWNET = 0x0002_0000, 0x1000_0000, 0x4000_0000
"""For unshare(2), linux/sched.h."""

_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x4_0000
"""For mount(2), linux/mount.h."""

_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _RDONLY = 442, -100, 0x8000, 1
"""The system call's number is the same on every architecture (asm-generic/unistd.h); flags of mount_setattr(2)."""

_SET_PDEATHSIG = 1
"""For prctl(2): the process is killed when its parent ends."""

_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
"""For a network interface, netdevice(7)."""

_KERNELS_OWN = frozenset(
    (
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs"),
        *("fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs"),
        "tracefs",
    )
)
"""File systems without regular files."""

_SHARED_MEMORY = "/dev/shm"

_EVERYBODYS = ("/tmp", "/var/tmp")
"""Folders of another user in which every user may create files."""

_MOST_ENTRIES = 1000
"""How many files and folders of such a folder are shown."""

_SOCKETS = "/run"
"""Where services such as databases and containers listen. Hidden: the network namespace does not cover sockets here."""

_ABSOLUTE = re.compile(r"(?:^|[=:,])(/[^\n=:,]+)", re.MULTILINE)
"""Absolute paths in the arguments of a command."""

_OCTAL = re.compile(r"\\([0-7]{3})")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class _Mount:
    """A line of /proc/self/mountinfo (proc(5))."""

    path: str
    kind: str
    read_only: bool


def can_hold_back(scratch: str = "", folder: str | None = None) -> bool:
    """Whether this system lets its user hold back what a command writes; tries it in a separate process.

    Args:
        scratch: an empty folder on a disk that should receive the command's writes; the command must then also be able
            to write: its folder is not read-only if it belongs to the user. "" if that is not required.
        folder: the command's folder; ``None``: the current one.
    """
    command = [sys.executable, "-I", "-S", __file__, PROBE, *filter(None, (scratch,))]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_S, check=False, cwd=folder)
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        if scratch:
            # Whatever the probe found, the caller gets the folder back empty.
            empty(scratch)
    return done.returncode == 0


def command_in_sandbox(
    command: Sequence[str], scratch: str = "", kept: Sequence[str] = (), *, as_usual: bool = False
) -> list[str]:
    """The command that runs ``command`` as this module describes.

    Args:
        scratch: an empty folder on a disk; "" to hold back nothing.
        kept: folders that are written directly.
        as_usual: whether it has the network, and normal priority.
    """
    arguments = [*([AS_USUAL] if as_usual else ()), *([scratch, *kept] if scratch else ())]
    return [sys.executable, "-I", "-S", __file__, *arguments, "--", *command]


def empty(scratch: str) -> None:
    """Delete what a command has left in its scratch folder."""
    clear(scratch)
    with os.scandir(scratch) as entries:
        for entry in entries:
            shutil.rmtree(entry.path, ignore_errors=True)


def clear(scratch: str) -> None:
    """Make the content of a scratch folder deletable: overlayfs and the command may deny access to folders."""
    for folder, inner, _ in os.walk(scratch):
        for name in inner:
            path = Path(folder, name)
            with suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)


def _yield_to_others() -> None:
    """Give this process the lowest priority, and make it the first to be killed when memory is full."""
    with suppress(OSError):
        os.nice(19)
    # if every session has its own share of the processors, whatever the priorities in it (sched(7), autogroup), a
    # tenth of another's: the last steps of the scale would leave next to nothing
    for name, text in (("autogroup", "10"), ("oom_score_adj", "1000")):
        with suppress(OSError):
            Path("/proc/self", name).write_text(text, encoding="ascii")


def _main(arguments: Sequence[str]) -> None:
    if arguments[0] == PROBE:
        _probe(*arguments[1:])
        return
    as_usual = arguments[0] == AS_USUAL
    # Before anything else, so that setting up the overlays yields too.
    if not as_usual:
        _yield_to_others()
    at = arguments.index("--")
    folders, command = arguments[as_usual:at], arguments[at + 1 :]
    # Read before the namespaces are set up: the check below compares it with the parent then.
    parent = os.getppid()
    if folders:
        _hold_back_of(command, folders, online=as_usual)
    # After the namespaces, because a change of credentials clears the signal (prctl(2)).
    if not as_usual:
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent has ended meanwhile, and the signal is only sent from now on.
    if os.getppid() != parent:
        os._exit(NOT_HELD_BACK)
    try:
        # It becomes the command: no process of ours is between it and its signals.
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.stderr.write(f"{command[0]} could not be started ({error.strerror or error}).\n")
        os._exit(CANNOT_EXECUTE)


def _probe(scratch: str = "") -> None:
    """Try everything that holding back needs.

    Raises:
        OSError: if it fails.
    """
    if not scratch:
        _enter_namespaces(online=False)
        _set_read_only("/", read_only=True)
        return
    folder = Path.cwd()
    writes = os.access(folder, os.W_OK)
    _hold_back_of([], [scratch], online=True)
    # An overlay may be set up and still accept no file; only trying shows it.
    if writes:
        with tempfile.TemporaryFile(dir=folder):
            pass


def _hold_back_of(command: Sequence[str], folders: Sequence[str], *, online: bool) -> None:
    """Hold back the writes of the command that this process becomes; end if that is not possible.

    Args:
        folders: folders that are written directly; the first is the scratch folder.
    """
    folder = str(Path.cwd())
    # A command mostly writes into its folder, its home, or paths in its arguments.
    named = [os.environ.get(name, "") for name in ("HOME", "TMPDIR")]
    wanted = [folder, *named, *_ABSOLUTE.findall("\n".join(command))]
    try:
        _hold_back(folders[0], folders, wanted, online=online)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        os._exit(NOT_HELD_BACK)
    # By its path once more: the working directory is still the one beneath the overlay.
    os.chdir(folder)  # the same path, with its present content


def _enter_namespaces(*, online: bool) -> None:
    """Raises: OSError: if the system does not allow it to its users."""
    user, group = os.getuid(), os.getgid()
    _checked(_libc.unshare(_NEWUSER | _NEWNS | (0 if online else _NEWNET)), "unshare")
    # setgroups must be denied before a user's gid map is accepted (user_namespaces(7)).
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text, encoding="ascii")
    # Private first: no mount of this namespace may propagate to the outer one.
    _mount("none", "/", None, _REC | _PRIVATE)
    # The loopback of a new network namespace is down.
    if not online:
        _start_loopback()


def _hold_back(scratch: str, kept: Sequence[str], wanted: Sequence[str], *, online: bool) -> None:
    """Let no further writes persist, except in the folders ``kept``.

    Args:
        wanted: files and folders to which the command may write.
        online: whether the network and services are available.
    """
    mounts, hidden = _mounts(), "" if online else _hidden(wanted)
    layered = [path for path in _layered(mounts, wanted) if path != hidden and not _is_beneath(path, [hidden])]
    mounts = [mount for mount in mounts if not _is_beneath(mount.path, [hidden])]
    everybodys = [path for path in _EVERYBODYS if path not in layered and os.access(path, os.W_OK)]
    _enter_namespaces(online=online)
    beneath = [mount.path for mount in mounts if mount.path not in layered and _is_beneath(mount.path, layered)]
    # the present content, whatever is mounted over the path later
    descriptors = {path: _located(path) for path in dict.fromkeys((*layered, *kept, *beneath, *everybodys))}
    # First everything is read-only; then writable places are opened one by one.
    _set_read_only("/", read_only=True)
    with suppress(OSError):  # a system may lack it
        _set_read_only(_SHARED_MEMORY, read_only=False)
    if hidden:
        _mount("tmpfs", hidden, "tmpfs", 0)
    Path(scratch).mkdir(parents=True, exist_ok=True)
    # The scratch folder is mounted over itself, so that it can be made writable separately.
    _mount(f"/proc/self/fd/{descriptors[scratch]}", scratch, None, _BIND)
    _set_read_only(scratch, read_only=False)
    layers = _located(scratch)
    for number, path in enumerate(everybodys):
        _recreate(path, descriptors[path], layers, number)
    # The outermost first: an overlay on a folder hides what was mounted inside, which is then mounted again.
    for number, path in enumerate(sorted({*layered, *beneath}, key=lambda path: path.count("/"))):
        with suppress(OSError):  # then it is read-only, or hidden by the layer above it
            if path in layered:
                _lay_over(path, descriptors[path], layers, number)
            else:
                _mount(f"/proc/self/fd/{descriptors[path]}", path, None, _BIND | _REC)
    for path in kept:
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptors[path]}", path, None, _BIND | _REC)
        _set_read_only(path, read_only=False)
    # The command inherits none of them.
    for descriptor in (layers, *descriptors.values()):
        if descriptor >= 0:
            os.close(descriptor)


def _mounts() -> list[_Mount]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        own, _, system = line.partition(" - ")
        fields = own.split()
        # The kernel writes blanks and similar characters in a path as octal numbers (proc(5)).
        path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        found.append(_Mount(path, system.split()[0], "ro" in fields[5].split(",")))
    return found


def _hidden(wanted: Sequence[str]) -> str:
    """The folder of services' sockets; "" if it does not exist, or files of the command are in it."""
    needed = any(_is_beneath(path, [_SOCKETS]) for path in wanted)
    if Path(_SOCKETS).is_dir() and not needed:
        return _SOCKETS
    return ""


def _layered(mounts: Sequence[_Mount], wanted: Sequence[str]) -> list[str]:
    """Where to mount overlays: on every folder of the root and every file system of the user, and on the topmost of
    the user's own folders above what is ``wanted``. In another user's folder an overlay accepts no new file, because
    its owner has no id in the namespace.
    """
    mounted = {mount.path for mount in mounts}
    files = [mount.path for mount in mounts if mount.kind not in _KERNELS_OWN and not mount.read_only]
    found = [path for path in files if path not in ("/", _SHARED_MEMORY)]
    found += [entry.path for entry in os.scandir("/") if entry.path not in mounted]
    for path in wanted:
        found += _ancestors(path)
    own = list(filter(_is_own_folder, dict.fromkeys(found)))
    # Of the folders above a wanted path, the topmost one of the user: an overlay must own its lower folder.
    by_hand = {next((above for above in _ancestors(path) if above in own), "") for path in wanted}
    return [path for path in own if path in by_hand or path in files or path.count("/") == 1]


def _ancestors(path: str) -> list[str]:
    """An absolute path and the folders above it, the outermost first."""
    parts = list(filter(None, path.split("/")))
    if path.startswith("/"):
        return [f"/{'/'.join(parts[:count])}" for count in range(1, len(parts) + 1)]
    return []


def _is_own_folder(path: str) -> bool:
    with suppress(OSError):
        found = os.lstat(path)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return False


def _lay_over(path: str, lower: int, layers: int, number: int) -> None:
    """Raises: OSError: if the file system cannot be the lower one of an overlay."""
    upper, work = (f"/proc/self/fd/{layers}/{kind}-{number}" for kind in ("upper", "work"))
    Path(upper).mkdir()
    Path(work).mkdir()
    # userxattr: otherwise an overlay needs trusted.* attributes, which a user may not set (kernel, overlayfs.rst).
    _mount("overlay", path, "overlay", 0, f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work},userxattr")


def _recreate(path: str, lower: int, layers: int, number: int) -> None:
    """Replace another user's folder in which everybody may create files by a new one with the same content.

    Raises:
        OSError: if that fails.
    """
    made = f"/proc/self/fd/{layers}/anew-{number}"
    Path(made).mkdir()
    # Like /tmp: everybody may create files, and delete their own.
    Path(made).chmod(0o1777)
    with os.scandir(f"/proc/self/fd/{lower}") as entries:
        # Such a folder may have very many entries; each shown one is a mount.
        for entry in itertools.islice(entries, _MOST_ENTRIES):
            with suppress(OSError):  # it may have been deleted
                _show(entry, f"{made}/{entry.name}")
    _mount(made, path, None, _BIND | _REC)


def _show(entry: os.DirEntry[str], path: str) -> None:
    """Raises: OSError: if that fails."""
    if entry.is_symlink():
        Path(path).symlink_to(Path(entry.path).readlink())
        return
    if entry.is_dir():
        Path(path).mkdir()
    else:
        Path(path).touch()
    _mount(entry.path, path, None, _BIND | _REC)


def _is_beneath(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders if folder)


def _located(path: str) -> int:
    """A descriptor that refers to a file without opening it; -1 if the file cannot be reached."""
    with suppress(OSError):
        # O_PATH does not open a device or FIFO.
        return os.open(path, os.O_PATH)
    return -1


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(connection, _GET_FLAGS, request))[1]
        fcntl.ioctl(connection, _SET_FLAGS, struct.pack("16sh22x", b"lo", flags | _UP))


def _set_read_only(path: str, *, read_only: bool) -> None:
    """Set or clear the flag for everything mounted at a path and beneath it."""
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd (mount_setattr(2)).
    attributes = struct.pack("4Q", _RDONLY if read_only else 0, 0 if read_only else _RDONLY, 0, 0)
    target = path.encode(errors="surrogateescape")
    found = _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, target, _AT_RECURSIVE, attributes, len(attributes))
    _checked(found, f"mount_setattr {path}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    given = (source, target, kind, options)
    encoded = [None if text is None else text.encode(errors="surrogateescape") for text in given]
    _checked(_libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


if __name__ == "__main__":
    _main(sys.argv[1:])

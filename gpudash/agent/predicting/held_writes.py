"""Holds back the writes of a predicted program: they go to a folder that is deleted, and are read from there.

Replaces Python's functions that open, create, move and delete files. Writes that bypass them, by C++ code or programs
other than Python, are not held back.
"""

from __future__ import annotations

import io
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

OWN_PLACES = ("/dev/", "/proc/", "/sys/")
"""Folders without regular files."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class HeldWrites:
    """A view of the file system in which a program's writes go elsewhere.

    Args:
        folder: folder for the writes.
        caches: folders in which writes are allowed, so that downloads are kept for later runs.
        temporary: folders in which it may create files of its own; files that existed before are not written.
    """

    def __init__(self, folder: str, caches: Sequence[str], temporary: Sequence[str]) -> None:
        self._folder = folder
        self._caches = tuple(os.path.abspath(name) + "/" for name in caches)
        self._temporary = tuple(os.path.abspath(name) + "/" for name in temporary)
        self._here = os.getcwd() + "/"
        self._made: set[str] = set()
        self._gone: set[str] = set()
        # Saved before anything is replaced: these see the real file system.
        self._stat = os.stat
        self._lstat = os.lstat
        self._mkdir = os.mkdir
        self._open = io.open
        self._listdir = os.listdir
        self._scandir = os.scandir

    def install(self) -> None:
        """Replace the functions, for the rest of this process and its forks."""
        import builtins

        made: dict[str, Any] = {"open": self._os_open(os.open)}
        for name in ("stat", "lstat", "access", "readlink", "chdir"):
            made[name] = self._reading(getattr(os, name))
        for name in ("chmod", "utime", "truncate", "chown", "lchown", "setxattr", "removexattr", "mkfifo", "mknod"):
            if hasattr(os, name):
                made[name] = self._changing(getattr(os, name))
        made["mkdir"] = self._making_folder
        for name in ("remove", "unlink", "rmdir"):
            made[name] = self._removing(getattr(os, name))
        for name in ("rename", "replace", "link"):
            made[name] = self._moving(getattr(os, name), keeps=name == "link")
        made["symlink"] = self._linking(os.symlink)
        made["listdir"] = self._names
        made["scandir"] = self._entries
        builtins.open = io.open = _Function(self._opening(io.open))
        for name, function in made.items():
            setattr(os, name, _Function(function))
        # shutil checks once, on import, which functions accept descriptors of folders; paths work as well.
        shutil = sys.modules.get("shutil")
        if shutil is not None:
            shutil._use_fd_functions = False  # type: ignore[attr-defined]
        # The standard library then uses paths, which are redirected, not descriptors of folders.
        os.supports_dir_fd.clear()
        os.supports_fd.clear()

    def tokenizers_imported(self, module: Any) -> None:
        """Redirect the files of `tokenizers`, which is written in Rust.

        Args:
            module: the package.
        """
        tokenizer = module.Tokenizer
        model = module.models.Model
        save = tokenizer.save
        load = tokenizer.from_file
        save_model = model.save

        def saved(one: Any, path: Any, *args: Any, **kwargs: Any) -> None:
            save(one, self.place_to_write(path, content=False), *args, **kwargs)

        def saved_model(one: Any, folder: Any, *args: Any, **kwargs: Any) -> Any:
            return save_model(one, self.place_to_write(folder), *args, **kwargs)

        def loaded(path: Any) -> Any:
            return load(self.place(path))

        tokenizer.save = saved
        tokenizer.from_file = staticmethod(loaded)
        model.save = saved_model

    def place(self, path: Any) -> Any:
        """The real path from which ``path`` is read."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        found = self._absolute(path)
        held = self._held(found)
        # Files written since are what the program sees.
        if self._exists(held):
            return held
        # Deleted: the redirected path, which does not exist, raises the expected error.
        if self._is_gone(found):
            return held
        return path

    def place_to_write(self, path: Any, *, content: bool = True) -> Any:
        """The real path to which ``path`` is written; an existing file is copied there, unless it is overwritten.

        Args:
            path: path in the program.
            content: whether to keep the present content.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        found = self._absolute(path)
        if self._may_write(found):
            return path
        held = self._held(found)
        # Already copied or written: further writes go there too.
        if self._exists(held):
            return held
        folder = os.path.dirname(found)
        if not self._exists(self.place(folder)):
            return held  # its folder does not exist either, so the error is the real one
        # The real path's folders exist; create the ones above the redirected file.
        self._make_folders(os.path.dirname(held))
        if content and not self._is_gone(found) and self._exists(found):
            self._copy(found, held)
        self._gone.discard(found)
        return held

    def _absolute(self, path: Any) -> str:
        return os.path.abspath(os.fsdecode(path))

    def _held(self, found: str) -> str:
        if found.startswith(self._folder):
            return found
        return self._folder + found

    def _exists(self, path: Any) -> bool:
        try:
            self._lstat(path)
        except (OSError, ValueError):
            return False
        return True

    def _is_gone(self, found: str) -> bool:
        return bool(self._gone) and any(found == gone or found.startswith(gone + "/") for gone in self._gone)

    def _may_write(self, found: str) -> bool:
        if found.startswith((self._folder, *OWN_PLACES, *self._caches)) or not self._is_regular(found):
            return True
        # The working folder is the program's own, even if it is inside a temporary one.
        if found.startswith(self._here) or not found.startswith(self._temporary):
            return False
        if not self._exists(found):
            self._made.add(found)
        return any(found == made or found.startswith(made + "/") for made in self._made)

    def _is_regular(self, found: str) -> bool:
        """Whether it is a file or folder, or may become one: not a pipe or device."""
        try:
            mode = self._stat(found).st_mode
        except (OSError, ValueError):
            return True
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode)

    def _make_folders(self, folder: str) -> None:
        if self._exists(folder):
            return
        self._make_folders(os.path.dirname(folder))
        self._mkdir(folder)

    def _copy(self, source: str, target: str) -> None:
        if stat.S_ISDIR(self._stat(source).st_mode):
            self._mkdir(target)
            return
        with self._open(source, "rb") as old, self._open(target, "wb") as new:
            while part := old.read(2**20):
                new.write(part)

    def _opening(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not isinstance(mode, str) or not set(mode) & set("wax+"):
                return plain(self.place(file), mode, *args, **kwargs)
            # Let the real call raise it, with its own message.
            if "x" in mode and self._exists(self.place(file)):
                return plain(self.place(file), mode, *args, **kwargs)
            return plain(self.place_to_write(file, content="w" not in mode), mode, *args, **kwargs)

        return opened

    def _os_open(self, plain: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            path = _below(path, dir_fd)
            if not flags & WRITING or (flags & os.O_EXCL and self._exists(self.place(path))):
                return plain(self.place(path), flags, mode)
            return plain(self.place_to_write(path, content=not flags & os.O_TRUNC), flags, mode)

        return opened

    def _reading(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def redirected(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            return plain(self.place(_below(path, dir_fd)), *args, **kwargs)

        return redirected

    def _changing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def changed(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            return plain(self.place_to_write(_below(path, dir_fd)), *args, **kwargs)

        return changed

    def _making_folder(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        path = _below(path, dir_fd)
        if self._exists(self.place(path)):
            raise FileExistsError(17, os.strerror(17), path)
        self._mkdir(self.place_to_write(path, content=False), mode)

    def _removing(self, plain: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, *, dir_fd: int | None = None) -> None:
            path = _below(path, dir_fd)
            found = self._absolute(path)
            if self._may_write(found):
                plain(path)
                return
            self._lstat(self.place(path))  # raises if it does not exist
            # By what the program sees in it: deleted files still exist in the real folder.
            if plain is _RMDIR and self._names(path):
                raise OSError(39, os.strerror(39), path)
            held = self._held(found)
            if self._exists(held):
                plain(held)
            self._gone.add(found)

        return removed

    def _moving(self, plain: Callable[..., None], *, keeps: bool) -> Callable[..., None]:
        def moved(
            source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **_more: Any
        ) -> None:
            source = _below(source, src_dir_fd)
            target = _below(target, dst_dir_fd)
            found = self._absolute(source)
            onto = self._absolute(target)
            if self._may_write(found) and self._may_write(onto):
                plain(source, target)
                return
            self._lstat(self.place(source))
            held = self.place_to_write(target, content=False)
            # Copy, never move: the source may be a real file, which must stay.
            self._transfer(found, self._absolute(held))
            if not keeps:
                self._discard(found)

        return moved

    def _transfer(self, source: str, held: str) -> None:
        """Copy what the program sees at ``source``, recursively."""
        place = self.place(source)
        if not stat.S_ISDIR(self._stat(place).st_mode):
            self._copy(place, held)
            return
        if not self._exists(held):
            self._mkdir(held)
        for name in self._names(source):
            self._transfer(f"{source}/{name}", f"{held}/{name}")

    def _discard(self, found: str) -> None:
        held = found
        if not self._may_write(found):
            held = self._held(found)
        if self._exists(held):
            if stat.S_ISDIR(self._lstat(held).st_mode):
                for name in self._listdir(held):
                    self._discard(f"{found}/{name}")
                _RMDIR(held)
            else:
                _REMOVE(held)
        self._gone.add(found)

    def _linking(self, plain: Callable[..., None]) -> Callable[..., None]:
        def linked(source: Any, target: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
            plain(source, self.place_to_write(_below(target, dir_fd), content=False), *args, **kwargs)

        return linked

    def _names(self, path: Any = ".") -> list[Any]:
        with self._entries(path) as entries:
            return [entry.name for entry in entries]

    def _entries(self, path: Any = ".") -> Any:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return self._scandir(path)
        found = self._absolute(path)
        held = self._held(found)
        there = self._exists(held)
        # Nothing was written or deleted there: the real folder is what the program sees.
        if held == found or not (self._gone or there):
            return self._scandir(path)
        if not there and self._is_gone(found):
            return self._scandir(held)  # raises, since it does not exist
        return _Entries(self._entries_of(path, found, held))

    def _entries_of(self, path: Any, found: str, held: str) -> Iterator[Any]:
        """The files written in a folder, and the existing ones that have not been deleted."""
        there = set()
        if self._exists(held):
            with self._scandir(os.fsencode(held) if isinstance(path, bytes) else held) as entries:
                for entry in entries:
                    there.add(entry.name)
                    yield entry
            if not self._exists(found):
                return
        if self._is_gone(found):
            return
        with self._scandir(path) as entries:
            for entry in entries:
                if entry.name not in there and not self._is_gone(f"{found}/{os.fsdecode(entry.name)}"):
                    yield entry


_REMOVE = os.remove
_RMDIR = os.rmdir


class _Function:
    """A function that does not become a method in a class, like built-in functions."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _Entries:
    """The result of `os.scandir`: an iterator that can be closed."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:  # noqa: PYI034 - Python 3.9 has no Self
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        close: Any = getattr(self._entries, "close", None)
        if close is not None:
            close()


def _below(path: Any, folder: int | None) -> Any:
    """``path`` relative to an open folder."""
    if folder is None or not isinstance(path, (str, bytes, os.PathLike)):
        return path
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))

"""Two ways to load a pickle, neither of which can create an object of any class.

A real snapshot consists of dicts, lists, tuples, strings and numbers; a pickle that requests anything else is refused
before it can do harm. The fast way is CPython's unpickler. The sparing way processes one opcode at a time and converts
events to columns as they come: it supports only the opcodes that occur in memory snapshots, in protocols 0 to 5. The
bulk of a large file, the dictionary of each event and the list of each stack, then exists for only a few thousand
events at a time, and the file's bytes for only a chunk.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from gpudash.memory.snapshot.history.model import SnapshotError
from gpudash.memory.snapshot.reading.source import ReadLimits, ShapeError, Source, shown
from gpudash.memory.snapshot.reading.trace_columns import Collecting
from gpudash.units import MIB

BEGINNINGS = (b"\x80", b"(", b"]", b"}")
"""First bytes of a pickled dictionary or list: of protocol 2 and later, and of older ones."""


def refuse_global(file: str, module: object, name: object) -> NoReturn:
    """Refuse a pickle, the file of this name, that requests a Python object.

    Raises:
        SnapshotError: always.
    """
    what = f"{shown(module)[1:-1]}.{shown(name)[1:-1]}"
    raise SnapshotError(
        f"{file} asks for the Python object {what}, which no memory snapshot does: it is not opened, "
        "since such a file can run anything."
    )


def refuse_reference(file: str) -> NoReturn:
    """Refuse a pickle, the file of this name, that refers to an external object.

    Raises:
        SnapshotError: always.
    """
    raise SnapshotError(f"{file} is no memory snapshot: it refers to objects outside itself, which no snapshot does.")


class PlainUnpickler(pickle.Unpickler):
    """Creates dicts, lists, tuples, strings and numbers, and nothing else."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.stream)
        self._name = source.name

    def find_class(self, module: str, name: str) -> NoReturn:
        refuse_global(self._name, module, name)

    def persistent_load(self, identity: object) -> NoReturn:
        refuse_reference(self._name)


def unpickled(source: Source) -> Any:
    """The data of a pickle.

    Raises:
        SnapshotError: if it is not a pickle, is truncated, or requests anything but plain data.
        OSError: if it cannot be read.
        MemoryError: if memory is not sufficient.
    """
    # Objects cached for extension codes would be returned without a call of find_class.
    copyreg.clear_extension_cache()
    try:
        return PlainUnpickler(source).load()
    except (SnapshotError, OSError, MemoryError):
        raise
    except Exception as error:  # malformed bytes can raise anything
        raise _unreadable(source, error) from error


def _unreadable(source: Source, error: Exception) -> SnapshotError:
    """The error for a pickle that cannot be read to its end."""
    name = source.name
    if source.begin[:1] not in BEGINNINGS:
        return SnapshotError(f"{name} is no memory snapshot: it is neither a pickle nor JSON.")
    if isinstance(error, EOFError) or "truncated" in str(error) or "exhausted" in str(error):
        return SnapshotError(f"{name} is cut off: copy it again, or record the snapshot again.")
    text = " ".join(str(error).split())[:120].rstrip(". ")
    return SnapshotError(f"{name} is damaged, or no pickle ({text}): copy it again, or record the snapshot again.")


LARGEST_INTEGER = 64
"""Largest integer in bytes that is created; those in a snapshot have eight."""

MOST_MARKS = 1000
"""Deepest nesting of containers; a snapshot has seven levels."""

MOST_SKIPPED = 1_000_000
"""Most unused indices of the memo."""

CHUNK = MIB

AHEAD = 16
"""Most bytes used by any opcode that does not request its bytes first."""


class StreamingUnpickler:
    """Reads one pickle.

    Args:
        source: the file.
        limits: limits on its strings.
        collecting: extracts frames, stacks and events from the data.
    """

    def __init__(self, source: Source, limits: ReadLimits, collecting: Collecting) -> None:
        self._name = source.name
        self._bytes = ByteReader(source, limits.text_bytes)
        self._collecting = collecting
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = collecting.memo
        # Opcodes that no snapshot contains stay None and are refused, whatever later protocols add.
        self._operations: list[Callable[[], object] | None] = [None] * 256
        for code, operation in self._known().items():
            self._operations[code[0]] = operation

    def load(self) -> Any:
        """The data, without what was extracted.

        Raises:
            SnapshotError: if it is not a pickle, is truncated, or contains what no snapshot does.
            ShapeError: if an event is malformed.
            MemoryError: if memory is not sufficient even so.
        """
        try:
            self._run()
            return self._stack.pop()
        except (SnapshotError, ShapeError, OSError, MemoryError):
            raise
        except Exception as error:  # malformed bytes can raise anything
            if isinstance(error, EOFError) or self._bytes.at_end:
                raise SnapshotError(f"{self._name} is cut off: copy it again, or record the snapshot again.") from error
            self._refuse("its bytes make no sense")

    def _run(self) -> None:
        """Execute every opcode; those that occur in every event inline, the others in methods."""
        stack, memo, reader, operations = self._stack, self._memo, self._bytes, self._operations
        push, remember, places = stack.append, memo.append, self._collecting.places
        while True:
            if reader.place >= reader.refill_at:
                reader.refill()
            data, place, limit = reader.data, reader.place, reader.refill_at
            # No opcode handled here uses more than AHEAD bytes: before `limit`, the window's end needs no check.
            while place < limit:
                code = data[place]
                if code == 0x68:  # BINGET
                    push(memo[data[place + 1]])
                    place += 2
                elif code == 0x94:  # MEMOIZE
                    # Remembered with its index, since a dictionary may turn out to be a frame or an event, and be
                    # replaced.
                    top = stack[-1]
                    if type(top) is dict or type(top) is list:
                        places[id(top)] = len(memo)
                    remember(top)
                    place += 1
                elif code == 0x4A:  # BININT
                    push(int.from_bytes(data[place + 1 : place + 5], "little", signed=True))
                    place += 5
                elif code == 0x4B:  # BININT1
                    push(data[place + 1])
                    place += 2
                elif code == 0x4D:  # BININT2
                    push(data[place + 1] | data[place + 2] << 8)
                    place += 3
                elif code == 0x7D:  # EMPTY_DICT
                    push({})
                    place += 1
                elif code == 0x6A:  # LONG_BINGET
                    push(memo[int.from_bytes(data[place + 1 : place + 5], "little")])
                    place += 5
                elif code == 0x8A and data[place + 1] <= 8:  # LONG1
                    end = place + 2 + data[place + 1]
                    push(int.from_bytes(data[place + 2 : end], "little", signed=True))
                    place = end
                elif code == 0x2E:  # STOP
                    reader.place = place + 1
                    reader.check_end()
                    return
                else:
                    operation = operations[code]
                    reader.place = place + 1
                    if operation is None:
                        self._refuse_opcode(code)
                    operation()
                    # The operation has moved the window: its positions have changed.
                    if reader.data is not data:
                        break
                    place = reader.place
            else:
                reader.place = place

    def _known(self) -> dict[bytes, Callable[[], object]]:
        push = self._stack.append
        take = self._bytes.take
        p = pickle
        return {
            p.PROTO: lambda: take(1),
            p.FRAME: lambda: take(8),
            p.MARK: self._mark,
            p.POP: self._pop,
            p.POP_MARK: self._since_mark,
            p.NONE: lambda: push(None),
            p.NEWTRUE: lambda: push(True),
            p.NEWFALSE: lambda: push(False),
            p.LONG1: lambda: push(self._long(take(1)[0])),
            p.LONG4: lambda: push(self._long(int.from_bytes(take(4), "little", signed=True))),
            p.INT: self._int,
            p.LONG: lambda: push(self._number(self._bytes.line().rstrip(b"L"))),
            p.BINFLOAT: lambda: push(float_at(take(8))),
            p.FLOAT: lambda: push(float(self._bytes.line()[:50])),
            p.SHORT_BINUNICODE: lambda: self._push_text(take(1)[0]),
            p.BINUNICODE: lambda: self._push_text(int.from_bytes(take(4), "little")),
            p.BINUNICODE8: lambda: self._push_text(int.from_bytes(take(8), "little")),
            p.UNICODE: lambda: push(self._collecting.text(self._bytes.line().decode("raw-unicode-escape"))),
            p.EMPTY_LIST: lambda: push([]),
            p.EMPTY_TUPLE: lambda: push(()),
            p.TUPLE1: lambda: self._tuple(1),
            p.TUPLE2: lambda: self._tuple(2),
            p.TUPLE3: lambda: self._tuple(3),
            p.TUPLE: lambda: push(tuple(self._since_mark())),
            p.LIST: self._list,
            p.DICT: self._dict,
            p.APPEND: lambda: self._append([self._pop()]),
            p.APPENDS: lambda: self._append(self._since_mark()),
            p.SETITEM: self._set_item,
            p.SETITEMS: lambda: self._set(self._since_mark()),
            p.GET: lambda: push(self._memo[self._number(self._bytes.line())]),
            p.PUT: lambda: self._put(self._number(self._bytes.line())),
            p.BINPUT: lambda: self._put(take(1)[0]),
            p.LONG_BINPUT: lambda: self._put(int.from_bytes(take(4), "little")),
            p.GLOBAL: lambda: refuse_global(self._name, *names_of(self._bytes)),
            p.INST: lambda: refuse_global(self._name, *names_of(self._bytes)),
            p.STACK_GLOBAL: lambda: refuse_global(self._name, self._stack[-2], self._stack[-1]),
            p.PERSID: lambda: refuse_reference(self._name),
            p.BINPERSID: lambda: refuse_reference(self._name),
            p.NEXT_BUFFER: lambda: refuse_reference(self._name),
        }

    def _mark(self) -> None:
        if len(self._marks) >= MOST_MARKS:
            self._refuse("it nests lists without end")
        self._marks.append(len(self._stack))

    def _pop(self) -> Any:
        # POP removes a mark if one is on top.
        if self._marks and self._marks[-1] == len(self._stack):
            return self._marks.pop()
        return self._stack.pop()

    def _since_mark(self) -> list[Any]:
        begin = self._marks.pop()
        found = self._stack[begin:]
        del self._stack[begin:]
        return found

    def _long(self, count: int) -> int:
        if not 0 <= count <= LARGEST_INTEGER:
            self._refuse(f"it holds an integer of {count:,} bytes")
        return signed(self._bytes.take(count))

    def _number(self, line: bytes) -> int:
        if len(line) > 2 * LARGEST_INTEGER or not line.lstrip(b"-").isdigit():
            self._refuse("one of its numbers is none")
        return int(line)

    def _int(self) -> None:
        # Protocol 0 writes booleans as 00 and 01.
        line = self._bytes.line()
        if line in (b"00", b"01"):
            self._stack.append(line == b"01")
        else:
            self._stack.append(self._number(line))

    def _push_text(self, count: int) -> None:
        self._stack.append(self._collecting.text(str(self._bytes.take(count), "utf-8", "surrogatepass")))

    def _tuple(self, count: int) -> None:
        found = tuple(self._stack[-count:])
        if len(found) != count:
            raise IndexError
        self._stack[-count:] = [self._collecting.pair(found)]

    def _list(self) -> None:
        items = self._since_mark()
        self._stack.append([])
        if items:
            self._append(items)

    def _dict(self) -> None:
        items = self._since_mark()
        self._stack.append({})
        if items:
            self._set(items)

    def _append(self, items: Sequence[Any]) -> None:
        if items:
            begin = 0
            if self._marks:
                begin = self._marks[-1]
            self._stack[-1] = self._collecting.appended(self._stack[-1], items, self._stack, begin)

    def _set_item(self) -> None:
        value = self._stack.pop()
        self._set([self._stack.pop(), value])

    def _set(self, items: Sequence[Any]) -> None:
        self._stack[-1] = self._collecting.filled(self._stack[-1], items)

    def _put(self, number: int) -> None:
        memo = self._memo
        top = self._stack[-1]
        # A malicious number must not make the memo grow to that size.
        if not 0 <= number <= len(memo) + MOST_SKIPPED:
            self._refuse("it numbers its objects without end")
        if number >= len(memo):
            memo.extend([None] * (number + 1 - len(memo)))
        if type(top) is dict or type(top) is list:
            self._collecting.places[id(top)] = number
        memo[number] = top

    def _refuse_opcode(self, code: int) -> NoReturn:
        if self._bytes.at_end:
            raise EOFError
        self._refuse(f"it has the opcode {code:#04x} at byte {self._bytes.position - 1:,}, which no snapshot has")

    def _refuse(self, text: str) -> NoReturn:
        raise SnapshotError(f"{self._name} is not a memory snapshot: {text}.")


class ByteReader:
    """A window on the bytes; after the file's end come zeros, which no pickle continues with.

    Attributes:
        data: the window.
        place: position of the next byte in it.
        refill_at: position from which the window must be moved before an opcode is read.
    """

    def __init__(self, source: Source, longest: int) -> None:
        self._name = source.name
        self._stream = source.stream
        self._longest = longest
        self._before = 0
        self._ended = False
        self.data = b""
        self.place = self.refill_at = 0
        self._end = 0

    @property
    def position(self) -> int:
        """Position of the next byte in the file."""
        return self._before + self.place

    @property
    def at_end(self) -> bool:
        """Whether all bytes of the file have been consumed."""
        return self._ended and self.place >= self._end

    def check_end(self) -> None:
        """Check that no byte was consumed beyond the file's end.

        Raises:
            EOFError: if one was.
        """
        if self._ended and self.place > self._end:
            raise EOFError

    def refill(self, wanted: int = CHUNK) -> None:
        """Move the window.

        Raises:
            EOFError: if there is nothing more.
        """
        rest = self.data[self.place : self._end]
        if self._ended and not rest:
            raise EOFError
        more = b""
        if not self._ended:
            more = self._stream.read(max(CHUNK, wanted))
        self._ended = self._ended or not more
        self._before += self.place
        whole = rest + more
        self._end = len(whole)
        self.place = 0
        # Zeros follow at the end, so that an opcode that extends beyond it finds something, and is refused later.
        if self._ended:
            self.data = whole + bytes(AHEAD)
            self.refill_at = self._end
        else:
            self.data = whole
            self.refill_at = max(1, self._end - AHEAD)

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            EOFError: if there are fewer.
            SnapshotError: if they are more than a string may have.
        """
        if count > self._longest:
            raise SnapshotError(
                f"{self._name} is not a memory snapshot: it holds a text of {count:,} bytes, longer than any name."
            )
        while self.place + count > self._end:
            if self._ended:
                raise EOFError
            self.refill(count)
        found = self.data[self.place : self.place + count]
        self.place += count
        return found

    def line(self) -> bytes:
        """The bytes up to the next line feed, without it.

        Raises:
            EOFError: if there is none.
            SnapshotError: if it is further than a string may extend.
        """
        while (found := self.data.find(b"\n", self.place, self._end)) < 0:
            if self._ended:
                raise EOFError
            if self._end - self.place > self._longest:
                raise SnapshotError(f"{self._name} is not a memory snapshot: it holds a line without end.")
            self.refill()
        line = self.data[self.place : found]
        self.place = found + 1
        return line


def names_of(reader: ByteReader) -> tuple[str, str]:
    """Module and name of a global, each on its own line."""
    return reader.line().decode(errors="replace"), reader.line().decode(errors="replace")


def signed(data: bytes) -> int:
    """The signed integer in the bytes."""
    return int.from_bytes(data, "little", signed=True)


def float_at(data: bytes) -> float:
    """The float in eight bytes."""
    number: float = struct.unpack(">d", data)[0]
    return number

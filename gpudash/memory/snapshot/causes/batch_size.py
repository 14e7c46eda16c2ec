"""Where a program defines its batch size, and its number of beams or tokens."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Protocol

from gpudash.memory.allocator.trace import WEIGHTS
from gpudash.memory.snapshot.causes.case import Case
from gpudash.memory.snapshot.command_line import OptionValue, ProgramCommand, option_values
from gpudash.memory.snapshot.source_edits import Function, Loop, SourceFile, Splice, keyword_of, method_of
from gpudash.telemetry.explanation import short

SMALLEST = 1

SMALLEST_OF_SHAPE = 8
"""Smallest first dimension that counts as a batch if no name says so."""

MOST = 2
"""Most places that are offered."""

_BATCH = re.compile(r"(?i)batch_?size|^batch$|_batch$|(images|samples|imgs|sequences)_per_(batch|gpu|device)|^bsz?$")
_NOT_OF_A_STEP = re.compile(r"(?i)num|count|idx|index|accum|interval|every|log|per_epoch|^n_|_id$")
_EVALUATES = re.compile(r"(?i)(^|_)(val|valid|validation|eval|test|dev(?!ice)|infer|inference|predict)")
_TRAINS = re.compile(r"(?i)train")

_HELP = re.compile(r"(?i)^(the |a |input |train |training |mini-?)*batch.?size")
"""Help text of a single-letter option that is a batch size."""

_OPTIONS = frozenset({"add_argument", "option", "Option", "Argument"})
_LOOKS_UP = frozenset({"get", "getenv", "setdefault", "pop"})
_SHAPED = frozenset({"randn", "rand", "zeros", "ones", "empty", "full", "normal"})
_RESHAPES = frozenset({"view", "reshape", "expand", "repeat", "arange"})

_ACCUMULATES = re.compile(r"(?i)accum\w*(steps?|batches|iters?|every|factor)$|^(grad(ient)?_)?accum(ulation|ulate)?$")

_COMMANDED, _GIVEN, _SET, _KEYWORD, _DEFAULT = range(5)
"""How certain a place is to take effect: a value on the command line, or an argument of a function, overrides what is
set elsewhere, and its own default."""


class ProgramFiles(Protocol):
    """The source of a program: its own files, those that they import, those that its command names, the command."""

    @property
    def program_files(self) -> Sequence[SourceFile]: ...
    @property
    def imported_files(self) -> Sequence[SourceFile]: ...
    @property
    def named_files(self) -> Sequence[SourceFile]: ...
    @property
    def command(self) -> ProgramCommand: ...


@dataclass(frozen=True)
class BatchSize:
    """A batch size, in the source or on the command line.

    Attributes:
        place: where it is defined, in a few words.
        value: the batch size.
        file: file that defines it; ``None`` for the command line.
        numbers: positions of the number, the one to name first.
        option: command-line option that sets it.
        is_named: whether its name says that it is a batch size.
        evaluates: whether it is named after evaluation, which does not train.
    """

    place: str
    value: int
    file: SourceFile | None = None
    numbers: Sequence[Splice] = ()
    option: OptionValue | None = None
    is_named: bool = True
    evaluates: bool = False

    @classmethod
    def in_file(cls, file: SourceFile, value: int, numbers: Sequence[Splice], *, is_named: bool = True) -> BatchSize:
        """A batch size in a file."""
        place = f"{short(file.file)}:{numbers[0].line}"
        return cls(place, value, file=file, numbers=numbers, is_named=is_named)

    def patch(self, value: int) -> str:
        """The diff that sets another size; "" if it is not in a file."""
        if self.file is None:
            return ""
        return self.file.patch(self.file.spliced(replace(number, text=str(value)) for number in self.numbers))

    def text(self, value: int) -> str:
        """The change to another size, in words."""
        return f"{self.place}: a batch of {value} in place of {self.value}"

    def size_in(self, change: str) -> int | None:
        """The size in a change in words, as `text` has it; ``None`` for any other change."""
        found = re.match(rf"{re.escape(self.place)}: a batch of (\d+) in place of {self.value}\b", change)
        if found is None:
            return None
        return int(found[1])

    def command(self, value: int) -> tuple[str, ...]:
        """The program's command with another size; () if it is not on the command line."""
        if self.option is None:
            return ()
        return self.option.with_value(value)


def batch_sizes(case: Case, *, evaluates: bool = False) -> list[BatchSize]:
    """Values named as batch sizes, the most certain first, at most `MOST`.

    For a request made by an evaluation, its own batch size, if there is one. Without such names, the first dimension
    of the tensors that the program creates in each step.

    Args:
        case: the failed request.
        evaluates: whether it is known to be from an evaluation; by default the function names decide.
    """
    evaluates = evaluates or any(_EVALUATES.search(frame.name) for frame in case.refused_frames)
    return named_batches(case, evaluates=evaluates) or list(_by_shape(case))[:1]


def named_batches(program: ProgramFiles, *, evaluates: bool = False) -> list[BatchSize]:
    """Values named as batch sizes, the most certain first, at most `MOST`; of an evaluation if it ``evaluates``."""
    found: list[tuple[bool, int, bool, BatchSize]] = []
    for name, sureness, batch in (*_of_command(program), *_of_sources(program)):
        if batch.value <= SMALLEST:
            continue
        is_of_evaluation = _EVALUATES.search(name) is not None
        # In this order: the right kind of run, the most certain, then those named after training.
        batch = replace(batch, evaluates=is_of_evaluation)
        found.append((is_of_evaluation != evaluates, sureness, not _TRAINS.search(name), batch))
    found.sort(key=lambda one: one[:3])
    if not found:
        return []
    is_other = found[0][0]
    alike = [batch for is_of_other, _, _, batch in found if is_of_other == is_other]
    # The command line overrides the source.
    if alike[0].option is not None:
        return alike[:1]
    return alike[:MOST]


def accumulated(program: ProgramFiles) -> int | None:
    """How many batches the program accumulates for each optimizer step, by the names in its source and command.

    1 if nothing is named so, ``None`` if that is computed, or there are several numbers.
    """
    numbers: set[int | None] = {value.value for value in option_values(program.command) if _accumulates(value.name)}
    if not numbers:
        for file in (*program.program_files, *program.imported_files, *program.named_files):
            for node in file.nodes():
                given = [value for name, value, _ in _assignments(node, set()) if _accumulates(name)]
                numbers.update(whole_number(value) for value in given if not _hands_on(value))
    if len(numbers) > 1:
        return None
    return next(iter(numbers), 1)


def _accumulates(name: str) -> bool:
    return _ACCUMULATES.search(name) is not None


def _hands_on(value: ast.expr) -> bool:
    """Whether a value is the number of accumulated batches under another name: ``args.accumulation_steps``."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _accumulates(name)
    return False


def is_of_single_samples(case: Case) -> bool:
    """Whether the program's batch is a single sample, which cannot be halved."""
    values = [batch.value for _name, _sureness, batch in (*_of_command(case), *_of_sources(case))]
    return bool(values) and max(values) == SMALLEST


def _of_sources(program: ProgramFiles) -> Iterator[tuple[str, int, BatchSize]]:
    """Sizes in files: name, certainty, and the size."""
    named = program.named_files
    for file in (*program.program_files, *program.imported_files, *named):
        own = {node.name for node in file.nodes() if isinstance(node, Function | ast.ClassDef)}
        for node in file.nodes():
            for name, number, sureness in _named(node, own):
                value = whole_number(number)
                if value is None or value < SMALLEST or number.lineno != number.end_lineno:
                    continue
                # A settings file named in the command is as good as an argument.
                if file in named:
                    sureness = _GIVEN
                yield name, sureness, BatchSize.in_file(file, value, (_place(number),))


def _of_command(program: ProgramFiles) -> Iterator[tuple[str, int, BatchSize]]:
    """Sizes on the command line, in the same form; if an option is repeated, the last one counts."""
    names = _names_of_options(program)
    given = {}
    for value in option_values(program.command):
        name = names.get(value.option) or value.name
        if is_batch(name) and value.value >= SMALLEST:
            given[name] = BatchSize(value.option, value.value, option=value)
    yield from ((name, _COMMANDED, batch) for name, batch in given.items())


def _names_of_options(program: ProgramFiles) -> dict[str, str]:
    """Names of options in the program's code: ``-b`` is ``batch_size``."""
    found = {}
    for file in (*program.program_files, *program.imported_files):
        for node in file.nodes():
            if not isinstance(node, ast.Call) or method_of(node) not in _OPTIONS:
                continue
            spellings = list(filter(None, map(_text, node.args)))
            names = [text.lstrip("-").replace("-", "_") for text in (*spellings, _text(keyword_of(node, "dest")))]
            name = next(filter(is_batch, names), "")
            if not name and _HELP.match(_text(keyword_of(node, "help"))) and max(map(len, names)) == 1:
                name = "batch_size"
            if name:
                found.update(dict.fromkeys(spellings, name))
    return found


def _place(number: ast.expr) -> Splice:
    return Splice(number.lineno, number.col_offset, number.end_col_offset or 0, "")


def whole_number(expression: ast.expr) -> int | None:
    """The value of a number, or of a product or power of numbers; ``None`` for anything else."""
    match expression:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Constant(value=str(text)) if text.isdecimal() and len(text) < 10:
            return int(text)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Pow() | ast.LShift() as operator, right=right):
            one = whole_number(left)
            two = whole_number(right)
            # The program is untrusted: its expression must not take forever to evaluate.
            if one is None or two is None or not 0 <= two < 2**20 or not 0 <= one < 2**20:
                return None
            if isinstance(operator, ast.Mult):
                return one * two
            if two > 20:
                return None
            power: int = one**two
            if isinstance(operator, ast.Pow):
                return power
            return one << two
    return None


def is_batch(name: str) -> bool:
    """Whether a variable, field or option of this name is a batch size."""
    return _BATCH.search(name) is not None and _NOT_OF_A_STEP.search(name) is None


def _assignments(node: ast.AST, own: set[str]) -> Iterator[tuple[str, ast.expr, int]]:
    """Values that a node assigns: name, value, certainty."""
    pairs: list[tuple[str, ast.expr, int]] = []
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                pairs += [(name, number, _SET) for name, number in _assigned(target, value)]
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            default = None
            if isinstance(value, ast.Call):
                default = keyword_of(value, "default")
            pairs += [(name, default or value, _SET) for name, _ in _assigned(target, value)]
        case ast.Dict(keys=keys, values=values):
            pairs += [(_text(key), value, _SET) for key, value in zip(keys, values, strict=True)]
        case ast.Call():
            pairs += _of_call(node, own)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            arguments = node.args
            positional = [*arguments.posonlyargs, *arguments.args]
            # Python's grammar: defaults belong to the last positional arguments.
            with_default = positional[len(positional) - len(arguments.defaults) :]
            pairs += [(a.arg, d, _DEFAULT) for a, d in zip(with_default, arguments.defaults, strict=True)]
            keyword_only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            pairs += [(a.arg, d, _DEFAULT) for a, d in keyword_only if d is not None]
    yield from pairs


def _named(node: ast.AST, own: set[str]) -> Iterator[tuple[str, ast.expr, int]]:
    """Of these, the ones named as a batch size."""
    yield from (pair for pair in _assignments(node, own) if is_batch(pair[0]))


def _of_call(call: ast.Call, own: set[str]) -> Iterator[tuple[str, ast.expr, int]]:
    method = method_of(call)
    texts = [*filter(None, map(_text, call.args))]
    if method in _OPTIONS:
        default = keyword_of(call, "default")
        names = [text.lstrip("-").replace("-", "_") for text in texts]
        if default is not None:
            yield from ((name, default, _SET) for name in names)
        return
    if method in _LOOKS_UP and texts and len(call.args) == 2:
        yield texts[0].lower(), call.args[1], _DEFAULT
        return
    named = []
    if call.args:
        named = re.findall(r"\w+", ast.unparse(call.args[0]))
    for keyword in call.keywords:
        if keyword.arg is not None:
            # A loader of data other than the training's is named after it.
            if any(map(_EVALUATES.search, named)):
                name = f"val_{keyword.arg}"
            else:
                name = keyword.arg
            sureness = _KEYWORD
            if method == "dict":
                sureness = _SET
            if method in own:
                sureness = _GIVEN
            yield name, keyword.value, sureness


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            yield name, value
        case ast.Tuple(elts=targets) if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
            for one, its_value in zip(targets, value.elts, strict=True):
                yield from _assigned(one, its_value)


def _text(node: ast.AST | None) -> str:
    """The text of a string constant; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def _by_shape(case: Case) -> Iterator[BatchSize]:
    """First dimensions of live tensors that are created in a loop or a function; the most frequent first."""
    others = case.alive[case.lives.category[case.alive] != case.history.categories.index(WEIGHTS)]
    for file in case.program_files:

        def is_live(number: ast.expr, _value: int, name: str = file.file) -> bool:
            return bool(case.with_frames([(name, number.lineno)])[others].any())

        yield from shaped_batches(file, is_live)


def shaped_batches(file: SourceFile, is_batch_of: Callable[[ast.expr, int], bool]) -> Iterator[BatchSize]:
    """First dimensions of tensors that a file creates in a loop or a function; the most frequent first.

    Args:
        file: the file.
        is_batch_of: given a number and its value, whether they may be a batch.
    """
    sizes: dict[int, list[ast.expr]] = {}
    seen: set[int] = set()
    for node in file.nodes():
        number = _first_size(node, _SHAPED)
        if number is None:
            continue
        value = whole_number(number)
        if value is None or value < SMALLEST_OF_SHAPE or not _runs_in_a_step(file, number):
            continue
        sizes.setdefault(value, []).append(number)
        if is_batch_of(number, value):
            seen.add(value)
    for value in sorted(seen, key=lambda size: -len(sizes[size])):
        shaped = [_first_size(node, _RESHAPES) for node in file.nodes()]
        reshaped = [number for number in shaped if number is not None and whole_number(number) == value]
        # By position, since a number may be found as both.
        numbers = {(one.lineno, one.col_offset): one for one in (*sizes[value], *reshaped)}
        yield BatchSize.in_file(file, value, [*map(_place, numbers.values())], is_named=False)


def _first_size(node: ast.AST, makers: frozenset[str]) -> ast.expr | None:
    """The first dimension of the tensor that a call creates or reshapes; ``None`` for other nodes."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    first: ast.expr = node.args[0]
    # The first argument of randint is an upper bound, not a size.
    if method_of(node) == "randint" and makers is _SHAPED:
        first = keyword_of(node, "size") or node.args[-1]
        if not isinstance(first, ast.Tuple | ast.List):
            first = ast.Tuple(elts=[])
    elif method_of(node) not in makers:
        return None
    if isinstance(first, ast.Tuple | ast.List):
        if first.elts:
            return first.elts[0]
        return None
    return first


def _runs_in_a_step(file: SourceFile, number: ast.expr) -> bool:
    path = file.path(number.lineno)
    scope = next((node for node in reversed(path) if isinstance(node, Function)), None)
    if scope is not None:
        return scope.name != "__init__"
    return any(isinstance(node, Loop) for node in path)


@dataclass(frozen=True)
class Number:
    """A number in the program's source.

    Attributes:
        file: file of the number.
        node: its expression.
        value: so many.
        counts_prompt: whether a number of tokens includes the prompt's.
    """

    file: SourceFile
    node: ast.Constant
    value: int
    counts_prompt: bool = False

    @property
    def place(self) -> str:
        """Its position, in a few words."""
        return f"{short(self.file.file)}:{self.node.lineno}"

    def patch(self, value: int) -> str:
        """The diff that writes another number; "" if that is impossible within the line."""
        return self.file.patch_of(self.node, str(value))


def numbers_given(case: Case, name: str) -> Iterator[Number]:
    """Arguments for a parameter in the program's calls; those that led to the failed request come first."""
    lines = {(frame.file, frame.line) for frame in case.refused_frames}
    found = []
    for file in case.program_files:
        for node in file.nodes():
            if not isinstance(node, ast.Call):
                continue
            value = keyword_of(node, name)
            number = None
            if value is not None:
                number = number_of(file, value)
            if number is None or number.value < 1:
                continue
            statement = file.statement(node.lineno)
            is_of_request = statement is not None and any(
                (file.file, line) in lines for line in range(statement.lineno, (statement.end_lineno or 0) + 1)
            )
            found.append((not is_of_request, number))
    found.sort(key=itemgetter(0))
    yield from (number for _, number in found)


def number_of(file: SourceFile, value: ast.expr) -> Number | None:
    """An integer: the number itself, or where it is assigned to the given name."""
    if isinstance(value, ast.Name):
        given = [node for node in file.nodes() if isinstance(node, ast.Assign) and _is_named_by(node, value.id)]
        if len(given) == 1:
            value = given[0].value
    if not isinstance(value, ast.Constant) or not isinstance(value.value, int):
        return None
    return Number(file, value, value.value)


def _is_named_by(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)

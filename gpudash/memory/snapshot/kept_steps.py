"""What a program keeps of every step or of every n-th, with the statements that keep it and what to write instead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpudash.memory.explaining.call_sites import SourceLine
from gpudash.memory.growth_rate import growth_rate
from gpudash.memory.snapshot.history.history import History
from gpudash.memory.snapshot.leak_edits import Keeper, Place, edit_of_statement, keepers, makers_of
from gpudash.memory.snapshot.source_edits import SourceFile
from gpudash.telemetry.explanation import Growth, Remedy, every_steps, short
from gpudash.units import format_bytes

FEWEST_STEPS_KEPT = 2
"""Steps in which a line must leave memory behind, if the program shows the statement that keeps it."""

NUMBER_BYTES = 8
"""Size of the largest scalar."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _KeptStep:
    """What the newest complete step that kept anything left on the growing lines, and what the source shows of it.

    Attributes:
        stride: steps from one that keeps it to the next.
        lives: lives, the oldest first.
        keepers: statements that keep the steps' values, and the life of each value if the trace contains it.
    """

    stride: float
    lives: Ints
    keepers: Sequence[tuple[Keeper, int | None]]

    def advice(self, history: History) -> Iterator[str]:
        """What the program could keep instead, as far as trace and source show it."""
        rest = set(self.lives.tolist()) - {value for _, value in self.keepers if value is not None}
        # The step's other lives are kept by the graph of those values.
        graph = ""
        if rest:
            graph = "any graph"
        if rest and len(self.keepers) == 1:
            graph = "the graph"
        for keeper, value in self.keepers:
            yield _instead(keeper, history, value, graph, self.stride)


@dataclass(frozen=True)
class Leak:
    """What the program keeps, of every step and of every n-th.

    Attributes:
        steps: for what is kept equally often, the newest step that kept it; what is kept most often first.
    """

    steps: Sequence[_KeptStep]

    @classmethod
    def of(cls, history: History, moment: int, growing: Sequence[Growth], source: SourceLine) -> Leak:
        """For lines found growing at a moment, the fastest first."""
        found = []
        known: set[tuple[Place, str]] = set()
        for stride, of_all_steps in _kept_steps(history, moment, growing):
            lives = _newest(history, of_all_steps)
            stacks = [_stack(history, life) for life in lives]
            kept = []
            for keeper in keepers(makers_of(_lines_of(history, of_all_steps, growing), stacks), source):
                if (keeper.place, keeper.text) not in known:
                    known.add((keeper.place, keeper.text))
                    kept.append((keeper, _value(history, lives, keeper.made)))
            found.append(_KeptStep(stride, lives, kept))
        return cls(found)

    @cached_property
    def keepers(self) -> Sequence[tuple[Keeper, int | None]]:
        """The statements that keep something, and the life of each value if the trace contains it."""
        return [keeper for step in self.steps for keeper in step.keepers]

    def edit(self, history: History) -> str:
        """The replacements for the statements that keep something; "" if the source does not show any."""
        edits = []
        for place, (keeper, value) in self._places().items():
            write = self._written(history, place) or keeper.edit(is_number=_is_number(history, value))
            edit = f"{short(place[0])}:{place[1]}: write {write}"
            if not keeper.is_carried:
                edit += f", not {keeper.statement}"
            edits.append(edit)
        return "; ".join(edits)

    def patch(self, history: History, source: SourceLine) -> str:
        """`edit` as a diff of each file; "" if the source does not show it."""
        files: dict[str, SourceFile] = {}
        changed: dict[str, dict[int, Sequence[str]]] = {}
        for place, (keeper, value) in self._places().items():
            file = files.setdefault(place[0], SourceFile(place[0], source))
            written = self._written(history, place)
            changes = keeper.changes(file, is_number=_is_number(history, value), written=written)
            if changes is None:
                return ""
            changed.setdefault(place[0], {}).update(changes)
        return "".join(files[name].patch(lines) for name, lines in changed.items())

    def _places(self) -> Mapping[Place, tuple[Keeper, int | None]]:
        """The first value that each statement keeps."""
        places: dict[Place, tuple[Keeper, int | None]] = {}
        for keeper, value in self.keepers:
            places.setdefault(keeper.place, (keeper, value))
        return places

    def _written(self, history: History, place: Place) -> str:
        """A statement with all edits, if it keeps several values; else ""."""
        kept = [(keeper, _is_number(history, value)) for keeper, value in self.keepers if keeper.place == place]
        if len(kept) > 1:
            return edit_of_statement(kept)
        return ""

    def with_keepers(self, growing: Sequence[Growth]) -> tuple[Growth, ...]:
        """``growing``, each with the statement that keeps what is kept as often."""
        made = []
        for growth in growing:
            steps = (step for step in self.steps if every_steps(step.stride) == growth.every and step.keepers)
            kept_by = ""
            for step in steps:
                keeper = step.keepers[0][0]
                if keeper.place != (growth.file, growth.line):
                    kept_by = f"{keeper.shown_place}{', a hook,' if keeper.in_hook else ''}"
                break
            made.append(replace(growth, kept_by=kept_by))
        return tuple(made)

    def keeps_numbers(self, history: History) -> bool:
        """Whether scalars stay on the device after the edit, because the program reads them as tensors."""
        return any(keeper.is_read_as_tensor and _is_number(history, value) for keeper, value in self.keepers)

    def in_variables(self) -> Sequence[Sequence[int]]:
        """Of each keeping statement, the values that variables of the loop hold, too."""
        found: dict[Place, list[int]] = {}
        for keeper, value in self.keepers:
            if keeper.is_in_variable and value is not None:
                found.setdefault(keeper.place, []).append(value)
        return list(found.values())

    def with_rewrites(self, history: History, remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
        """``remedies``; the edit among them gets the rewrites of everything that keeps something."""
        edit = self.edit(history)
        made = [keeper.rewrite(is_number=_is_number(history, value)) for keeper, value in self.keepers]
        rewrites = tuple(filter(None, made))
        if not edit or len(rewrites) < len(made):
            return tuple(remedies)
        found = []
        for remedy in remedies:
            if remedy.change.startswith(f"{edit}: "):
                remedy = replace(remedy, rewrites=rewrites)
            found.append(remedy)
        return tuple(found)

    def advice(self, history: History, growing: Sequence[Growth]) -> str:
        """What the program could keep instead, as far as trace and source show it."""
        sentences = [sentence for step in self.steps for sentence in step.advice(history)]
        return " ".join(sentences) or _unseen(history, self.steps[0].lives, growing[0])


def _is_number(history: History, value: int | None) -> bool:
    return value is not None and bool(history.lives.requested[value] <= NUMBER_BYTES)


def sites_of(history: History, growing: Sequence[Growth]) -> NDArray[np.bool_]:
    """For each site of the history, whether it is on one of these lines."""
    lines = {(growth.file, growth.line) for growth in growing}
    return np.array([frame[:2] in lines for frame in history.sites.frames], bool)


def _kept_steps(history: History, moment: int, growing: Sequence[Growth]) -> Iterator[tuple[float, Ints]]:
    """The distances of steps that keep something on these lines, with all that they kept; the shortest first.

    A line that a training and its evaluation reach in different ways is divided among them.
    """
    now = history.step_at(moment)
    alive: Ints = history.alive(moment)
    alive = alive[sites_of(history, growing)[history.site_of(alive)]]
    step: Ints = history.step_of(history.lives.born[alive])
    # The current step may not have reached what it keeps.
    alive = alive[(step > 0) & (step < now)]
    alive = alive[np.argsort(history.lives.stack[alive], kind="stable")]
    strides: dict[float, list[Ints]] = defaultdict(list)
    irregular: list[Ints] = []
    for lives in np.split(alive, np.flatnonzero(np.diff(history.lives.stack[alive])) + 1):
        rate = growth_rate(_bytes_of_steps(history, lives), now, FEWEST_STEPS_KEPT)
        if rate is None:
            irregular.append(lives)
        else:
            strides[rate.stride].append(lives)
    # What is reached in changing ways belongs to what every step keeps, if there is that.
    if not strides or 1.0 in strides:
        strides[1.0] += irregular
    for stride, kept in sorted(strides.items()):
        yield stride, np.concatenate(kept)


def _bytes_of_steps(history: History, lives: Ints) -> dict[int, int]:
    sizes: dict[int, int] = defaultdict(int)
    steps: Ints = history.step_of(history.lives.born[lives])
    for step, size in zip(steps.tolist(), history.lives.bytes[lives].tolist(), strict=True):
        sizes[step] += size
    return sizes


def _newest(history: History, lives: Ints) -> Ints:
    """Those among some lives that the newest of their steps left, the oldest first."""
    step: Ints = history.step_of(history.lives.born[lives])
    found: Ints = lives[step == step.max(initial=0)]
    oldest_first: Ints = found[np.argsort(history.lives.born[found])]
    return oldest_first


def _lines_of(history: History, lives: Ints, growing: Sequence[Growth]) -> Sequence[Growth]:
    """Those growing lines that allocated some of these lives."""
    sites = {history.sites.frames[site][:2] for site in np.unique(history.site_of(lives)).tolist()}
    return [growth for growth in growing if (growth.file, growth.line) in sites]


def _stack(history: History, life: int) -> Sequence[tuple[str, int, str]]:
    number = int(history.lives.stack[life])
    if number >= 0:
        return history.device.stacks[number]
    return ()


def _value(history: History, step: Ints, made: Place) -> int | None:
    """The life of a line's result: its last allocation that is still alive."""
    # The newest first: a result is allocated after its inputs.
    for life in step[::-1]:
        if any((file, line) == made for file, line, _ in _stack(history, life)):
            return int(life)
    return None


def _instead(keeper: Keeper, history: History, value: int | None, graph: str, stride: float) -> str:
    name, place = keeper.name, keeper.shown_place
    if keeper.is_carried:
        return f"{place} carries the graph of every step on to the next: write {keeper.edit(is_number=False)}."
    of_graph = ""
    if graph and not keeper.detached:
        of_graph = f", and with it {graph} that made it"
    if _is_number(history, value):
        return f"{place} keeps {keeper.text}{of_graph}: keep {keeper.kept(is_number=True)} instead."
    if keeper.is_added:
        return f"{place} adds up {keeper.text}{of_graph}: add {name}.detach() instead."
    size = ""
    if value is not None:
        size = f" {format_bytes(int(history.lives.bytes[value]))} of"
    less = "keep less of it"
    if keeper.before.endswith("] = "):
        less += f" (del {keeper.before.removesuffix(' = ')} once no step reads it again)"
    there = f"{name}.detach().cpu(), which takes{size} host memory {every_steps(stride, 'at each step')}"
    if of_graph:
        alone = ".detach() alone lets go of the graph"
        if keeper.without_backward:
            alone += ", and so does torch.no_grad() around the loop"
        return f"{place} keeps {keeper.text}{of_graph}: {less}, or {there}. {alone}."
    return f"{place} keeps {keeper.text} itself,{size or ' some of'} {every_steps(stride)}: {less}, or {there}."


def _unseen(history: History, step: Ints, first: Growth) -> str:
    """The note if the source does not show what keeps it."""
    if len(step) == 1:
        size = format_bytes(int(history.lives.bytes[step[0]]))
        return (
            f"Each step leaves a tensor of {size} from {first.place}: keep less of it, or move it to host memory with "
            ".detach().cpu()."
        )
    return (
        "A tensor that is kept holds the graph that made it: keep the .item() of a number, or the .detach().cpu() of a "
        "tensor, which takes host memory instead."
    )

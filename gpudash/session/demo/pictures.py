"""What the stage shows in one step: code, blocks, columns, curves and a sentence, as data without a painter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gpudash.drawing.stages import StageBlock, StageChart, StageColumn, in_unit, sampled, size_text, unit_for
from gpudash.units import summed_bytes
from gpudash.workloads.lines.trace import ENDED, LineBlock, LineFailure, LineMoment, LinesTrace

Tone = Literal["plain", "warn", "wrong", "good"]
"""Tone of a sentence: nothing to note; easily overlooked; an error, which waits for a key; a fix."""

LineState = Literal["past", "now", "coming", "wrong"]

MOST_COLUMNS = 10
"""How many columns can be distinguished from the last row of a room."""

FIRST_TURNS, LAST_TURNS = 6, 4
"""Iterations of a long loop that become steps; nobody wants to press a key for each of a thousand."""

MOST_BLOCKS = 4
"""How many blocks are shown beside the code."""

SMALL = 0.01
"""An unnamed block with a smaller share of the memory held is not mentioned."""

OTHERS = "reference"
"""The colour of several blocks together: that of none of them, so that it stays as they change."""

NOT_MEASURED = "not measured"
"""The figure of a line that was ended before it reported anything."""

REFUSED = "refused"
"""The kind of a block for which there was no memory."""

KINDS = ("weights", "optimizer state", "activations", "inputs", "gradients", "other tensors", "KV cache")
"""Colours of variables, in order of appearance."""

UNNAMED, WORKSPACE = "temporary", "workspace"
"""Colours of memory that no variable has, and of memory that kernels keep for themselves."""


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of code, or of a change.

    Attributes:
        number: its line number; "" if none.
        text: its text.
        figure: its effect on memory, once known.
        state: whether it is done, current, still to come, or failed.
        warns: whether its figure cannot be seen in the code.
        room: the longest figure that is expected: its width is kept free, so that the code stays where it is.
    """

    number: str
    text: str
    figure: str = ""
    state: LineState = "coming"
    warns: bool = False
    room: str = ""


@dataclass(frozen=True, slots=True)
class StagePanel:
    """A run beside others: its curve on axes shared by all, and its figures.

    Attributes:
        title: a few words.
        losses: of its steps so far.
        steps: total number of steps.
        figures: names and values.
        state: whether it is done, running, or still to come.
    """

    title: str
    losses: tuple[float, ...] = ()
    steps: int = 0
    figures: tuple[tuple[str, str], ...] = ()
    state: LineState = "coming"


@dataclass(frozen=True, slots=True)
class GuessRow:
    """A guess beside the outcome.

    Attributes:
        question: in a few words.
        guess: as made; "" without one.
        came: the answer; "" without one.
        right: whether both agree; ``None`` if one is missing.
    """

    question: str
    guess: str = ""
    came: str = ""
    right: bool | None = None


@dataclass(frozen=True, slots=True)
class StagePicture:
    """One step of a scene.

    Attributes:
        title: of the scene.
        question: the subject, or what can be guessed now.
        corner: the limit, and what is simulated.
        code: the lines.
        blocks_title: over the blocks.
        blocks: the memory held now.
        chart: the columns; ``None`` without them.
        panels: the runs side by side.
        sentence: what to notice.
        remark: a figure after the sentence.
        tone: of the sentence.
        choices: the guesses available now.
        unit: of the number to guess now; "" if there is none.
        verdict: whether the guess was right; "" before that is known.
        rows: guesses beside outcomes, in place of code and chart.
        answers: whether it is the outcome that was asked for, though the scene goes on.
    """

    title: str
    question: str = ""
    corner: str = ""
    code: tuple[CodeLine, ...] = ()
    blocks_title: str = ""
    blocks: tuple[StageBlock, ...] = ()
    chart: StageChart | None = None
    panels: tuple[StagePanel, ...] = ()
    sentence: str = ""
    remark: str = ""
    tone: Tone = "plain"
    choices: tuple[str, ...] = ()
    unit: str = ""
    verdict: str = ""
    rows: tuple[GuessRow, ...] = ()
    answers: bool = False

    def with_guess(self, guess: float) -> StagePicture:
        """The step with a guess, in bytes, beside its columns."""
        if self.chart is None:
            return self
        return replace(self, chart=replace(self.chart, guess=guess))

    def hidden(self) -> StagePicture:
        """The step without anything that would reveal the answer."""
        code = tuple(replace(line, figure="", state="coming") for line in self.code)
        panels = tuple(replace(panel, losses=(), figures=(), state="coming") for panel in self.panels)
        chart = self.chart
        if chart is not None:
            columns = tuple(replace(column, blocks=(), figure=" ", is_peak=False) for column in chart.columns)
            chart = replace(chart, columns=columns)
        return replace(self, code=code, panels=panels, chart=chart, blocks=(), remark="", tone="plain")

    @property
    def description(self) -> str:
        """The whole picture as text, for people who cannot see it."""
        parts = [f"{self.title}. {self.question}", self.verdict, self.sentence, self.remark]
        parts += [f"Now line {line.number}: {line.text}." for line in self.code if line.state in ("now", "wrong")]
        parts += [f"{block.name} {size_text(block.bytes)}." for block in self.blocks]
        parts += [f"{row.question}: guessed {row.guess}, came {row.came or 'nothing yet'}." for row in self.rows]
        return " ".join(part for part in parts if part.strip())


@dataclass
class _Colours:
    """The colour of each variable, in order of appearance."""

    known: dict[str, str] = field(default_factory=dict)

    def of(self, block: LineBlock) -> str:
        if block.workspace:
            return WORKSPACE
        if not block.named:
            return UNNAMED
        base = block.name.partition(",")[0].partition("[")[0].partition(".")[0]
        if base not in self.known:
            self.known[base] = KINDS[len(self.known) % len(KINDS)]
        return self.known[base]


@dataclass(frozen=True, slots=True)
class LineScript:
    """Text for lines in addition to their trace.

    Attributes:
        title: of the scene.
        question: in the header.
        before: the sentence before the first line.
        mend: what to write instead of a failing line.
        end: the sentence at the end; derived from the trace by default.
        corner: text in the corner.
        remark: beside the sentence of the highest column.
    """

    title: str = ""
    question: str = ""
    before: str = ""
    mend: str = ""
    end: str = ""
    corner: str = ""
    remark: str = ""


def code_of(source: Sequence[str]) -> tuple[CodeLine, ...]:
    """Lines that have not run."""
    return tuple(CodeLine(str(number), text, room=_expected_figure(text)) for number, text in enumerate(source, 1))


def _expected_figure(text: str) -> str:
    """About the longest figure that a line may get: one with several calls may give memory back too."""
    return "+ 00, then − 00 MiB" if text.count("(") > 1 else "+ 000 MiB"


def empty_chart(limit: float | None, titles: Sequence[str] = ()) -> StageChart:
    """A chart before any measurement."""
    return StageChart("GPU MEMORY", tuple(StageColumn(title, (), "coming", " ") for title in titles), limit)


def pictures_of(trace: LinesTrace, script: LineScript) -> list[StagePicture]:
    """The steps of lines that have run: before the first line, each line with an effect, and the end."""
    if not trace.moments and trace.failure is None:
        return []
    moments = _collapsed(trace.moments)
    if trace.failure is not None and moments and moments[-1].turn:
        moments = _without_begun_turn(moments)
    colours = _Colours()
    blocks = [tuple(_block(block, colours) for block in moment.blocks) for moment in moments]
    titles = [_title(moments, place) for place in range(len(moments))]
    peak = max(range(len(moments)), key=lambda place: moments[place].bytes, default=None)
    limit = float(trace.limit)
    # a line that ended with its process reported nothing: it may have been the highest
    measured = trace.failure is None or trace.failure.kind != ENDED
    columns = [StageColumn("before", (), "past", "0")]
    for place, held_then in enumerate(moments):
        is_peak = place == peak and held_then.bytes > 0 and measured
        columns.append(StageColumn(titles[place], blocks[place], is_peak=is_peak))
    if trace.failure is not None:
        columns.append(_failed_column(trace, colours))
    unit, name = unit_for(max((column.bytes for column in columns), default=0.0))
    columns = [_with_figure(column, unit, ends=_is_end(place, columns, trace)) for place, column in enumerate(columns)]
    pictures = []
    moment: LineMoment | None
    for at in range(len(columns)):
        shown = sampled([_seen(column, place, at) for place, column in enumerate(columns)], MOST_COLUMNS)
        moment = moments[at - 1] if 0 < at <= len(moments) else None
        held = blocks[at - 1] if moment is not None else ()
        failed = trace.failure is not None and at == len(columns) - 1
        picture = StagePicture(
            title=script.title,
            question=script.question,
            corner=script.corner or f"limit {size_text(limit)} · simulated",
            code=_code(trace, moments, at, failed=failed),
            blocks_title=_blocks_title(moment, trace.failure if failed else None),
            blocks=_block_cards(held, moment),
            chart=StageChart("GPU MEMORY", shown, limit),
        )
        if failed and trace.failure is not None:
            last = trace.moments[-1] if trace.moments else None
            kept = () if last is None else tuple(_block(block, colours) for block in last.blocks)
            if not measured:
                kept = tuple(replace(block, remark="") for block in kept)
            sentence = failure_sentence(trace.failure, trace.limit)
            picture = replace(
                picture, blocks=_block_cards(kept, last), sentence=sentence, remark=instead(script), tone="wrong"
            )
        elif moment is None:
            picture = replace(picture, sentence=script.before or "Nothing is on the card yet.")
        else:
            sentence, tone = _sentence(moments, at - 1)
            if not moment.line and script.end:
                sentence, tone = script.end, "good"
            remark = ""
            if at - 1 == peak and moment.bytes and measured:
                remark = script.remark or f"{in_unit(moment.bytes, unit)} of {in_unit(limit, unit)} {name}"
            picture = replace(picture, sentence=sentence, tone=tone, remark=remark)
        pictures.append(picture)
    return _with_room(pictures, trace.source)


def _with_room(pictures: Sequence[StagePicture], source: Sequence[str]) -> list[StagePicture]:
    """The steps with the same width kept free for the figures of a line in all of them."""
    rooms = []
    for row, line in enumerate(code_of(source)):
        rooms.append(max((line.room, *(picture.code[row].figure for picture in pictures)), key=len))
    return [
        replace(picture, code=tuple(replace(line, room=room) for line, room in zip(picture.code, rooms, strict=True)))
        for picture in pictures
    ]


def _is_end(place: int, columns: Sequence[StageColumn], trace: LinesTrace) -> bool:
    """Whether a column shows what is left at the end."""
    return trace.failure is None and place == len(columns) - 1


def instead(script: LineScript) -> str:
    """What to write instead of a failing line; "" if the script does not say."""
    return f"instead: {script.mend}" if script.mend else ""


def failure_sentence(failure: LineFailure, limit: int) -> str:
    """Why a line failed, in one sentence."""
    if failure.out_of_memory:
        unit, name = unit_for(limit)
        size, whole = f"{in_unit(failure.requested, unit)} {name}", f"{in_unit(limit, unit)} {name}"
        if not failure.held:
            return f"Line {failure.line} asks for {size}, and the whole card has {whole}: out of memory."
        held = f"{in_unit(failure.held, unit)} {name}"
        return f"Line {failure.line} asks for {size} more, but {held} of {whole} are taken: out of memory."
    message = failure.message.partition(". ")[0].rstrip(".!")
    if failure.kind == ENDED and message[:1].isupper():
        return f"{message}."  # no line is known
    if failure.kind == ENDED:
        return f"Line {failure.line} {message}."
    if not message:
        return f"Line {failure.line}: {failure.kind}."
    return f"Line {failure.line}: {failure.kind}: {message}."


def _collapsed(moments: Sequence[LineMoment]) -> list[LineMoment]:
    """Each iteration of a loop as one moment, its highest; a line outside loops keeps all its moments, unless their
    effect on memory is negligible."""
    found: list[LineMoment] = []
    host: tuple[LineBlock, ...] = ()
    for moment in moments:
        idle = moment.line and moment.before == moment.after == moment.bytes and moment.host == host
        host = moment.host
        fresh = sum(block.bytes for block in moment.blocks if block.fresh)
        slight = bool(moment.title) and fresh < SMALL * moment.bytes
        if (idle or slight) and not moment.turn:
            continue
        if moment.turn and found and found[-1].turn == moment.turn:
            if moment.bytes > found[-1].bytes:
                found[-1] = moment
            continue
        found.append(moment)
    last: dict[int, int] = {}
    for moment in found:
        last[moment.line] = max(last.get(moment.line, 0), moment.turn)
    return [moment for moment in found if not FIRST_TURNS < moment.turn <= last[moment.line] - LAST_TURNS]


def _without_begun_turn(moments: list[LineMoment]) -> list[LineMoment]:
    """Drop the iteration that failed, if it was no higher than the one before: its failure has a column."""
    if len(moments) > 1 and moments[-2].turn and moments[-1].bytes <= moments[-2].bytes:
        return moments[:-1]
    return moments


def _title(moments: Sequence[LineMoment], place: int) -> str:
    moment = moments[place]
    if not moment.line:
        return "after"
    if moment.turn:
        return f"step {moment.turn}"
    if moment.title:
        return f"line {moment.line}: {moment.title}"
    return f"line {moment.line}"


def _block(block: LineBlock, colours: _Colours) -> StageBlock:
    several = block.count > 1 and not block.workspace
    remark = ""
    if not block.named:
        remark = f"{block.count} unnamed" if several else "no name"
    elif several:
        remark = f"{block.count} blocks"
    elif block.fresh and not block.workspace:
        remark = "being made"
    return StageBlock(block.name, float(block.bytes), colours.of(block), block.named, remark)


def _block_cards(held: Sequence[StageBlock], moment: LineMoment | None) -> tuple[StageBlock, ...]:
    """What is on the card, and what is in host memory."""
    host = moment.host if moment is not None else ()
    on_host = [StageBlock(block.name, float(block.bytes), "host", remark="on the CPU") for block in host]
    found = combined(on_host, MOST_BLOCKS // 2)
    return (*combined(held, MOST_BLOCKS - len(found)), *found)


def combined(held: Sequence[StageBlock], most: int = MOST_BLOCKS) -> tuple[StageBlock, ...]:
    """The largest blocks, in order, and the others as one, so that they add up to what is held.

    Args:
        held: the blocks.
        most: number of blocks that may remain.
    """
    whole = summed_bytes(held)
    least = 0.005 * max((block.bytes for block in held), default=0.0)
    found = [block for block in held if block.bytes >= least]
    if whole - summed_bytes(found) >= SMALL * whole:
        found = list(held)
    if len(found) <= most:
        return tuple(found)
    by_size = sorted(found, key=lambda block: -block.bytes)
    others = by_size[most - 1 :]
    remark = ""
    if len(others) == 2:
        remark = f"{others[0].name}, {others[1].name}"
    rest = StageBlock(f"{len(others)} more", summed_bytes(others), OTHERS, remark=remark)
    return (*(block for block in found if block in by_size[: most - 1]), rest)


def _blocks_title(moment: LineMoment | None, failure: LineFailure | None) -> str:
    if failure is not None and failure.kind == ENDED:
        return f"IN MEMORY, before line {failure.line}"
    if failure is not None:
        return "IN MEMORY, when it failed"
    if moment is None:
        return "IN MEMORY, before line 1"
    if not moment.line:
        return "IN MEMORY, after the last line"
    if moment.turn:
        return f"IN MEMORY NOW, in step {moment.turn}"
    return f"IN MEMORY NOW, inside line {moment.line}"


def _failed_column(trace: LinesTrace, colours: _Colours) -> StageColumn:
    """What was held when a line failed, and what it requested in addition; nothing if the line reported nothing."""
    failure = trace.failure
    assert failure is not None
    if failure.kind == ENDED:
        return StageColumn(f"line {failure.line} fails", (), figure=NOT_MEASURED, failed=True)
    held: tuple[StageBlock, ...] = ()
    if trace.moments:
        held = tuple(_block(block, colours) for block in trace.moments[-1].blocks)
    if failure.out_of_memory:
        held = (*held, StageBlock("no room", float(failure.requested), REFUSED, remark="refused"))
    return StageColumn(f"line {failure.line} fails", held, failed=True)


def _with_figure(column: StageColumn, unit: float, *, ends: bool) -> StageColumn:
    if column.figure:
        return column
    figure = in_unit(column.bytes, unit)
    if column.is_peak:
        figure = f"peak {figure}"
    elif ends and column.bytes:
        figure = f"{figure} stay"
    return replace(column, figure=figure)


def _seen(column: StageColumn, place: int, at: int) -> StageColumn:
    if place < at:
        return replace(column, state="past")
    return replace(column, state="now" if place == at else "coming")


def _code(trace: LinesTrace, moments: Sequence[LineMoment], at: int, *, failed: bool) -> tuple[CodeLine, ...]:
    now = 0
    if 0 < at <= len(moments):
        now = moments[at - 1].line
    if failed and trace.failure is not None:
        now = trace.failure.line
    seen = _raw_until(trace, moments, at)
    # a line without an effect on memory, such as the head of a loop, is done once later lines are
    furthest = max((moment.line for moment in seen), default=0)
    lines = []
    for number, text in enumerate(trace.source, 1):
        own = [moment for moment in seen if moment.line == number]
        state: LineState = "past" if number <= furthest else "coming"
        if number == now:
            state = "wrong" if failed else "now"
        figure, warns = "", False
        if own:
            newest = [moment for moment in own if moment.turn == own[-1].turn]
            figure, warns = _line_figure(newest)
        if failed and number == now:
            figure, warns = "fails", False
        lines.append(CodeLine(str(number), text, figure, state, warns))
    return tuple(lines)


def _raw_until(trace: LinesTrace, moments: Sequence[LineMoment], at: int) -> Sequence[LineMoment]:
    """The moments up to the current one, including the whole iteration of a loop."""
    if not 0 < at <= len(moments):
        return trace.moments if at else ()
    reached = moments[at - 1]
    last = max(place for place, moment in enumerate(trace.moments) if moment is reached)
    if reached.turn:
        while last + 1 < len(trace.moments) and trace.moments[last + 1].turn == reached.turn:
            last += 1
    return trace.moments[: last + 1]


def _line_figure(moments: Sequence[LineMoment]) -> tuple[str, bool]:
    """What a line allocates and frees: "+ 512, then − 256 MiB"; and whether that is more than what it keeps."""
    before, after = moments[0].before, moments[-1].after
    rise = max(moment.bytes for moment in moments) - before
    stays = after - before
    if rise <= 0 and stays < 0:
        return f"− {size_text(-stays)}", False
    if rise <= 0:
        return "0 bytes", False
    back = rise - stays
    unit, name = unit_for(rise)
    kept = sum(block.bytes for moment in moments for block in moment.blocks if block.workspace and block.fresh)
    if back <= 0 and 0 < kept < rise:
        return f"+ {in_unit(rise - kept, unit)} {name}, {in_unit(kept, unit)} workspace", False
    if back <= 0:
        return f"+ {size_text(rise)}", False
    return f"+ {in_unit(rise, unit)}, then − {in_unit(back, unit)} {name}", True


def _sentence(moments: Sequence[LineMoment], place: int) -> tuple[str, Tone]:
    moment = moments[place]
    if not moment.line:
        return _end_sentence(moment), "plain"
    if moment.turn:
        return _turn_sentence(moments, place)
    unnamed = [block for block in moment.blocks if not block.named]
    passing = [block for block in unnamed if not block.fresh and block.bytes >= SMALL * moment.bytes]
    if passing:
        lost = max(passing, key=lambda block: block.bytes)
        size = size_text(lost.bytes)
        until = f"until {moment.title} is done" if moment.title else f"while line {moment.line} runs"
        return f"{size} that nobody named: {lost.name} lives {until}.", "warn"
    fresh = [block for block in moment.blocks if block.fresh and not block.workspace]
    if not fresh:
        return _quiet_sentence(moments, place), "plain"
    made = max(fresh, key=lambda block: block.bytes)
    if not made.named and len(moments) > place + 1 and moments[place + 1].line != moment.line:
        size = size_text(made.bytes)
        return f"{made.name} makes {size} that nobody named: gone when the line is done.", "warn"
    if not made.named:
        return f"{made.name} takes {size_text(made.bytes)}, and no variable has it.", "warn"
    return f"{made.name} takes {size_text(made.bytes)}.", "plain"


def _quiet_sentence(moments: Sequence[LineMoment], place: int) -> str:
    moment = moments[place]
    if moment.after < moment.before:
        return f"Line {moment.line} gives {size_text(moment.before - moment.after)} back."
    before = moments[place - 1].host if place else ()
    arrived = [block for block in moment.host if block not in before]
    if arrived:
        block = arrived[-1]
        return f"{block.name} takes {size_text(block.bytes)} of the computer's memory, and nothing of the card."
    return f"Line {moment.line} takes nothing on the card."


def _turn_sentence(moments: Sequence[LineMoment], place: int) -> tuple[str, Tone]:
    moment = moments[place]
    held = size_text(moment.bytes)
    before = moments[place - 1] if place and moments[place - 1].turn else None
    if before is None:
        return f"In the first step the card holds {held} at most.", "plain"
    more = moment.bytes - before.bytes
    than = f"step {before.turn}" if before.turn + 1 < moment.turn else "the step before"
    if more > 0:
        return f"Step {moment.turn}: {held}, {size_text(more)} more than in {than}.", "warn"
    return f"Step {moment.turn}: {held}, no more than in {than}.", "plain"


def _end_sentence(moment: LineMoment) -> str:
    names = [block.name for block in moment.blocks if block.named and not block.workspace]
    if not moment.bytes:
        return "Nothing stays on the card."
    held = size_text(moment.bytes)
    kernels_bytes = sum(block.bytes for block in moment.blocks if block.workspace)
    if not names or len(names) > MOST_BLOCKS:
        return f"{held} stay on the card."
    if kernels_bytes >= SMALL * moment.bytes:
        names.append(f"{size_text(kernels_bytes)} of workspace")
    listed = names[0]
    if len(names) > 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{held} stay on the card: {listed}."

"""The ladder of remedies: one model that shrinks rung by rung, with each rung's peak predicted by a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from gpudash.drawing.stages import ColumnState, StageBlock, StageChart, StageColumn, in_unit
from gpudash.memory.predicting.estimate import Estimate
from gpudash.memory.predicting.prediction import CONTEXT
from gpudash.session.demo.pictures import CodeLine, StagePicture, Tone, combined
from gpudash.session.predicting.ghosts import BY_LIFE
from gpudash.specs import Spec, TrainingSpec
from gpudash.specs.model import ModelSpec
from gpudash.specs.model_names import find_model
from gpudash.units import GIB, format_bytes, summed_bytes

CARD_BYTES = 4 * GIB
"""The card that the model should fit: a small one, too small for the first rungs."""


REACHES = 12.0 * GIB
"""Bytes that the axis shows at least: the first rungs need more than the card has, and the axis stays as it is."""

BATCH, SMALLER = 12, 3


@dataclass(frozen=True, slots=True)
class Rung:
    """A change to the run of the rung below.

    Attributes:
        label: a few words of code.
        short: the caption of its column.
        fields: the fields it changes.
        effect: what it gains and costs.
    """

    label: str
    short: str
    fields: dict[str, object]
    effect: str


@dataclass(frozen=True, slots=True)
class RungResult:
    """The prediction for a rung: an ``estimate``, or a ``problem`` in a sentence."""

    rung: Rung
    estimate: Estimate | None = None
    problem: str = ""

    @property
    def needed(self) -> int:
        """Bytes at the peak; 0 if not known."""
        return (self.estimate.needed_bytes or 0) if self.estimate is not None else 0


_LOWER = (
    Rung(f"batch = {BATCH}", "start", {"batch": BATCH}, ""),
    Rung(f"batch = {SMALLER}", "batch", {"batch": SMALLER}, "a step learns from fewer samples"),
    Rung(
        f"accumulate = {BATCH // SMALLER}",
        "accumulate",
        {"accumulation": BATCH // SMALLER},
        f"a step learns from {BATCH} samples again; gradients stay between the parts",
    ),
)
_CHECKPOINT = Rung("checkpoint(layer)", "checkpoint", {"checkpointing": True}, "every layer is computed twice")

MODEL_RUNGS = (
    *_LOWER,
    Rung(
        "autocast(bfloat16)", "AMP", {"precision": "amp"}, "results take two bytes, copies of the weights come on top"
    ),
    _CHECKPOINT,
    Rung("AdamW8bit(...)", "8-bit", {"optimizer": "adamw8bit"}, "the optimizer's state takes one byte a value"),
    Rung(
        "save_on_cpu()", "offload", {"offload": "activations"}, "what the layers keep crosses the bus, there and back"
    ),
)
"""Rungs for a model that transformers builds."""

OWN_RUNGS = (
    *_LOWER,
    Rung(
        "autocast(bfloat16)", "AMP", {"precision": "bf16"}, "results take two bytes, copies of the weights come on top"
    ),
    _CHECKPOINT,
)
"""Rungs for a model in plain torch."""


def ladder() -> tuple[str, tuple[Rung, ...], tuple[Spec, ...]]:
    """The model in a few words, the rungs, and the spec to predict for each: its change and all those before it."""
    model = "GPT-2, 124 million weights"
    rungs: tuple[Rung, ...] = MODEL_RUNGS
    spec = _gpt2()
    if spec is None:
        model = "A transformer; 8-bit and offload need the transformers library"
        rungs = OWN_RUNGS
        spec = TrainingSpec.model_validate({"width": 768, "depth": 12, "sequence": 512, "steps": 3, "epochs": 1})
    specs: list[Spec] = []
    for rung in rungs:
        spec = type(spec).model_validate({**spec.model_dump(), **rung.fields})
        specs.append(spec)
    return model, rungs, tuple(specs)


def _gpt2() -> Spec | None:
    if find_spec("transformers") is None:
        return None
    return ModelSpec.model_validate({"path": str(find_model("gpt2")), "sequence": 512, "steps": 3})


def ladder_pictures(
    title: str, question: str, rungs: Sequence[Rung], results: Sequence[RungResult], model: str
) -> list[StagePicture]:
    """The rungs predicted so far, and the one being predicted."""
    corner = f"{format_bytes(CARD_BYTES)} simulated · predicted"
    pictures = []
    for at in range(len(results) + 1):
        known = results[:at]
        waits = at == len(results) and at < len(rungs)
        if at == len(results) + 1 or (at == len(results) and not waits):
            break
        if not waits:
            known = results[: at + 1]
        pictures.append(_picture(title, question or model, corner, rungs, known, waits=waits))
    return pictures


def _picture(
    title: str, question: str, corner: str, rungs: Sequence[Rung], known: Sequence[RungResult], *, waits: bool
) -> StagePicture:
    at = len(known) - 1 + waits
    code, columns = [], []
    for place, rung in enumerate(rungs):
        state = state_of(place, at)
        figure = ""
        blocks: tuple[StageBlock, ...] = ()
        over = False
        if place < len(known):
            found = known[place]
            blocks = _blocks(found)
            over = found.needed > CARD_BYTES
            # in one unit, so that rungs can be compared at a glance
            figure = f"{found.needed / GIB:.2f} GiB" if found.estimate is not None else "not predicted"
        text = rung.label
        code.append(CodeLine(str(place) if place else "", text, figure, state, over))
        total = in_unit(summed_bytes(blocks), GIB) if blocks else " "
        columns.append(StageColumn(rung.short, blocks, state, total, failed=over))
    tone: Tone = "plain"
    remark = ""
    if waits:
        sentence = predicting_text(at, 0)
    else:
        sentence, tone, remark = _sentence(known)
    largest: tuple[StageBlock, ...] = ()
    if known and not waits:
        largest = combined(_blocks(known[-1]))
    remark_of_chart = "every rung keeps the ones before"
    chart = StageChart("GPU MEMORY, predicted", tuple(columns), float(CARD_BYTES), remark_of_chart, reaches=REACHES)
    return StagePicture(
        title=title,
        question=question,
        corner=corner,
        code=tuple(code),
        blocks_title="AT THE PEAK, predicted",
        blocks=largest,
        chart=chart,
        sentence=sentence,
        remark=remark,
        tone=tone,
    )


def predicting_text(place: int, passed_s: int) -> str:
    """What is being predicted, and how far it has come.

    Args:
        place: of the rung, from 0.
        passed_s: whole seconds since it was asked for.
    """
    rungs = ladder()[1]
    text = f"Dry run of {rungs[place].label}"
    if place:
        text = f"Rung {place} of {len(rungs) - 1}: dry run of {rungs[place].label}"
    if passed_s:
        return f"{text}, {passed_s} s so far."
    return f"{text}…"


def state_of(place: int, at: int) -> ColumnState:
    """Whether a rung is done, current, or still to come."""
    if place < at:
        return "past"
    return "now" if place == at else "coming"


def _blocks(result: RungResult) -> tuple[StageBlock, ...]:
    """What a rung holds at its peak, the longest-lived at the bottom."""
    estimate = result.estimate
    if estimate is None:
        return ()
    found = [StageBlock(CONTEXT, float(estimate.overhead_bytes), CONTEXT)]
    found += [StageBlock(name, float(estimate.by_category.get(name, 0)), name) for name in BY_LIFE]
    rest = (estimate.needed_bytes or 0) - summed_bytes(found)
    found.append(StageBlock("idle", max(0.0, rest), "idle"))
    return tuple(block for block in found if block.bytes > 0)


def _sentence(known: Sequence[RungResult]) -> tuple[str, Tone, str]:
    result = known[-1]
    if result.estimate is None:
        return result.problem, "warn", ""
    spare = CARD_BYTES - result.needed
    remark = f"{format_bytes(spare)} spare" if spare >= 0 else f"{format_bytes(-spare)} short"
    tone: Tone = "good" if spare >= 0 else "wrong"
    if len(known) == 1:
        outcome = "does not fit" if spare < 0 else "fits"
        return f"{result.rung.label} needs {format_bytes(result.needed)}: it {outcome}.", tone, remark
    change = result.needed - known[-2].needed
    if known[-2].estimate is None:
        return f"{format_bytes(result.needed)} at the peak: {result.rung.effect}.", tone, remark
    if change < 0:
        return f"{format_bytes(-change)} less: {result.rung.effect}.", tone, remark
    return f"{format_bytes(change)} more: {result.rung.effect}.", tone, remark

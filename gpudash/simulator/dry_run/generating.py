"""Text that ``transformers`` generates in a dry run. It has the maximum length, because its end is unknown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpudash.simulator.faults import hands_on
from gpudash.simulator.replacing import Replacements

TO_THE_END = "no sequence ends before its longest, and beams are searched until then"

CRITERIA = "transformers.generation.stopping_criteria"
GENERATION = "transformers.generation.utils"

Note = Callable[[str], None]


@contextmanager
def generating_to_the_end(note: Note) -> Iterator[None]:
    """Prevent tokens that end a sequence, if ``transformers`` is imported.

    Args:
        note: called with a sentence without a full stop when this makes a difference.
    """
    # Looked up instead of imported: code that does not use transformers should not pay for it.
    criteria: Any = getattr(sys.modules.get(CRITERIA), "EosTokenCriteria", None)
    mixin: Any = getattr(sys.modules.get(GENERATION), "GenerationMixin", None)
    wanted = (
        (criteria, "__call__", _never_ending),
        (mixin, "_beam_search_has_unfinished_sequences", _searching_on),
        (mixin, "_update_finished_beams", _finishing_at_the_end),
    )
    with Replacements() as replaced:
        for owner, name, make in wanted:
            if owner and name in vars(owner):
                replaced.put(owner, name, make(vars(owner)[name], note))
        yield


def _never_ending(original: Callable[..., torch.Tensor], note: Note) -> Callable[..., torch.Tensor]:
    @hands_on
    def ended(*args: Any, **kwargs: Any) -> torch.Tensor:
        note(TO_THE_END)
        return torch.zeros_like(original(*args, **kwargs))  # zeros, whose numbers are known

    return ended


def _searching_on(original: staticmethod[..., torch.Tensor], note: Note) -> Any:
    """Search until every beam has ended, rather than until no beam can improve."""
    search_on = original.__func__

    @hands_on
    def unfinished(
        unsatisfied: torch.Tensor, finished: torch.Tensor, at_end: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        note(TO_THE_END)
        search_on(unsatisfied, finished, at_end, *args, **kwargs)
        return ~torch.all(at_end)

    return staticmethod(unfinished)


def _finishing_at_the_end(original: Callable[..., tuple[torch.Tensor, ...]], _note: Note) -> Any:
    """Finish with beams of maximum length, to which the result is cropped."""

    @hands_on
    def updated(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        sequences, scores, indices, *rest = original(*args, **kwargs)
        return sequences, scores, torch.zeros_like(indices), *rest

    return updated

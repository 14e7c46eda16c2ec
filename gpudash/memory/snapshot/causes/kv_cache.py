"""Keys and values of the tokens a decoder has seen fill the memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpudash.memory.explaining.memory_state import KV_CACHE
from gpudash.memory.explaining.wording import available
from gpudash.memory.snapshot.causes.activations import smaller_generation
from gpudash.memory.snapshot.causes.batch_size import Number, number_of, numbers_given
from gpudash.memory.snapshot.causes.case import BY_REPLAY, Case, Ints, ProgramCause
from gpudash.memory.snapshot.source_edits import method_of
from gpudash.telemetry.explanation import Remedy
from gpudash.units import format_bytes, format_count

SHARE_OF_LIVE = 0.3
"""Part of the live bytes that it must hold."""

SHARE_OF_TOKENS = 0.8
"""Part of the tokens that were reached which is said to fit: what comes after the loop needs room too."""

FEWEST_TOKENS = 8

NEW_TOKENS = "max_new_tokens"
ALL_TOKENS = "max_length"
"""Parameters of transformers' ``generate``: tokens without the prompt's, and with them."""

_NAMES = re.compile(r"(?i)\b(kv|k|v|key|keys|value|values|past|attn)_?(cache|past|key_values)s?\b|past_key")

_JOINED = re.compile(r"\b(cat|concat|concatenate)\(")
_PARTS = re.compile(r"(?i)\b(k|v|kv|keys?|values?|past|present)\b")


@dataclass(frozen=True)
class Tokens:
    """How far a cache has grown; 0 where that is not known.

    Attributes:
        written: tokens that the decoder has written.
        held: those of which the cache has keys and values: a prompt's too.
    """

    written: int
    held: int

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        # what writes the first token may make the cache without the line that makes it longer
        if self.held - self.written <= 1:
            return 0
        return self.held - self.written


def cache_of_keys_and_values(case: Case) -> ProgramCause | None:
    """A KV cache, by a library's code or by the names of the program's own."""
    lives = _cached(case)
    size = case.bytes_of(lives)
    if size < SHARE_OF_LIVE * case.live_bytes:
        return None
    tokens = _tokens(case, lives)
    seen = ""
    if tokens.held:
        seen = f" of {format_count(tokens.held)} tokens"
    text = f"The KV cache{seen} takes {format_bytes(size)}, and each further token makes it larger."
    return ProgramCause(text, tuple(_remedies(case, lives, size, tokens)))


def _cached(case: Case) -> Ints:
    stacks = case.lives.stack[case.alive]
    named = [stack for stack in np.unique(stacks).tolist() if _is_named(case, stack)]
    return np.unique(np.concatenate((case.of_category(KV_CACHE), case.alive[np.isin(stacks, named)])))


def _is_named(case: Case, stack: int) -> bool:
    """Whether the program's line of a stack names a cache, or makes keys or values longer with every token."""
    frames = []
    if stack >= 0:
        frames = case.own_frames[stack]
    if not frames:
        return False
    text = case.source(frames[0].file, frames[0].line)
    if _NAMES.search(text) is not None:
        return True
    # keys and values of a single pass are joined too: only a cache becomes longer with every token
    joins_parts = _JOINED.search(text) is not None and _PARTS.search(text) is not None
    return joins_parts and _lengths(case, stack) > FEWEST_TOKENS


def _lengths(case: Case, stack: int) -> int:
    """How many different sizes a stack has asked for."""
    return len(np.unique(case.lives.requested[case.lives.stack == stack]))


def _tokens(case: Case, lives: Ints) -> Tokens:
    """How far the cache has grown.

    The line that makes the cache longer asks for more with every token, and for as much in each layer: the least that
    it asks for more is what one token takes.
    """
    stacks = np.unique(case.lives.stack[lives]).tolist()
    sizes = max((np.unique(case.lives.requested[case.lives.stack == stack]) for stack in stacks), key=len)
    written = len(sizes)
    if written < FEWEST_TOKENS:
        return Tokens(0, 0)
    of_one = int(np.diff(sizes).min())
    return Tokens(written, max(written, int(sizes[-1]) // of_one))


def _remedies(case: Case, lives: Ints, size: int, tokens: Tokens) -> Iterator[Remedy]:
    fewer = _rounded(int(SHARE_OF_TOKENS * tokens.written))
    number = None
    if fewer:
        number = _limit(case, lives, tokens)
        prompt = 0
        text = f"at most {format_count(fewer)} tokens"
        if number is not None and number.counts_prompt:
            prompt = tokens.prompt
            text = f"at most {format_count(prompt + fewer)} tokens, the prompt's among them"
        place = ""
        patch = ""
        if number is not None:
            place = f"{number.place}: "
            patch = number.patch(prompt + fewer)
        saved = size * (tokens.written - fewer) // tokens.held
        yield Remedy(f"{place}{text}: {available(saved)} less", verified_by=BY_REPLAY, patch=patch)
    more = None
    if number is not None:
        last = number.value
        if not number.counts_prompt:
            last += tokens.held - tokens.written
        # joined to what is new a cache is there twice
        more = 2 * size * (last - tokens.held) // tokens.held
    yield from smaller_generation(case, lives, more)
    missing = case.found.missing_bytes
    for text, saved in (
        ("half as many sequences at a time", size // 2),
        ('the cache in 8 bits (transformers: cache_implementation="quantized")', size // 2),
        ('the cache in host memory, slower (transformers: cache_implementation="offloaded")', size),
    ):
        if saved >= missing:
            yield Remedy(f"{text}: up to {available(saved)} less at this moment")


def _rounded(tokens: int) -> int:
    """Two digits of a number, never more."""
    # of 1,234 the unit is 100, of a number of one or two digits 1
    unit = int("1".ljust(len(str(tokens)) - 1, "0"))
    return tokens // unit * unit


def _limit(case: Case, lives: Ints, tokens: Tokens) -> Number | None:
    """Where the program says how many tokens it writes."""
    for frame in case.frames(int(lives[-1])):
        file = case.file(frame.file)
        for node in file.path(frame.line):
            if isinstance(node, ast.For) and method_of(node.iter) == "range":
                assert isinstance(node.iter, ast.Call)
                # range(end), range(begin, end) or range(begin, end, step)
                end = node.iter.args[-1]
                if len(node.iter.args) == 3:
                    end = node.iter.args[1]
                number = number_of(file, end)
                if number is not None and number.value >= tokens.written:
                    return number
    for number in numbers_given(case, NEW_TOKENS):
        if number.value >= tokens.written:
            return number
    for number in numbers_given(case, ALL_TOKENS):
        if number.value >= tokens.held:
            return replace(number, counts_prompt=True)
    return None

"""Keys and values of the tokens a decoder has seen fill the memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from gpudash.memory.explaining.memory_state import KV_CACHE
from gpudash.memory.explaining.wording import available
from gpudash.memory.snapshot.causes.case import BY_REPLAY, Case, Ints, ProgramCause
from gpudash.memory.snapshot.source_edits import Loop, SourceFile, keyword_of, method_of
from gpudash.telemetry.explanation import Remedy, short
from gpudash.units import format_bytes, format_count

SHARE_OF_LIVE = 0.3
"""Part of the live bytes that it must hold."""

SHARE_OF_TOKENS = 0.8
"""Part of the tokens that were reached which is said to fit: what comes after the loop needs room too."""

FEWEST_TOKENS = 8

_NAMES = re.compile(r"(?i)\b(kv|k|v|key|keys|value|values|past|attn)_?(cache|past|key_values)s?\b|past_key")

_JOINED = re.compile(r"\b(cat|concat|concatenate)\(")
_PARTS = re.compile(r"(?i)\b(k|v|kv|keys?|values?|past|present)\b")


def cache_of_keys_and_values(case: Case) -> ProgramCause | None:
    """A KV cache, by a library's code or by the names of the program's own."""
    lives = _cached(case)
    size = case.bytes_of(lives)
    if size < SHARE_OF_LIVE * case.live_bytes:
        return None
    tokens = _tokens(case, lives)
    seen = ""
    if tokens:
        seen = f" of {format_count(tokens)} tokens"
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


def _tokens(case: Case, lives: Ints) -> int:
    """How many tokens were written; 0 where that is not known.

    The line that makes the cache longer asks for more with every token, and for as much in each layer.
    """
    stacks = np.unique(case.lives.stack[lives])
    tokens = max(_lengths(case, stack) for stack in stacks.tolist())
    if tokens >= FEWEST_TOKENS:
        return tokens
    return 0


def _remedies(case: Case, lives: Ints, size: int, tokens: int) -> Iterator[Remedy]:
    fewer = _rounded(int(SHARE_OF_TOKENS * tokens))
    if tokens and fewer:
        where, patch = _bounded(case, lives, tokens, fewer)
        share = fewer / tokens
        yield Remedy(
            f"{where}at most {format_count(fewer)} tokens: {available(int(size * (1 - share)))} less",
            verified_by=BY_REPLAY,
            patch=patch,
        )
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


def _bounded(case: Case, lives: Ints, tokens: int, fewer: int) -> tuple[str, str]:
    """Where the number of tokens stands in the program, and the diff that makes it smaller."""
    for frame in case.frames(int(lives[-1])):
        file = case.file(frame.file)
        for node in file.path(frame.line):
            if isinstance(node, ast.For) and method_of(node.iter) == "range":
                assert isinstance(node.iter, ast.Call)
                # range(end), range(begin, end) or range(begin, end, step)
                end = node.iter.args[-1]
                if len(node.iter.args) == 3:
                    end = node.iter.args[1]
                changed = _number(file, end, tokens, fewer)
                if changed is not None:
                    return f"{short(file.file)}:{changed[0]}: ", file.patch({changed[0]: (changed[1],)})
        statement = file.statement(frame.line)
        if statement is None or isinstance(statement, Loop):
            continue
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call):
                continue
            for name in ("max_new_tokens", "max_length"):
                value = keyword_of(call, name)
                changed = None
                if value is not None:
                    changed = _number(file, value, tokens, fewer)
                if changed is not None:
                    return f"{short(file.file)}:{changed[0]}: ", file.patch({changed[0]: (changed[1],)})
    return "", ""


def _number(file: SourceFile, value: ast.expr, tokens: int, fewer: int) -> tuple[int, str] | None:
    """The line that holds a number of tokens, with a smaller one: itself, or where a name is given it."""
    if isinstance(value, ast.Name):
        given = [node for node in file.nodes() if isinstance(node, ast.Assign) and _is_named_by(node, value.id)]
        if len(given) == 1:
            value = given[0].value
    if not isinstance(value, ast.Constant) or not isinstance(value.value, int) or value.value < tokens:
        return None
    return file.replaced(value, str(fewer))


def _is_named_by(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)

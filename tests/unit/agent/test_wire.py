"""Messages as bytes and back, in pieces of any size."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.agent import wire
from gpudash.agent.wire import MOST_BYTES, Decoder, WireError, encode, number_in

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
MESSAGES = st.dictionaries(st.text(), VALUES).map(lambda found: {**found, "type": "told"})


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 50))
def test_messages_come_out_as_they_went_in_whatever_the_pieces(messages: list[dict[str, Any]], piece: int) -> None:
    data = b"".join(map(encode, messages))
    decoder, found = Decoder(), []
    for start in range(0, len(data), piece):
        found += decoder.feed(data[start : start + piece])
    assert found == messages


@given(MESSAGES)
def test_the_bytes_are_a_length_and_the_json_that_the_standard_library_writes(message: dict[str, Any]) -> None:
    body = json.dumps(message, separators=(",", ":")).encode()
    assert encode(message) == struct.pack(">I", len(body)) + body


@given(st.binary())
def test_anything_else_is_refused_or_incomplete(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert all(isinstance(one["type"], str) for one in Decoder().feed(data))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (struct.pack(">I", MOST_BYTES + 1), "longer than the 8,388,608 that are taken"),
        (struct.pack(">I", 3) + b"{x}", "is not JSON"),
        (struct.pack(">I", 200_000) + b"[" * 200_000, "is not JSON"),
        (struct.pack(">I", 2) + b"{}", "no object with a type"),
        (struct.pack(">I", 2) + b"[]", "no object with a type"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        Decoder().feed(data)


def test_a_loss_that_is_no_number_and_a_name_that_is_no_text_arrive() -> None:
    (found,) = Decoder().feed(encode({"type": "steps", "loss": math.nan, "file": "\udcff.py"}))
    assert math.isnan(found["loss"]) and found["file"] == "\udcff.py"


def test_a_message_that_is_too_long_or_cannot_be_written_is_refused() -> None:
    with pytest.raises(WireError, match="longer than the"):
        encode({"type": "x" * MOST_BYTES})
    with pytest.raises(TypeError, match="not JSON serializable"):
        encode({"type": object()})


def test_without_the_accelerated_writer_the_standard_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "_json", None)
    assert wire._writer()({"type": "a", "b": [1, None]}) == '{"type":"a","b":[1,null]}'


@pytest.mark.parametrize(
    ("field", "number"), [(3, 3.0), (0.5, 0.5), (True, None), ("3", None), (None, None), ([1], None)]
)
def test_a_field_holds_a_number_or_nothing(field: object, number: float | None) -> None:
    assert number_in(field) == number

"""Reading ``PYTORCH_CUDA_ALLOC_CONF``: what torch accepts and what it refuses; and what is added to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudash.memory.allocator import AllocatorSettings
from gpudash.memory.allocator.settings import EXPANDABLE, VARIABLES, allocator_text, assignment
from gpudash.units import MIB


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("", {}),
        ("max_split_size_mb:20", {"max_split_size": 20 * MIB}),
        ("max_split_size_mb: 128", {"max_split_size": 128 * MIB}),
        ("max_split_size_mb:-1", {"max_split_size": None}),
        ("max_split_size_mb:100,", {"max_split_size": 100 * MIB}),
        ("max_non_split_rounding_mb:64", {"max_non_split_rounding": 64 * MIB}),
        ("garbage_collection_threshold:0.8", {"garbage_collection_threshold": 0.8}),
        ("expandable_segments:True", {"expandable_segments": True}),
        ("expandable_segments:False", {"expandable_segments": False}),
        ("per_process_memory_fraction:0.5", {"per_process_memory_fraction": 0.5}),
        ("large_segment_size_mb:12,max_split_size_mb:12", {"large_segment_size": 12 * MIB, "max_split_size": 12 * MIB}),
        ("large_segment_size_mb:64", {"large_segment_size": 64 * MIB, "max_non_split_rounding": 64 * MIB}),
        (
            "expandable_segments:True, max_split_size_mb:64",
            {"expandable_segments": True, "max_split_size": 64 * MIB},
        ),
        ("backend:native,pinned_use_background_threads:True", {"max_split_size": None}),
    ],
)
def test_what_torch_accepts_is_read(text: str, attributes: dict[str, object]) -> None:
    found = AllocatorSettings.parse(text)
    assert {name: getattr(found, name) for name in attributes} == attributes


def test_keys_without_effect_on_device_memory_are_kept_apart() -> None:
    found = AllocatorSettings.parse("backend:native,throw_on_cudamalloc_oom:True,expandable_segments:True")
    assert dict(found.ignored) == {"backend": "native", "throw_on_cudamalloc_oom": "True"}
    assert found.expandable_segments


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        ("roundup_power2_divisions:4", {1: 4, 64: 4, 32768: 4}),
        (
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
            {1: 1, 256: 1, 512: 2, 1024: 4, 2048: 8, 32768: 8},
        ),
        ("roundup_power2_divisions:[64:2]", {1: 2, 32: 2, 64: 2, 128: 0, 32768: 0}),
        ("roundup_power2_divisions:[64:8,256:4,>:1]", {1: 8, 64: 8, 128: 0, 256: 4, 512: 1, 32768: 1}),
        ("roundup_power2_divisions:[>:2]", {1: 0, 2: 2, 32768: 2}),
        ("roundup_power2_divisions:[65536:4]", {1: 4, 16384: 4, 32768: 4}),
        ("roundup_power2_divisions:[]", {1: 0, 32768: 0}),
    ],
)
def test_divisions_are_read_by_interval(text: str, divisions: dict[int, int]) -> None:
    found = AllocatorSettings.parse(text).divisions()
    assert {interval: found[interval.bit_length() - 1] for interval in divisions} == divisions


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:19",
        "max_split_size_mb:abc",
        "max_split_size_mb",
        "max_split_size_mb:",
        "max_split_size_mb=64",
        "max_split_size_mb:100,,",
        "max_split_size_mb:99999999999999999999999",
        "max_split_size_mb:64 expandable_segments:True",
        "max_non_split_rounding_mb:10",
        "large_segment_size_mb:10",
        "large_segment_size_mb:64,max_split_size_mb:32",
        "max_split_size_mb:32,large_segment_size_mb:64",
        "large_segment_size_mb:64,max_non_split_rounding_mb:32",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:1",
        "garbage_collection_threshold:x",
        "garbage_collection_threshold:nan",
        "per_process_memory_fraction:1.5",
        "expandable_segments:true",
        "expandable_segments:1",
        "expandable_segments:True;max_split_size_mb:64",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:[256:3]",
        "roundup_power2_divisions:[255:2]",
        "roundup_power2_divisions:[0:4]",
        "roundup_power2_divisions:[256]",
        "roundup_power2_divisions:[256:1,512:2",
        "MAX_SPLIT_SIZE_MB:64",
        "foo:1",
        "foo",
    ],
)
def test_what_torch_refuses_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+\.$"):
        AllocatorSettings.parse(text)


@given(st.text(alphabet="max_split_size_mb:[]>,0123456789.TrueFalse expandable_segments", max_size=60))
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    try:
        AllocatorSettings.parse(text)
    except ValueError as error:
        sentence = str(error)
        assert sentence.endswith(".") and "\n" not in sentence


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("unset")
def test_without_settings_the_variable_is_the_one_every_torch_reads() -> None:
    assert allocator_text() == ""
    assert assignment(EXPANDABLE) == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.mark.usefixtures("unset")
def test_the_variable_that_torch_prefers_is_the_one_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2,>:8], expandable_segments:False")
    told = "PYTORCH_ALLOC_CONF='roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True'"
    assert assignment(EXPANDABLE) == told

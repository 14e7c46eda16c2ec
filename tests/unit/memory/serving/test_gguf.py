"""A GGUF file is read by its header, and lies on a card as llama.cpp lays it out."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from gpudash.memory.serving.gguf import MOST_HEADER, read_gguf
from gpudash.memory.serving.llama_cpp import LlamaFlags, LlamaModel
from tests.unit.memory.serving import gguf_files
from tests.unit.memory.serving.gguf_files import header, text

MIB = 2**20


def opened(tmp_path: Path, model: Any) -> LlamaModel:
    file = tmp_path / "model.gguf"
    file.write_bytes(header(*model))
    return LlamaModel(read_gguf(file))


@pytest.mark.parametrize(
    ("model", "context", "cache", "mib"),
    [
        # "llama_kv_cache: size =" of servers' logs
        (gguf_files.QWEN3_14B, 16384, "f16", 2560),
        (gguf_files.QWEN3_8B, 40960, "f16", 5760),
        (gguf_files.QWEN2_5_3B, 16384, "f16", 576),
        (gguf_files.LLAMA_3_2_3B, 4096, "f16", 448),
        (gguf_files.LLAMA_3_2_3B, 4096, "q8_0", 2 * 119),
        (gguf_files.LLAMA_3_2_3B, 4096, "q4_0", 2 * 63),
        (gguf_files.LLAMA_3_2_3B, 4096, "q5_1", 2 * 84),
    ],
)
def test_the_kv_cache_is_the_one_that_was_logged(
    tmp_path: Path, model: Any, context: int, cache: str, mib: int
) -> None:
    service = opened(tmp_path, model).on(2**40, LlamaFlags(context=context, cache_type=cache))
    assert service.kv_bytes == mib * MIB


@pytest.mark.parametrize(("model", "mib"), [(gguf_files.LLAMA_3_8B, 258.5), (gguf_files.QWEN2_5_7B, 304.0)])
def test_the_compute_buffer_holds_the_logits_of_a_ubatch(tmp_path: Path, model: Any, mib: float) -> None:
    assert opened(tmp_path, model).on(2**40, LlamaFlags()).compute_bytes == mib * MIB


def test_layers_with_a_window_keep_it_and_a_ubatch(tmp_path: Path) -> None:
    service = opened(tmp_path, gguf_files.GEMMA_3_4B).on(2**40, LlamaFlags(context=32768))
    # 5 of 34 layers see everything, 29 have 1024 + 512 cells; 4 heads of 256, keys and values, in 2 bytes
    assert service.kv_bytes == (5 * 32768 + 29 * 1536) * 4 * 256 * 2 * 2


def test_layers_that_stay_with_the_host_keep_weights_and_cache_there(tmp_path: Path) -> None:
    model = opened(tmp_path, gguf_files.LLAMA_3_8B)
    whole = model.on(2**40, LlamaFlags())
    half = model.on(2**40, LlamaFlags(gpu_layers=16))
    none = model.on(2**40, LlamaFlags(gpu_layers=0))
    assert whole.host_weights_bytes == 4096 * 128256 // 256 * 144  # the embedding
    assert half.kv_bytes == half.host_kv_bytes == whole.kv_bytes // 2
    assert half.weights_bytes + half.host_weights_bytes == whole.weights_bytes + whole.host_weights_bytes
    assert none.card_bytes == 0


def test_a_tied_output_is_a_second_copy_of_the_embedding(tmp_path: Path) -> None:
    metadata, tensors = gguf_files.LLAMA_3_2_3B
    tied = opened(tmp_path, (metadata, tensors[:-1])).on(2**40, LlamaFlags())
    layers = opened(tmp_path, (metadata, tensors[:-1])).on(2**40, LlamaFlags(gpu_layers=28))
    assert tied.weights_bytes - layers.weights_bytes == 3072 * 128256 // 256 * 144 + 4 * 3072


def test_a_recurrent_layer_keeps_one_state(tmp_path: Path) -> None:
    state = {"ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.group_count": 16, "ssm.conv_kernel": 4}
    metadata, tensors = gguf_files.model("qwen35", 32, 2560, 16, 4, 1000, 9216, head=256, **state)
    tensors = [one for one in tensors if "attn" not in one[0] or (int(one[0].split(".")[1]) + 1) % 4 == 0]
    tensors += [(f"blk.{place}.ssm_conv1d.weight", (4, 8192), 0) for place in range(32) if (place + 1) % 4]
    service = opened(tmp_path, (metadata, tensors)).on(2**40, LlamaFlags(context=131072))
    # 4,096 MiB of eight layers as logged, and about 50 MiB of states
    assert service.kv_bytes / MIB == pytest.approx(4096 + 50.25, abs=0.1)


def test_what_has_room_is_found(tmp_path: Path) -> None:
    model = opened(tmp_path, gguf_files.LLAMA_3_8B)
    flags = LlamaFlags(context=8192)
    card = 4 * 2**30
    most = model.most_layers(card, flags)
    assert 0 < most < 33
    assert model.on(card, LlamaFlags(gpu_layers=most, context=8192)).fits
    assert not model.on(card, LlamaFlags(gpu_layers=most + 1, context=8192)).fits
    longest = model.longest_context(8 * 2**30, LlamaFlags())
    assert model.on(8 * 2**30, LlamaFlags(context=longest)).fits and longest % 256 == 0


def test_a_model_in_several_files_is_read_with_all_of_them(tmp_path: Path) -> None:
    metadata, tensors = gguf_files.LLAMA_3_2_3B
    first, second = (tmp_path / f"m-0000{place}-of-00002.gguf" for place in (1, 2))
    first.write_bytes(header({**metadata, "split.count": 2}, tensors[:50]))
    with pytest.raises(ValueError, match=r"one of 2 parts, and m-00002-of-00002\.gguf is not there"):
        read_gguf(first)
    second.write_bytes(header({"split.count": 2}, tensors[50:]))
    assert len(read_gguf(first).tensors) == len(tensors)


HOSTILE = {
    "empty": b"",
    "other": b"PK\x03\x04" + bytes(64),
    "first version": b"GGUF" + struct.pack("<IQQ", 1, 1, 1),
    "tensors without end": b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0),
    "entries without end": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1),
    "a string of 4 GiB": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**32),
    "an array of 2^62": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, 2**62),
    "strings of 2^62": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 2**62),
    "an array of arrays": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(64),
    "a large tensor": header({}, [("token_embd.weight", (2**40, 2**40), 0)]),
    "many sides": header({}, [("token_embd.weight", (1,) * 9, 0)]),
    "a type there is not": header({}, [("token_embd.weight", (1,), 200)]),
    "no tensors": header(gguf_files.LLAMA_3_8B[0], []),
    "many layers": header({**gguf_files.LLAMA_3_8B[0], "llama.block_count": 2**31}, gguf_files.LLAMA_3_8B[1]),
    "no heads": header({**gguf_files.LLAMA_3_8B[0], "llama.attention.head_count": 0}, [("a", (2,), 0)]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_lies_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(HOSTILE[name])
    with pytest.raises(ValueError, match=r"GGUF") as refused:
        LlamaModel(read_gguf(file))
    assert "\n" not in str(refused.value)


def test_a_file_of_any_size_takes_bounded_memory(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with file.open("wb") as opened:
        opened.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 0, 2**39))
        opened.truncate(2**40)
    tracemalloc.start()
    with pytest.raises(ValueError, match="cut off"):
        read_gguf(file)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MOST_HEADER + 8 * MIB


def test_whatever_the_bytes_a_model_or_one_sentence_comes_out(tmp_path: Path) -> None:
    chance = random.Random(28)
    whole = header(*gguf_files.model("llama", 2, 64, 4, 2, 96, 128))
    file = tmp_path / "model.gguf"
    for _ in range(500):
        data = bytearray(whole)
        for _change in range(chance.randint(1, 8)):
            place = chance.randrange(len(data))
            data[place : place + chance.choice((1, 4, 8))] = chance.choice(
                (b"\xff" * 8, b"\0" * 4, chance.randbytes(4))
            )
        file.write_bytes(data[: chance.choice((len(data), chance.randrange(len(data))))])
        assert "\n" not in outcome(file)


def outcome(file: Path) -> str:
    """What is said of a file that can be read, or why it cannot."""
    try:
        model = LlamaModel(read_gguf(file))
        most = model.most_layers(2**34, LlamaFlags(context=4096))
    except ValueError as error:
        return str(error)
    return f"{most} layers"

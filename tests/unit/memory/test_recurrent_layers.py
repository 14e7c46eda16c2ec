"""cuDNN's own answers, asked of 9.19 and of 9.20 without a GPU; the first is also what an H100 was seen to take."""

from __future__ import annotations

import pytest

from gpudash.memory.predicting.architecture import Architecture
from gpudash.memory.predicting.recurrent_layers import (
    RecurrentCell,
    RecurrentLayers,
    Sequences,
    algorithm,
    dropout_state_bytes,
    kept_bytes,
    working_bytes,
)

MULTIPROCESSORS = {(7, 5): 40, (8, 0): 108, (8, 6): 82, (9, 0): 132, (10, 0): 148, (12, 0): 170}

ANSWERS: list[tuple[RecurrentLayers, Sequences, tuple[int, int], int, int, int]] = [
    (RecurrentLayers(RecurrentCell.LSTM, 128, 256), Sequences(32, 16, 512), (9, 0), 13009280, 13009280, 2621696),
    (
        RecurrentLayers(RecurrentCell.LSTM, 77, 201, layers=3),
        Sequences(37, 5, 185),
        (9, 0),
        29567232,
        29567232,
        2528896,
    ),
    (RecurrentLayers(RecurrentCell.LSTM, 77, 201, layers=3), Sequences(37, 5, 185), (8, 0), 4401408, 4401408, 2528896),
    (
        RecurrentLayers(RecurrentCell.LSTM, 64, 300, layers=2, dropout=True),
        Sequences(150, 20, 3000),
        (7, 5),
        44252832,
        44252832,
        39712768,
    ),
    (
        RecurrentLayers(RecurrentCell.LSTM, 64, 300, layers=2, dropout=True),
        Sequences(150, 20, 3000),
        (8, 6),
        27475616,
        27475616,
        39712768,
    ),
    (
        RecurrentLayers(RecurrentCell.LSTM, 128, 64, directions=2),
        Sequences(20, 8, 160),
        (8, 0),
        18518336,
        18518336,
        409856,
    ),
    (
        RecurrentLayers(RecurrentCell.LSTM, 100, 96, projection=10, layers=2, directions=2, dropout=True),
        Sequences(9, 3, 27),
        (12, 0),
        34205344,
        34205344,
        274336,
    ),
    (
        RecurrentLayers(RecurrentCell.LSTM, 128, 512, itemsize=2),
        Sequences(4, 8, 32),
        (9, 0),
        13885760,
        13885760,
        164096,
    ),
    (
        RecurrentLayers(RecurrentCell.LSTM, 128, 512, itemsize=2),
        Sequences(4, 8, 32),
        (10, 0),
        11264320,
        11264320,
        164096,
    ),
    (
        RecurrentLayers(RecurrentCell.GRU, 123, 320, layers=4),
        Sequences(250, 100, 25000),
        (9, 0),
        185489408,
        185489408,
        864000256,
    ),
    (
        RecurrentLayers(RecurrentCell.GRU, 40, 130, layers=2, directions=2, itemsize=8),
        Sequences(11, 7, 77),
        (8, 0),
        38263232,
        38263232,
        2082336,
    ),
    (RecurrentLayers(RecurrentCell.GRU, 30, 90), Sequences(300, 1, 300), (9, 0), 10536768, 10536768, 648256),
    (
        RecurrentLayers(RecurrentCell.TANH, 50, 300, layers=2, directions=2),
        Sequences(13, 33, 429),
        (9, 0),
        48646240,
        44013024,
        3089056,
    ),
    (
        RecurrentLayers(RecurrentCell.RELU, 640, 700, layers=5, itemsize=2),
        Sequences(130, 90, 11700),
        (9, 0),
        139950112,
        139950112,
        147420256,
    ),
    (
        RecurrentLayers(RecurrentCell.LSTM, 80, 256, layers=2),
        Sequences(20, 5, 60, packed=True),
        (9, 0),
        20558080,
        20558080,
        676096,
    ),
    (
        RecurrentLayers(RecurrentCell.GRU, 80, 256, layers=2, dropout=True),
        Sequences(20, 5, 60, packed=True),
        (9, 0),
        19659008,
        19659008,
        802176,
    ),
]
"""The workspaces of a forward and of a backward pass, and what is kept between them, in bytes."""


@pytest.mark.parametrize(("layers", "given", "capability", "forward", "backward", "kept"), ANSWERS)
def test_recurrent_layers_take_what_cudnn_says(
    layers: RecurrentLayers, given: Sequences, capability: tuple[int, int], forward: int, backward: int, kept: int
) -> None:
    card = Architecture(capability, MULTIPROCESSORS[capability])
    asked = [algorithm(layers, given, card, forward=is_forward) for is_forward in (True, False)]
    assert [working_bytes(layers, given, chosen, capability) for chosen in asked] == [forward, backward]
    assert kept_bytes(layers, given) == kept


def test_the_state_for_dropout_grows_with_the_card() -> None:
    assert dropout_state_bytes(Architecture((9, 0), 132)) == 6_488_064

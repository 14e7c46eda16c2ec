"""What cuDNN's recurrent layers take for themselves: working memory for a call, and what a forward pass keeps.

The formulas were asked of cuDNN 9.19 and 9.20 themselves, which tell them without a GPU: they give cuDNN's
figures to the byte in tens of thousands of layers drawn at random, and an H100's LSTM's. The algorithm is the one that
torch asks for (``get_algo`` of aten/src/ATen/native/cudnn/RNN.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gpudash.memory.predicting.architecture import Architecture

ALIGNED_TO = 32
"""Bytes to which cuDNN rounds each part of its memory."""

STREAM_BYTES = 8 * 1024**2
"""Working memory of the matrix products of one layer and direction."""

STATE_OF_A_THREAD = 24
"""Bytes of the generator for dropout for each thread that a GPU can run at once."""

_PERSISTENT_ROWS = 2432
"""Rows that persistent kernels keep besides the batch's."""


class RecurrentCell(IntEnum):
    """``cudnnRNNMode_t``."""

    RELU = 0
    TANH = 1
    LSTM = 2
    GRU = 3

    @property
    def gates(self) -> int:
        """Matrices of a kind in a layer and direction."""
        if self is RecurrentCell.LSTM:
            return 4
        if self is RecurrentCell.GRU:
            return 3
        return 1


class Algorithm(IntEnum):
    """``cudnnRNNAlgo_t``."""

    STANDARD = 0
    PERSISTENT = 1
    PERSISTENT_SMALL = 3


@dataclass(frozen=True)
class RecurrentLayers:
    """A recurrent network as it is described to cuDNN.

    Attributes:
        cell: what it computes at each step.
        inputs: numbers of a step of a sequence.
        hidden: numbers of its state.
        projection: to how many an LSTM's are brought down, 0 where they are not.
        layers: one above the other.
        directions: 1, or 2 where every layer also reads backwards.
        itemsize: bytes of a number: 2, 4 or 8.
        dropout: whether some is done between layers.
        is_bfloat16: whether the numbers are, for which cuDNN has the standard algorithm alone.
    """

    cell: RecurrentCell
    inputs: int
    hidden: int
    projection: int = 0
    layers: int = 1
    directions: int = 1
    itemsize: int = 4
    dropout: bool = False
    is_bfloat16: bool = False

    @property
    def outputs(self) -> int:
        """Numbers of a step of one direction's result."""
        return self.projection or self.hidden

    def matrices(self) -> int:
        """Numbers of all matrices, without biases."""
        gates = self.cell.gates
        width = self.outputs
        # of each layer and direction one matrix for its input and one for its state: the first layer reads the
        # inputs, every other one the results of all directions of the layer below
        inner = self.inputs + (self.layers - 1) * self.directions * width + self.layers * width
        return self.directions * (gates * self.hidden * inner + self.layers * self.projection * self.hidden)


@dataclass(frozen=True)
class Sequences:
    """What a recurrent network is given.

    Attributes:
        steps: of the longest sequence.
        batch: sequences.
        rows: steps of all sequences together.
        packed: whether they lie without padding.
    """

    steps: int
    batch: int
    rows: int
    packed: bool = False


def algorithm(layers: RecurrentLayers, given: Sequences, architecture: Architecture, *, forward: bool) -> Algorithm:
    """The one that torch asks of cuDNN, which may be another one for the backward pass."""
    if layers.projection or given.packed or layers.itemsize == 8:
        return Algorithm.STANDARD
    is_gated = layers.cell in (RecurrentCell.LSTM, RecurrentCell.GRU)
    widest = {(True, True): 192, (True, False): 128, (False, True): 384, (False, False): 256}[is_gated, forward]
    # how wide the persistent kernels of small states go: by whether the cell has gates, and by the direction
    if layers.hidden <= widest:
        return Algorithm.PERSISTENT_SMALL
    if layers.itemsize == 2 and not layers.is_bfloat16 and _suits_persistence(layers, given.batch, architecture):
        return Algorithm.PERSISTENT
    return Algorithm.STANDARD


def _suits_persistence(layers: RecurrentLayers, batch: int, architecture: Architecture) -> bool:
    major, minor = architecture.capability
    if layers.layers > 1 or layers.directions > 1 or layers.hidden > 1024 or layers.hidden % 128 or layers.inputs % 128:
        return False
    if major < 8 or architecture.multiprocessors < 98 or minor == 6 or layers.cell is RecurrentCell.GRU:
        return False
    few = batch % 8 == 0 and batch <= 128
    return few and (layers.cell is RecurrentCell.LSTM or batch < 96 or layers.hidden < 896)


def working_bytes(
    layers: RecurrentLayers, given: Sequences, chosen: Algorithm, capability: tuple[int, int] = (8, 0)
) -> int:
    """The workspace of a call, for a forward or backward pass, which is the same for both."""
    parts = _Parts(layers, given)
    if layers.is_bfloat16 or (chosen is Algorithm.PERSISTENT and capability >= (10, 0)):
        chosen = Algorithm.STANDARD
    persists = chosen is not Algorithm.STANDARD
    is_one_stream = capability[0] == 8 and layers.directions == 1 and layers.layers > 1
    if is_one_stream:
        streams = 0
    else:
        streams = layers.layers * layers.directions * STREAM_BYTES
    if given.packed:
        lengths = 0
    else:
        lengths = 2 * _rounded(4 * given.batch, 16)
    # one size serves either pass, so that the larger one counts
    rows = max(parts.of_a_forward_pass(persists), parts.of_a_backward_pass(persists, chosen, capability))
    return streams + 256 + lengths + rows + parts.bytes_of(layers.matrices())


def kept_bytes(layers: RecurrentLayers, given: Sequences) -> int:
    """What a forward pass keeps for the backward pass: cuDNN's reserve space."""
    parts = _Parts(layers, given)
    state = layers.directions * given.rows * layers.hidden
    between = layers.layers - 1
    if layers.cell is RecurrentCell.LSTM:
        kept = parts.bytes_of(4 * state * layers.layers) + parts.bytes_of(state * layers.layers)
        if layers.projection:
            projected = layers.directions * given.rows * layers.projection
            kept += parts.bytes_of(state * layers.layers) + parts.bytes_of(projected * layers.layers)
    else:
        times = 1
        if layers.cell is RecurrentCell.GRU:
            times = 6
        kept = parts.bytes_of(times * state * layers.layers)
    masks = 0
    if layers.dropout:
        # one bit for each number that is dropped or not, between two layers
        bits = layers.directions * given.steps * given.batch * layers.outputs
        masks = layers.directions * between * _rounded(-(-bits // 8), ALIGNED_TO)
    return 256 + kept + parts.bytes_of(between * state) + masks


def dropout_state_bytes(architecture: Architecture) -> int:
    """The state of cuDNN's generator for dropout, of which there is one for each GPU."""
    return architecture.multiprocessors * architecture.threads_per_multiprocessor * STATE_OF_A_THREAD


class _Parts:
    """Sums of the parts of a workspace, each of which is rounded: in bytes, of sizes in numbers."""

    def __init__(self, layers: RecurrentLayers, given: Sequences) -> None:
        self._layers = layers
        self._given = given
        self._both = layers.directions == 2
        self._states = layers.layers * layers.directions * given.batch

    def bytes_of(self, numbers: int) -> int:
        return _rounded(numbers * self._layers.itemsize, ALIGNED_TO)

    def of_a_forward_pass(self, persists: bool) -> int:
        layers = self._layers
        size = self.bytes_of
        gates = layers.cell.gates
        rows = self._given.rows
        wide = rows * layers.hidden
        taken = self._unpacked(1) + self._of_states(persists, gates)
        if self._both:
            taken += size(2 * gates * wide) + size(4 * wide)
        else:
            # of one direction the gates of 256 steps at most, unless the kernel stays for all of them
            at_once = min(rows, 256 * self._given.batch)
            if persists:
                at_once = rows
            taken += size(gates * at_once * layers.hidden)
            if layers.dropout:
                taken += size(wide)
        if layers.projection:
            taken += size(layers.directions * wide)
        if persists and layers.cell is RecurrentCell.LSTM:
            taken += size(16 * wide)
        return taken

    def of_a_backward_pass(self, persists: bool, chosen: Algorithm, capability: tuple[int, int]) -> int:
        layers = self._layers
        size = self.bytes_of
        rows = self._given.rows
        widest = max(layers.inputs, layers.hidden)
        wide = rows * layers.hidden
        taken = self._unpacked(2) + self._of_states(persists, 1)
        if self._both:
            taken += size(4 * rows * widest) + size(2 * min(layers.layers, 2) * wide)
        else:
            taken += size(rows * widest)
            if persists:
                taken += size(min(layers.layers, 2) * wide)
            elif layers.layers == 1:
                taken += size(wide)
            else:
                taken += size(min(rows, self._wave(capability)) * layers.hidden)
        if layers.projection:
            taken += size(layers.directions * wide)
        if persists:
            least = 0
            if chosen is Algorithm.PERSISTENT:
                least = (_PERSISTENT_ROWS + self._given.batch) * layers.hidden
            kept = {RecurrentCell.LSTM: 4, RecurrentCell.GRU: 6}.get(layers.cell, 1)
            taken += size(max(8 * wide, least)) + size(kept * wide)
        return taken

    def _unpacked(self, times: int) -> int:
        """Padded sequences and their states without the padding: input and result, and with gradients these too."""
        if self._given.packed:
            return 0
        layers = self._layers
        size = self.bytes_of
        rows = self._given.rows
        taken = times * (size(rows * layers.inputs) + size(layers.directions * rows * layers.outputs))
        taken += 2 * times * size(self._states * layers.outputs)
        # an LSTM has two states, of which only the one that is its result is projected
        if layers.cell is RecurrentCell.LSTM:
            taken += 2 * times * size(self._states * layers.hidden)
        return taken

    def _of_states(self, persists: bool, gates: int) -> int:
        layers = self._layers
        size = self.bytes_of
        states = layers.layers * self._given.batch * layers.hidden
        if persists:
            taken = size(2 * states)
        else:
            taken = size(gates * self._states * layers.hidden)
        if layers.cell is RecurrentCell.LSTM:
            taken += size(2 * self._states * layers.hidden)
        if self._both:
            taken += size(4 * states)
        return taken

    def _wave(self, capability: tuple[int, int]) -> int:
        """Rows that several layers work on at once: some steps of each, fewer where many sequences fill the GPU."""
        batch = self._given.batch
        if batch <= 16:
            if batch == 1:
                steps = 32
            elif batch <= 8:
                steps = 16
            else:
                steps = 8
        elif self._given.steps >= 128 and capability >= (8, 0):
            steps = 8
        else:
            steps = 2
            if batch <= 96:
                steps = 4
        return (steps * self._layers.layers + max(steps, 8)) * batch


def _rounded(size: int, to: int) -> int:
    return -(-size // to) * to

"""The spec of the training."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from gpudash.specs.base import (
    CPU_FLOPS,
    NEEDS_GPU,
    Devices,
    Presets,
    Spec,
    field,
    long_operation,
    several_devices,
)
from gpudash.units import MIB

IMAGE_SIDE = 16
"""Rows and columns of the images that a CNN classifies."""

HALVINGS = 2
"""How many of a CNN's first blocks halve the images' rows and columns."""

KERNEL = 3
"""Rows and columns of a convolution."""


FEATURES = 32
CLASSES = 10
COLOURS = 3

SPREAD = 0.9
"""Distance of the class centres, relative to the noise: a small MLP should reach about nine in ten, not all."""

TILE = 4
"""Rows and columns of the tile that an image repeats."""

CONTRAST = 0.4
"""Amplitude of an image's pattern, relative to the noise: a CNN should learn it in some dozen steps, not at once."""

MOST_BYTES = 128 * MIB
"""Largest size of the generated samples; a longer training set repeats them."""

MOMENTUM = 0.9

SHOWN = 4
"""How many samples of a batch are shown with their predictions."""

MOST_WRITTEN = 200
"""How many characters are shown of a text that a model continues."""

DATA_PARALLEL = (
    "DataParallel drives all GPUs from one process, whose interpreter lock they wait for, and gathers every output on "
    "the first of them; choose ddp, as torch's own documentation advises"
)
"""Why `torch.nn.DataParallel` is not offered."""

ONE_RANK: dict[str, Any] = {"devices": "", "parallel": "ddp", "global_batch": 0, "max_restarts": 0, "slow_rank": 0.0}
"""The fields for several devices, as a run on one device has them."""


class TrainingSpec(Spec):
    """Train a small model, or run inference with it."""

    name = "training"
    title = "Training"
    summary = "Trains a small model on real text or generated classes; plots loss and accuracy step by step."
    run = "gpudash.workloads.programs.training:run"
    steps_field = "steps"
    presets: ClassVar[Presets] = {
        "Transformer": {},
        "MLP": {"model": "mlp", "width": 256, "depth": 3, "batch": 64, "steps": 600},
        "Inference": {"mode": "inference", "model": "mlp", "steps": 200, "pretraining": 50},
    }

    model: Literal["transformer", "mlp", "cnn"] = field(
        "transformer",
        "Transformer on text (next character), MLP on generated classes or CNN on generated images",
        labels={"mlp": "MLP", "cnn": "CNN"},
    )
    mode: Literal["train", "inference"] = field("train", "Train, or run eval() under no_grad")
    width: int = field(128, "Width of the hidden layers; channels of a CNN", ge=8, le=16384)
    depth: int = field(4, "Number of layers", ge=1, le=256)
    batch: int = field(16, "Sequences or samples per forward pass", ge=1, le=65536)
    accumulation: int = field(
        1,
        "Forward and backward passes per optimizer step; their gradients add up as those of one larger batch",
        more="optimizer",
        when={"mode": ("train",)},
        ge=1,
        le=65536,
    )
    sequence: int = field(
        64, "Length of a sequence", more="data", unit="characters", when={"model": ("transformer",)}, ge=4, le=8192
    )
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = field(
        "adamw",
        "What updates the weights",
        more="optimizer",
        labels={"sgd": "SGD", "momentum": "SGD + momentum", "adam": "Adam", "adamw": "AdamW"},
        when={"mode": ("train",)},
    )
    learning_rate: float = field(
        0.003, "Step size of the optimizer", more="optimizer", when={"mode": ("train",)}, ge=0, le=100
    )
    precision: Literal["fp32", "bf16", "fp16"] = field(
        "fp32",
        "fp32, bfloat16 autocast, or float16 autocast with its gradients scaled",
        labels={"bf16": "bf16 autocast", "fp16": "fp16 autocast"},
    )
    checkpointing: bool = field(
        False,
        "Keep only each layer's input and compute the layer again in the backward pass",
        more="memory",
        when={"mode": ("train",)},
    )
    batches: Literal["resident", "moved", "pingpong"] = field(
        "moved",
        "Where batches live: on the device from the start, moved each step, or there and back each step",
        more="data",
        labels={"pingpong": "ping-pong"},
    )
    pretraining: int = field(
        0,
        "Training steps on the CPU beforehand, so that it knows something to predict; 0: the weights stay random",
        more="data",
        when={"mode": ("inference",)},
        ge=0,
        le=100_000,
    )
    keep_intermediates: bool = field(
        False, "Keep each step's loss and outputs instead of deleting them", more="memory", when={"mode": ("train",)}
    )
    move_at_epoch: int = field(
        0,
        "Start on the CPU and move model and optimizer state at this epoch; 0: never",
        more="memory",
        when={"mode": ("train",)},
        ge=0,
        le=10_000,
    )
    steps: int = field(300, "Steps of the run", ge=1, le=10_000_000)
    epochs: int = field(
        3,
        "Passes over the training set, which holds steps ÷ epochs batches",
        more="data",
        when={"mode": ("train",)},
        ge=1,
        le=10_000,
    )
    deterministic: bool = field(
        False, "Ask torch for deterministic algorithms (slower on CUDA)", more="reproducibility"
    )
    on_nan: Literal["stop", "continue"] = field(
        "stop", "What happens when the loss is NaN or infinite", more="optimizer", when={"mode": ("train",)}
    )

    devices: Devices = field(
        "",
        "Several devices, A,B: one rank on each, data parallel through torchrun; or the two halves of a split model",
        more="several devices",
        when={"mode": ("train",)},
    )
    parallel: Literal["ddp", "fsdp", "split"] = field(
        "ddp",
        "Every rank keeps the whole model (DistributedDataParallel) or a shard of it (FSDP2); split: no ranks, the "
        "first half of the layers on one device, the second on another",
        more="several devices",
        labels={"ddp": "DDP", "fsdp": "FSDP2", "split": "split by hand"},
        when={"mode": ("train",)},
    )
    global_batch: int = field(
        0,
        "Batch of all ranks together, instead of --batch on each; 0: --batch on each",
        more="several devices",
        when={"mode": ("train",)},
        ge=0,
        le=1_048_576,
    )
    max_restarts: int = field(
        0,
        "How often torchrun may restart all ranks after one has failed",
        more="several devices",
        when={"mode": ("train",)},
        ge=0,
        le=100,
    )
    rank_timeout: float = field(
        60.0,
        "How long the others wait for a rank that stands still before the run ends",
        more="several devices",
        unit="s",
        when={"mode": ("train",)},
        ge=5,
        le=86400,
    )
    slow_rank: float = field(
        0.0,
        "Slow the last rank down by this share of its computing (0.2: 20 %), to see how a straggler shows",
        more="several devices",
        when={"mode": ("train",)},
        ge=0,
        le=10,
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> TrainingSpec:
        if self.epochs > self.steps and "epochs" in self.model_fields_set:
            raise ValueError(f"epochs: {self.epochs} epochs need at least as many steps, and there are {self.steps}")
        if self.move_at_epoch > self.passes:
            raise ValueError(f"move_at_epoch: epoch {self.move_at_epoch} never comes, there are {self.passes}")
        return self

    @field_validator("parallel", mode="before")
    @classmethod
    def _not_data_parallel(cls, value: Any) -> Any:
        if isinstance(value, str) and value.lower().replace("_", "").replace("-", "") in ("dp", "dataparallel"):
            raise ValueError(f"{value}: {DATA_PARALLEL}")
        return value

    @model_validator(mode="after")
    def _ranks_can_train(self) -> TrainingSpec:
        ranks = len(self.device_names)
        if not ranks:
            return self
        if self.mode == "inference":
            raise ValueError("devices: several devices train together; choose one for inference, or --mode train")
        if self.move_at_epoch:
            raise ValueError(f"move_at_epoch: {self.move_at_epoch}: a run on several devices cannot move; leave it 0")
        if self.parallel == "split":
            self._can_be_split(ranks)
            return self
        if self.global_batch % ranks:
            below, above = self.global_batch // ranks * ranks, (self.global_batch // ranks + 1) * ranks
            if below:
                nearest = f"{below} and {above} do"
            else:
                nearest = f"{above} does"
            raise ValueError(f"global_batch: {self.global_batch} does not divide among {ranks} ranks; {nearest}")
        return self

    def _can_be_split(self, devices: int) -> None:
        if devices != 2:
            raise ValueError(f"devices: a model is split over two devices, and {devices} are named; name two")
        if self.device_names[0] == self.device_names[1]:
            raise ValueError(f"devices: {self.devices} is one device; a model is split over two, cuda:0,cuda:1")
        if self.depth < 2:
            raise ValueError("depth: a model of one layer cannot be split; take two or more")
        for name in ("global_batch", "max_restarts", "slow_rank"):
            if value := getattr(self, name):
                raise ValueError(f"{name}: {value:g}: a model that is split by hand has no ranks; leave it 0")

    def problems(self, device: str) -> list[str]:
        found = super().problems(device)
        if self.move_at_epoch and device == "cpu":
            found.append(f"--move-at-epoch {self.move_at_epoch}: {NEEDS_GPU.format(device=device)}")
        return found

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices of the ranks or of the model's halves, in order; empty for a run on one device."""
        return several_devices(self.devices)

    @property
    def is_split(self) -> bool:
        """Whether the model's halves are on two devices."""
        return self.parallel == "split" and bool(self.devices)

    @property
    def rank_devices(self) -> tuple[str, ...]:
        if self.is_split:
            return ()
        return self.device_names

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.rank_devices) or 1

    @property
    def rank_batch(self) -> int:
        """Sequences or samples per forward pass of one rank."""
        if self.rank_devices and self.global_batch:
            return self.global_batch // self.world_size
        return self.batch

    @property
    def rank_spec(self) -> TrainingSpec:
        """What one rank runs, as a run on one device; a split model is left as it is."""
        if self.is_split:
            return self
        return self.model_copy(update={**ONE_RANK, "batch": self.rank_batch})

    @property
    def joined_spec(self) -> TrainingSpec:
        """The run on one device that trains the same model on the same data, with the batch of all ranks together."""
        return self.model_copy(update={**ONE_RANK, "batch": self.rank_batch * self.world_size})

    @property
    def passes(self) -> int:
        """Number of epochs: never more than there are steps."""
        return min(self.epochs, self.steps)

    @property
    def second_half(self) -> int:
        """Where the second half of a split model begins: at a block; in an MLP, in which layers and ReLUs alternate,
        at a layer, and with checkpointing at the first layer of a group.

        With an odd number of layers the first half has the larger part.
        """
        middle = (self.depth + 1) // 2
        if self.model != "mlp":
            return middle
        group = 2
        if self.checkpointing:
            group = self.mlp_group
        return group * max(1, round(2 * middle / group))

    @property
    def mlp_group(self) -> int:
        """Layers and ReLUs of an MLP between two kept inputs with checkpointing: as many as there are such groups."""
        return 2 * math.ceil(self.depth / max(2, math.isqrt(self.depth)))

    @property
    def heads(self) -> int:
        """Attention heads of the transformer: about one per 32 of width, and a divisor of it."""
        return next(heads for heads in range(max(1, self.width // 32), 0, -1) if self.width % heads == 0)

    @property
    def sides(self) -> list[int]:
        """Rows of the images that each block of the CNN outputs."""
        return [IMAGE_SIDE >> min(block, HALVINGS) for block in range(1, self.depth + 1)]

    @property
    def micro_batches(self) -> int:
        """Batches per step: `accumulation` when training, else one."""
        if self.mode == "train":
            return self.accumulation
        return 1

    @property
    def step_batch(self) -> int:
        """Sequences or samples per step."""
        return self.batch * self.micro_batches

    @property
    def batches_per_epoch(self) -> int:
        """Batches of the training set: the steps divided by the epochs, rounded up."""
        return -(-self.steps // self.passes)

    @property
    def samples(self) -> int:
        """Points or images generated for an MLP or a CNN."""
        numbers = FEATURES
        if self.model == "cnn":
            numbers = COLOURS * IMAGE_SIDE**2
        return min(self.batches_per_epoch, max(1, MOST_BYTES // (numbers * 4 * self.step_batch))) * self.step_batch

    @property
    def parameters(self) -> int:
        """Weights of the hidden layers, without embeddings: 12 w² a transformer block, w² an MLP layer, 9 w² a CNN
        block."""
        return self.depth * self._layer_weights

    @property
    def forward_flops(self) -> int:
        """FLOPs of the hidden layers' forward pass for one batch: about 2 per weight and position that it is applied
        to.

        The backward pass costs twice as much (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
        """
        return 2 * self.batch * self._layer_weights * sum(self._places)

    @property
    def _layer_weights(self) -> int:
        return self.width**2 * {"transformer": 12, "mlp": 1, "cnn": KERNEL**2}[self.model]

    @property
    def _places(self) -> list[int]:
        """How often each layer's weights are applied to one sequence or sample."""
        if self.model == "cnn":
            return [side**2 for side in self.sides]
        return [self.sequence if self.model == "transformer" else 1] * self.depth

    def cautions(self, device: str) -> list[str]:
        if not device.startswith(("cpu", "sim")):
            return []
        # A step consists of per-layer operations; the largest is about a third of a layer's forward and backward pass.
        layer_flops = 2 * self.rank_batch * self._layer_weights * max(self._places)
        found = long_operation(layer_flops / CPU_FLOPS, "one layer's operation")
        if self.precision == "fp16":
            found.append("fp16 is slow here: most CPUs compute no float16 matrix products themselves; bf16 is faster.")
        return found

"""One step of a model, which ``gpudash estimate --model`` follows and a real run executes, and one batch of input.

Options are those of `gpudash.specs.model.ModelSpec.options`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gpudash.memory.predicting.architecture import Architecture
from gpudash.simulator.dry_run.dry_run import DryRun
from gpudash.simulator.dry_run.own_code import Followed, follow
from gpudash.simulator.models import building, flash_attention
from gpudash.simulator.models.config import read, refused
from gpudash.simulator.models.losses import step_in_backward, without_logits
from gpudash.simulator.models.offload import NONE, Offload
from gpudash.simulator.models.packed_layers import PackedLinear, adapt
from gpudash.simulator.models.parallel import ModelRanks
from gpudash.simulator.models.quantised import BitsandbytesAdamW, parameter_count
from gpudash.simulator.models.selective import keep_of_layers

Step = Callable[[], object]

UNPADDED = "every sequence is as long as asked for, without padding"
HEADLESS = "a model without a head learns the mean of what it puts out"
WITHOUT_CACHE = (
    "use_cache is off, as trainers set it; a loop that leaves it on keeps the keys and values of all layers as well"
)
PACKED_LEARNS = "Train adapters on it with --task qlora, where bitsandbytes packed it."
MOSTLY_UNPACKED = (
    "{:.0%} of the weights lie in linear layers, which is all that is packed: not the rest, as experts in one tensor"
)

AUTOCAST = {"amp": torch.bfloat16, "amp_fp16": torch.float16}
"""Precisions with float32 weights → dtype that autocast computes in."""

PROMPT = "a pass over the whole prompt with its KV cache, as generate begins"

FOLLOWED_STEPS = 2
"""An optimizer creates its state in the first step; after that, the memory of a library's model does not grow from
step to step. With ranks there is one more, since DistributedDataParallel rebuilds its buckets in the second."""

USUAL_SEQUENCE = 2048
"""Default number of tokens in a sequence, if the model supports as many."""

SHORT_PROMPT = 77
"""Tokens of the text for a diffusion model: those of CLIP."""

LONG_PROMPT = 512
"""Tokens of a text encoded by T5, the most that diffusers passes to models like Flux."""

IMAGE_TOKENS = 64 * 64
"""Tokens for an image of 1024 × 1024, one for 16 × 16 pixels, the default for Flux in diffusers."""

SIZES = 6
"""Sizes that condition SDXL: those of the original image, the position of the crop, and the target size."""

POSITIONS = ("max_target_positions", "max_position_embeddings", "n_positions")
"""Names in configs for the most tokens that a model supports."""

Batch = dict[str, Any]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

COMPILED = (
    "torch.compile is not followed: recipes compile the loss, and often each layer, whose temporaries then take less "
    "(docs.pytorch.org/torchtune, memory optimizations)"
)


BITSANDBYTES = ("adamw8bit", "paged_adamw8bit", "paged_adamw")
"""Optimizers of bitsandbytes."""

PAGED = (
    "{:.2f} GiB of the optimizer's state are in unified memory, which PyTorch does not count: the driver keeps "
    "of them on the card what there is room for, and the rest on the host, from where each update brings it and "
    "takes it back"
)


def follow_model(
    options: Mapping[str, Any], dry: DryRun, architecture: Architecture
) -> tuple[Followed, dict[str, Any]]:
    """What a model requests from the allocator of a GPU, and facts about the model.

    Args:
        options: as for `RequestedModel`.
        dry: of this process.
        architecture: of the GPU.

    Raises:
        CannotPredictError: in one sentence, if there is no such model, or it cannot be built or followed.
    """
    model = RequestedModel(options)
    # With ranks, DistributedDataParallel rebuilds its buckets in the second step, so the third is the first that is
    # like all later ones.
    steps = FOLLOWED_STEPS + bool(model.ranks.count)
    with model.ranks.first():
        found = follow(model.build, dry, steps=steps, architecture=architecture)
        facts = {**model.facts, **model.offload.facts(model.ranks.count or 1)}
    work = found.trace.work
    facts["flops"] = 0 if work is None else work.flops
    found = found._replace(trace=found.trace.counting(**model.items))
    return found, {**facts, "assumptions": (*model.assumptions, *model.paged)}


class RequestedModel:
    """A model and what to do with it.

    Args:
        options: as in `gpudash.specs.model.ModelSpec.options`.
        draws: whether to initialise its weights, for a run with numbers.

    Attributes:
        facts: about the model, once it is built: ``architecture``, ``parameters``, ``weight_bytes``, ``dtype``,
            ``sequence`` and ``longest`` (tokens; ``None`` if it takes none, or any number), ``stored_parameters`` and
            ``stored_bytes`` (``None`` without stored weights).
        assumptions: sentences without a full stop, once it is built.
        offload: what is kept on the host.
        ranks: distributes the model.

    Raises:
        CannotPredictError: in one sentence, if there is no such model.
    """

    def __init__(self, options: Mapping[str, Any], *, draws: bool = False) -> None:
        self._options = options
        self._draws = draws
        self._config = read(str(options["path"]))
        # Inference saves nothing for a backward pass.
        if options["task"] == "infer":
            kind = NONE
        else:
            kind = str(options["offload"])
        self.offload = Offload(kind, pins=draws and torch.cuda.is_available())
        self.ranks = ModelRanks({**options, "offload": self.offload.kind})
        self.facts: dict[str, Any] = {}
        self.assumptions: tuple[str, ...] = ()
        self._optimizers: list[Any] = []

    @property
    def paged(self) -> tuple[str, ...]:
        """A sentence about the state that was paged in the steps taken; empty if there was none."""
        size = sum(getattr(optimizer, "paged_bytes", 0) for optimizer in self._optimizers)
        if not size:
            return ()
        return (PAGED.format(size / 2**30),)

    @property
    def items(self) -> dict[str, Any]:
        """What a step processes on all ranks together, once the model is built; fields of `StepWork`."""
        options = self._options
        ranks = self.ranks.count or 1
        items = ranks * int(options["batch"])
        if options["task"] != "infer":
            items *= int(options["accumulation"])
        tokens = self.facts.get("sequence")
        if tokens is None:
            return {"items": items, "unit": "samples", "ranks": ranks}
        return {"items": items * tokens, "unit": "tokens", "ranks": ranks}

    def build(self, device: torch.device) -> Step:
        """Build the model on ``device``, and return the function that runs one step.

        Raises:
            CannotPredictError: in one sentence, if it cannot be built.
        """
        options = self._options
        # FSDP2 places the weights that it shards, shard by shard.
        model = building.build(self._config, device, options, draws=self._draws, places=not self.ranks.shards)
        # Initialising on the device would leave a block in the cache for a head that is tied to the embedding
        # afterwards; loading weights does not.
        if self._draws and device.type not in ("cpu", "meta"):
            torch.get_device_module(device).empty_cache()
        inputs = Inputs(model, int(options["batch"]), int(options["sequence"]))
        if options.get("packing"):
            inputs.pack(with_mask=options["attention"] != flash_attention.NAME)
        self._describe(model, inputs)
        if options["task"] == "infer":
            return self._inferring(model, inputs, device)
        how = building.quantisation_of(self._config, torch.bfloat16, options)
        # Packed weights have no gradients.
        if how is not None and (options["task"] == "train" or not how.learns):
            raise refused(f"The weights of {self._config.file} are packed and do not learn.", PACKED_LEARNS)
        if options["task"] == "train":
            return self._training(model, model, inputs, device)
        rank, targets = int(options["lora_rank"]), str(options["lora_targets"])
        adapted = adapt(
            model,
            rank=rank,
            targets=targets,
            checkpointing=bool(options["checkpointing"]),
            keeps_type=self._keeps_type,
        )
        return self._training(adapted, model, inputs, device)

    @property
    def _keeps_type(self) -> bool:
        """Whether adapters, and the layers that are not packed, keep the dtype of the weights."""
        return bool(self._options.get("keep_16_bits")) and self._options["task"] in ("lora", "qlora")

    def _describe(self, model: nn.Module, inputs: Inputs) -> None:
        packed = (one for module in model.modules() if isinstance(module, PackedLinear) for one in module.buffers())
        # Once per tensor: tied weights are one.
        tensors = {id(one): one for one in (*model.parameters(), *packed)}.values()
        stored, dtype = self._config.stored, building.weights_dtype(self._config, str(self._options["precision"]))
        how = building.quantisation_of(self._config, dtype, self._options)
        self.facts = {
            "architecture": type(model).__name__,
            "parameters": parameter_count(model),
            "weight_bytes": sum(one.numel() * one.element_size() for one in tensors),
            "dtype": str(dtype).removeprefix("torch."),
            "packed_bits": 0 if how is None else how.bits,
            "sequence": inputs.sequence if inputs.takes_tokens else None,
            "longest": inputs.longest,
            "stored_parameters": None if stored is None else stored.parameters,
            "stored_bytes": None if stored is None else stored.total_bytes,
        }
        if inputs.takes_tokens:
            self.assumptions = (UNPADDED,)
        else:
            self.assumptions = ()
        weights = sum(module.weights for module in model.modules() if isinstance(module, PackedLinear))
        # Experts in a single tensor are not linear layers, so tell the user if little of the model is packed.
        if 0 < weights < self.facts["parameters"] / 2:
            self.assumptions += (MOSTLY_UNPACKED.format(weights / self.facts["parameters"]),)
        if self._options["attention"] == flash_attention.NAME:
            self.assumptions += (flash_attention.AS_TORCH,)

    def _inferring(self, model: nn.Module, inputs: Inputs, device: torch.device) -> Step:
        names = inspect.signature(model.forward).parameters
        more = {}
        # The start of generate: it computes only the logits of the prompt's last token.
        if "logits_to_keep" in names:
            more = {"logits_to_keep": 1}
        if more:
            self.assumptions += (PROMPT,)

        dtype = building.weights_dtype(self._config, str(self._options["precision"]))

        def step() -> object:
            with torch.no_grad(), self._autocast(device):
                return model(**inputs.make(device, dtype, learns=False), **more)

        return step

    def _begin_training(self, model: nn.Module, base: nn.Module) -> None:
        model.train()
        if self._options["checkpointing"]:
            _checkpointed(model)
            keep_of_layers(base, str(self._options.get("keeps", "nothing")))
        config: Any = base.config
        # With checkpointing, transformers disables it itself.
        if getattr(config, "use_cache", False) and not self._options["checkpointing"]:
            self.assumptions += (WITHOUT_CACHE,)
        if hasattr(config, "use_cache"):
            config.use_cache = False  # as trainers do: training does not reuse keys and values

    def _training(self, model: nn.Module, base: nn.Module, inputs: Inputs, device: torch.device) -> Step:
        self._begin_training(model, base)
        offload, ranks = self.offload, self.ranks
        # Before the optimizer: FSDP2 replaces the parameters with shards.
        kind = str(self._options.get("loss", "full"))
        computed = None
        if kind != "full":
            computed = without_logits(base, kind)
            self.assumptions += (COMPILED,)
        model = ranks.spread(model, device)
        learned = offload.learned(model)
        name = str(self._options["optimizer"])
        clip = float(self._options["clip"])

        def optimizer_of(some: Iterable[nn.Parameter]) -> Any:
            self._optimizers.append(_optimizer(name, some))
            return self._optimizers[-1]

        optimizer = optimizer_of(learned)
        in_backward = self._options["task"] == "train" and bool(self._options.get("optimizer_in_backward"))
        if in_backward:
            step_in_backward(learned, optimizer_of)
        scaler = torch.amp.GradScaler(device.type, enabled=self._options["precision"] == "amp_fp16")
        parts = int(self._options["accumulation"])
        if "labels" not in inspect.signature(base.forward).parameters:
            # Without labels the model returns no loss.
            self.assumptions += (HEADLESS,)

        dtype = building.weights_dtype(self._config, str(self._options["precision"]))
        if any(isinstance(module, PackedLinear) for module in base.modules()) and not self._keeps_type:
            dtype = torch.float32  # like everything that is not packed, see `adapt`

        def step() -> object:
            with offload.step():
                for part in range(1, parts + 1):
                    # Only the last micro-batch shares its gradients; the others keep them on their rank (`no_sync`).
                    ranks.reduce_gradients(model, part == parts)
                    batch = inputs.make(device, dtype, learns=True)
                    with self._autocast(device), offload.saving():
                        loss = _loss(model, batch, computed) / parts
                    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # untyped in torch
                if in_backward:
                    return loss.detach()
                # Norms are computed on unscaled gradients.
                if clip:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(learned, clip)
                scaler.step(optimizer)
                scaler.update()
                # Dropped after the optimizer's step, as in trainers: the next forward pass runs without gradients.
                offload.stepped(optimizer)
            return loss.detach()

        return step

    def _autocast(self, device: torch.device) -> Any:
        dtype = AUTOCAST.get(str(self._options["precision"]))
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype)


def _loss(model: nn.Module, batch: Batch, computed: Loss | None) -> torch.Tensor:
    """The loss of a batch; ``computed`` derives it from hidden states if the model computes no logits."""
    if computed is not None:
        labels = batch.pop("labels")
        return computed(model(**batch).logits, labels)
    out: Any = model(**batch)
    loss = getattr(out, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    # The mean of the first tensor stands for a loss: all that matters is a backward pass through the whole graph.
    first: torch.Tensor = next(value for value in out.values() if isinstance(value, torch.Tensor))
    return first.float().mean()


def _checkpointed(model: Any) -> None:
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable", "enable_gradient_checkpointing")
    switch = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    try:
        if switch is not None:
            switch()
            return
    except ValueError:  # raised by transformers for a model without one
        pass
    raise refused(f"{type(model).__name__} has no activation checkpointing.", "Leave --checkpointing out.")


def _optimizer(name: str, parameters: Iterable[nn.Parameter]) -> Any:
    if name in BITSANDBYTES:
        return BitsandbytesAdamW(parameters, bits=8 if name.endswith("8bit") else 32, paged=name.startswith("paged"))
    if name == "adafactor":
        optimization: Any = importlib.import_module("transformers.optimization")
        return optimization.Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)
    if name in ("sgd", "momentum"):
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9 if name == "momentum" else 0.0)
    # fused=None leaves the choice to torch; True requests it.
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True if name == "adamw_fused" else None)


class Inputs:
    """Creates batches for a model.

    Args:
        model: of transformers or diffusers.
        batch: samples in each.
        sequence: tokens of each; 0 for the default.

    Attributes:
        sequence: tokens of each.
        longest: the most that the model supports; ``None`` if unknown or if it takes no tokens.
    """

    def __init__(self, model: nn.Module, batch: int, sequence: int) -> None:
        self._model = model
        self._config: Any = model.config
        text: Any = getattr(self._config, "get_text_config", None)
        self._names = set(inspect.signature(model.forward).parameters)
        self._main = getattr(model, "main_input_name", "sample")
        self._size = batch
        if text is None:
            self._text = self._config
        else:
            self._text = text()
        self._classifies = type(model).__name__.endswith("Classification")
        # Both an encoder and a decoder take tokens.
        self._is_pair = bool(getattr(self._config, "is_encoder_decoder", False))
        if self.takes_tokens:
            self.longest = self._longest()
        else:
            self.longest = None
        self.sequence = sequence or min(USUAL_SEQUENCE, self.longest or USUAL_SEQUENCE)
        self._packs = self._masks = False

    def pack(self, *, with_mask: bool) -> None:
        """Make each sequence consist of several texts, with position IDs and a mask that separates them.

        The mask has a truth value for each pair of tokens in a sequence, as in ``packed_block_causal_mask`` of
        torchtune/modules/attention_utils.py.

        Raises:
            CannotPredictError: in one sentence, if the model takes no tokens, or no position IDs.
        """
        if self._main != "input_ids" or self._is_pair or "position_ids" not in self._names:
            problem = f"{type(self._model).__name__} takes no texts that are packed into one sequence."
            raise refused(problem, "Leave --packing out.")
        self._packs = True
        self._masks = with_mask

    @property
    def takes_tokens(self) -> bool:
        """Whether the length of a sequence affects the model."""
        return self._main == "input_ids" or self._is_pair

    def make(self, device: torch.device, dtype: torch.dtype, *, learns: bool) -> Batch:
        """Create a batch.

        Args:
            device: where to create it.
            dtype: of images, audio and noise.
            learns: whether to include the targets, if the model takes them.
        """
        # Configs of diffusers lack it; all of transformers have it.
        if not hasattr(self._config, "get_text_config"):
            return self._noise(device, dtype)
        made: Batch = {}
        if self._main == "input_ids":
            made["input_ids"] = self._tokens(device)
        else:
            made[self._main] = torch.empty(self._shape(), device=device, dtype=dtype)
        if learns and self._packs:
            made["position_ids"] = self._tokens(device)
        if learns and self._masks:
            pairs = (self._size, 1, self.sequence, self.sequence)
            made["attention_mask"] = torch.ones(pairs, dtype=torch.bool, device=device)
        if learns and "labels" in self._names:
            made["labels"] = self._labels(device)
        # Without labels, the decoder needs input of its own.
        elif self._is_pair:
            made["decoder_input_ids"] = self._tokens(device)
        return made

    def _tokens(self, device: torch.device) -> torch.Tensor:
        return torch.zeros((self._size, self.sequence), dtype=torch.int64, device=device)

    def _labels(self, device: torch.device) -> torch.Tensor:
        """A token for each position, or a class for each sample."""
        if self.takes_tokens and not self._classifies:
            return self._tokens(device)
        return torch.zeros((self._size,), dtype=torch.int64, device=device)

    def _longest(self) -> int | None:
        said = (getattr(self._text, name, None) for name in POSITIONS)
        return next((number for number in said if isinstance(number, int) and number > 0), None)

    def _shape(self) -> tuple[int, ...]:
        """Sizes of a batch of images or audio."""
        config = self._config
        if self._main == "input_features":  # Whisper: a spectrogram of 30 s, two frames per position
            return self._size, config.num_mel_bins, 2 * config.max_source_positions
        if self._main == "input_values":
            return self._size, 16000 * 10  # 10 s at 16 kHz
        vision = getattr(config, "vision_config", config)
        side = getattr(vision, "image_size", 224)
        if isinstance(side, (list, tuple)):
            height, width = side
        else:
            height, width = (side, side)
        return self._size, getattr(vision, "num_channels", 3), height, width

    def _noise(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """The input of a diffusion model: a noisy image, its timestep, and the text or class to show."""
        config, size = self._config, self._size
        if "img_ids" in self._names:
            return self._noisy_tokens(device, dtype)
        side = getattr(config, "sample_size", None)
        if side is None:
            problem = (
                f"{type(self._model).__name__} is not known here: its config says no size of images (sample_size)."
            )
            raise refused(problem, "Follow its step with --callable, which makes the inputs itself.")
        if isinstance(side, (list, tuple)):
            height, width = side
        else:
            height, width = (side, side)
        shape = (size, config.in_channels, height, width)
        made: Batch = {self._sample_name(): torch.empty(shape, device=device, dtype=dtype)}
        if "timestep" in self._names:
            made["timestep"] = torch.zeros((size,), dtype=torch.int64, device=device)
        across = getattr(config, "cross_attention_dim", None) or getattr(config, "joint_attention_dim", None)
        if isinstance(across, (list, tuple)):
            wide = across[0]
        else:
            wide = across
        if "encoder_hidden_states" in self._names and isinstance(wide, int):
            made["encoder_hidden_states"] = torch.empty((size, SHORT_PROMPT, wide), device=device, dtype=dtype)
        if "class_labels" in self._names and getattr(config, "num_embeds_ada_norm", None):
            made["class_labels"] = torch.zeros((size,), dtype=torch.int64, device=device)
        pooled = getattr(config, "pooled_projection_dim", None)
        if "pooled_projections" in self._names and isinstance(pooled, int):
            made["pooled_projections"] = torch.empty((size, pooled), device=device, dtype=dtype)
        if getattr(config, "addition_embed_type", None) == "text_time":  # SDXL: the pooled text, and six sizes
            numbers = config.projection_class_embeddings_input_dim - SIZES * config.addition_time_embed_dim
            made["added_cond_kwargs"] = {
                "text_embeds": torch.empty((size, numbers), device=device, dtype=dtype),
                "time_ids": torch.empty((size, SIZES), device=device, dtype=dtype),
            }
        return made

    def _noisy_tokens(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Like `_noise`, for models like Flux: a 1024 × 1024 image as tokens, each with its position."""
        config, size = self._config, self._size

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, device=device, dtype=dtype)

        made = {
            "hidden_states": empty(size, IMAGE_TOKENS, config.in_channels),
            "encoder_hidden_states": empty(size, LONG_PROMPT, config.joint_attention_dim),
            "timestep": empty(size),
            "img_ids": empty(IMAGE_TOKENS, len(config.axes_dims_rope)),
            "txt_ids": empty(LONG_PROMPT, len(config.axes_dims_rope)),
        }
        if "pooled_projections" in self._names and isinstance(getattr(config, "pooled_projection_dim", None), int):
            made["pooled_projections"] = empty(size, config.pooled_projection_dim)
        if getattr(config, "guidance_embeds", False):
            made["guidance"] = empty(size)
        return made

    def _sample_name(self) -> str:
        if "sample" in self._names:
            return "sample"
        return "hidden_states"

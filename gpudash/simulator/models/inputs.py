"""What one batch of a model is: tokens, images, sound or noise, as its forward takes them, without numbers."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from gpudash.simulator.models.config import refused

USUAL_SEQUENCE = 2048
"""Tokens of a sequence unless a length is asked for, or the model takes fewer."""

PROMPT = 77
"""Tokens of the text that a diffusion model is given: those of CLIP."""

LONG_PROMPT = 512
"""Tokens of a text by T5, which diffusers gives models of the kind of Flux at most."""

IMAGE_TOKENS = 64 * 64
"""Of an image of 1024 × 1024, 16 × 16 of its pixels in each, as diffusers makes one of Flux unless told otherwise."""

SIZES = 6
"""Of the image before it was cut, where it was cut, and wanted: what SDXL is told of it."""

POSITIONS = ("max_target_positions", "max_position_embeddings", "n_positions")
"""What configs call the most tokens that a model takes."""

Batch = dict[str, Any]


class Inputs:
    """Makes batches for one model.

    Args:
        model: of transformers or diffusers.
        batch: samples in each.
        sequence: tokens of each; 0 for as many as is usual.

    Attributes:
        sequence: tokens of each.
        longest: the most that the model takes; ``None`` where it does not say, or takes none.
    """

    def __init__(self, model: nn.Module, batch: int, sequence: int) -> None:
        self._model = model
        self._config: Any = model.config
        text: Any = getattr(self._config, "get_text_config", None)
        self._names = set(inspect.signature(model.forward).parameters)
        self._main = getattr(model, "main_input_name", "sample")
        self._size = batch
        self._text = self._config if text is None else text()
        self._classifies = type(model).__name__.endswith("Classification")
        self._is_pair = bool(getattr(self._config, "is_encoder_decoder", False))
        self.longest = self._longest() if self.takes_tokens else None
        self.sequence = sequence or min(USUAL_SEQUENCE, self.longest or USUAL_SEQUENCE)

    @property
    def takes_tokens(self) -> bool:
        """Whether a longer sequence is more to do."""
        return self._main == "input_ids" or self._is_pair

    def make(self, device: torch.device, dtype: torch.dtype, *, learns: bool) -> Batch:
        """One batch.

        Args:
            device: where it is made.
            dtype: of images, sound and noise.
            learns: whether with what is to be learned of it, where the model takes that.
        """
        if not hasattr(self._config, "get_text_config"):
            return self._noise(device, dtype)
        made: Batch = {}
        if self._main == "input_ids":
            made["input_ids"] = self._tokens(device)
        else:
            made[self._main] = torch.empty(self._shape(), device=device, dtype=dtype)
        if learns and "labels" in self._names:
            made["labels"] = self._labels(device)
        elif self._is_pair:
            made["decoder_input_ids"] = self._tokens(device)
        return made

    def _tokens(self, device: torch.device) -> torch.Tensor:
        return torch.zeros((self._size, self.sequence), dtype=torch.int64, device=device)

    def _labels(self, device: torch.device) -> torch.Tensor:
        """A token for each, or a class for each sample."""
        if self.takes_tokens and not self._classifies:
            return self._tokens(device)
        return torch.zeros((self._size,), dtype=torch.int64, device=device)

    def _longest(self) -> int | None:
        said = (getattr(self._text, name, None) for name in POSITIONS)
        return next((number for number in said if isinstance(number, int) and number > 0), None)

    def _shape(self) -> tuple[int, ...]:
        """Sizes of a batch of images or of sound."""
        config = self._config
        if self._main == "input_features":  # Whisper: a spectrogram of 30 s, two frames a position
            return self._size, config.num_mel_bins, 2 * config.max_source_positions
        if self._main == "input_values":
            return self._size, 16000 * 10  # 10 s at 16 kHz
        vision = getattr(config, "vision_config", config)
        side = getattr(vision, "image_size", 224)
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        return self._size, getattr(vision, "num_channels", 3), height, width

    def _noise(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """What a diffusion model is given: a noisy image, its time, and the text or the class that it is to show."""
        config, size = self._config, self._size
        if "img_ids" in self._names:
            return self._noisy_tokens(device, dtype)
        side = getattr(config, "sample_size", None)
        if side is None:
            told = f"{type(self._model).__name__} is not known here: its config says no size of images (sample_size)."
            raise refused(told, "Follow its step with --callable, which makes the inputs itself.")
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        shape = (size, config.in_channels, height, width)
        made: Batch = {self._sample_name(): torch.empty(shape, device=device, dtype=dtype)}
        if "timestep" in self._names:
            made["timestep"] = torch.zeros((size,), dtype=torch.int64, device=device)
        across = getattr(config, "cross_attention_dim", None) or getattr(config, "joint_attention_dim", None)
        wide = across[0] if isinstance(across, (list, tuple)) else across
        if "encoder_hidden_states" in self._names and isinstance(wide, int):
            made["encoder_hidden_states"] = torch.empty((size, PROMPT, wide), device=device, dtype=dtype)
        if "class_labels" in self._names and getattr(config, "num_embeds_ada_norm", None):
            made["class_labels"] = torch.zeros((size,), dtype=torch.int64, device=device)
        pooled = getattr(config, "pooled_projection_dim", None)
        if "pooled_projections" in self._names and isinstance(pooled, int):
            made["pooled_projections"] = torch.empty((size, pooled), device=device, dtype=dtype)
        if getattr(config, "addition_embed_type", None) == "text_time":  # SDXL: the text as a whole, and six sizes
            numbers = config.projection_class_embeddings_input_dim - SIZES * config.addition_time_embed_dim
            made["added_cond_kwargs"] = {
                "text_embeds": torch.empty((size, numbers), device=device, dtype=dtype),
                "time_ids": torch.empty((size, SIZES), device=device, dtype=dtype),
            }
        return made

    def _noisy_tokens(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """As `_noise`, for models of the kind of Flux: an image of 1024 × 1024 in tokens, each with its place."""
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
        return "sample" if "sample" in self._names else "hidden_states"

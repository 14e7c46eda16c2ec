"""Linear layers with weights packed into fewer bits, as storages of the true sizes and kernels without numbers.

Their allocations, and the order of these, follow bitsandbytes 0.50.2 (``nn/modules.py``, ``autograd/_functions.py``,
``functional.py``, ``backends/cuda/ops.py``) and Marlin in GPTQModel (``nn_modules/qlinear/marlin.py``,
``marlin_awq.py`` and ``gptq_marlin.cu``), with which transformers runs GPTQ and AWQ.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpudash.simulator.device.backend import registered
from gpudash.simulator.device.naming import DEVICE
from gpudash.simulator.refusal import OR_ANOTHER_PYTHON, CannotPredictError

BLOCK = 64
"""How many 4-bit weights share an absmax: the default ``blocksize`` of ``Params4bit``, used by transformers."""

NESTED_BLOCK = 256
"""How many absmax values share one of their own in double quantisation: ``quantize_4bit`` of bitsandbytes."""

CODES = 16
"""Entries in the table of a 4-bit type (``get_4bit_type``); every layer has its own copy."""

FUSED_ROWS = 4
"""Rows up to which the 4-bit kernel reads packed weights directly on every GPU (``_GEMM_4BIT_CUSTOM_FLOOR_M``). Up to
1536 rows, a table of measurements decides for each GPU and shape; here weights are unpacked from the next row on, so
the prediction for a forward pass of few rows may be too high by one layer's unpacked weight."""

OUTLIER_SHARE = 1000
"""One in so many columns of activations is treated as an outlier: "about 0.1 % of all features" (LLM.int8(), arXiv
2208.07339, section 3.2). The true number depends on the values."""

WORD_BITS = 32
"""Bits of the integers that GPTQ and AWQ pack weights into."""

MARLIN_ROWS, MARLIN_COLUMNS = 64, 256
"""Largest tile of Marlin; each multiprocessor accumulates one in float32 (``max_c_tmp_size``)."""

ALL_LINEAR = "all-linear"
"""peft's name for every linear layer except the output layer."""

GET_PEFT = f"Install it there: pip install peft{OR_ANOTHER_PYTHON}"

MOST_NAMED = 12
"""The most names that an error lists."""


class PackedLinear(nn.Linear):
    """Base class of linear layers that stand for ones with packed weights.

    Like those of bitsandbytes, it is a `torch.nn.Linear`, so that code searching for linear layers finds it.

    Attributes:
        weights: how many weights it stands for, without its bias.
    """

    def __init__(self, like: nn.Module, in_features: int, out_features: int) -> None:
        # Skips nn.Linear's own constructor, which would allocate the unpacked weight.
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        self.weights = in_features * out_features
        self.register_parameter("bias", getattr(like, "bias", None))
        if self.bias is not None:
            # As in all packed layers: only adapters are trained.
            self.bias.requires_grad_(False)

    def extra_repr(self) -> str:
        """The text of a linear layer."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _bias_like(self, x: torch.Tensor) -> torch.Tensor | None:
        """The bias, permanently converted to the dtype of the first input."""
        if self.bias is not None and self.bias.dtype != x.dtype:
            # Permanently: the second forward pass finds it converted and allocates nothing.
            self.bias.data = self.bias.data.to(x.dtype)
        return self.bias


class Params4bit(nn.Parameter):
    """A packed weight. Libraries identify it by this class name, such as `peft.prepare_model_for_kbit_training`, which
    would otherwise convert it to float32 if it is packed into 16-bit numbers."""


class Linear4bit(PackedLinear):
    """4-bit weights with an absmax for each block, as in ``bitsandbytes.nn.Linear4bit``.

    Args:
        like: the layer that it replaces.
        in_features, out_features: its sizes.
        nested: whether absmax is itself quantised (double quantisation).
        storage: dtype of the numbers that weights are packed into.
        compute: dtype to compute in; by default that of the input.
        unpacked: dtype that weights are unpacked to in the backward pass: the one before quantisation.
        fused: whether it is bitsandbytes 0.50 or newer, which unpacks to the input's dtype in the forward pass.
        device: where it is created.
    """

    def __init__(
        self,
        like: nn.Module,
        in_features: int,
        out_features: int,
        *,
        nested: bool,
        storage: torch.dtype = torch.uint8,
        compute: torch.dtype | None = None,
        unpacked: torch.dtype = torch.bfloat16,
        fused: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__(like, in_features, out_features)
        self.nested, self.unpacked, self.fused = nested, unpacked, fused
        self.compute, self._compute_is_set = compute, compute is not None
        blocks = math.ceil(self.weights / BLOCK)
        # Rounded up to whole bytes, then to numbers of the storage dtype.
        packed = (self.weights + 1) // (2 * storage.itemsize)
        self.weight = Params4bit(torch.empty(packed, 1, dtype=storage, device=device), requires_grad=False)
        self.register_buffer("code", torch.empty(CODES, dtype=torch.float32, device=device))
        if nested:
            kind = torch.uint8
        else:
            kind = torch.float32
        self.register_buffer("absmax", torch.empty(blocks, dtype=kind, device=device))
        if nested:
            self.register_buffer("offset", torch.empty((), dtype=torch.float32, device=device))
            outer = math.ceil(blocks / NESTED_BLOCK)
            self.register_buffer("nested_absmax", torch.empty(outer, dtype=torch.float32, device=device))

    absmax: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the unpacked weight; the result has the dtype of ``x``."""
        # The first input sets the dtype once, as in bitsandbytes' `set_compute_type`.
        if not self._compute_is_set:
            if x.dtype in (torch.float32, torch.bfloat16):
                self.compute = x.dtype
            self._compute_is_set = True
        given = x.dtype
        if self.compute is not None:
            x = x.to(self.compute)
        bias = self._bias_like(x)
        if bias is not None and self.compute is not None:
            bias = bias.to(self.compute)
        made = _MatMul4Bit.apply(x, bias, self)  # type: ignore[no-untyped-call]  # torch's own
        return made.to(given)  # type: ignore[no-any-return]  # of an untyped call

    def unpack(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight from ``dequantize_4bit``, of shape (out, in); absmax is dequantised along the way."""
        absmax = self._plain_absmax()
        made = torch.empty(self.out_features, self.in_features, dtype=dtype, device=self.weight.device)
        # Freed only after the weight is created: both are on the device at the peak.
        del absmax
        return made

    def _plain_absmax(self) -> torch.Tensor | None:
        if not self.nested:
            return None
        return torch.empty_like(self.absmax, dtype=torch.float32)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Compute the forward pass."""
        # The kernel reads packed weights and allocates only its result.
        if self._reads_packed(x):
            return x.new_empty((*x.shape[:-1], self.out_features))
        if not self.fused:
            # Before 0.50 it was unpacked to the dtype before quantisation and then converted, so both exist at once.
            return functional.linear(x, self.unpack(self.unpacked).to(x.dtype), bias)
        absmax = self._plain_absmax()
        shifted = None
        if absmax is not None:
            # The offset is added to the nested absmax out of place.
            shifted = torch.empty_like(absmax)
        weight = torch.empty(self.out_features, self.in_features, dtype=x.dtype, device=x.device)
        made = functional.linear(x, weight, bias)
        del absmax, shifted, weight  # kept until here, as in `_dequant_linear_fallback`
        return made

    def _reads_packed(self, x: torch.Tensor) -> bool:
        """Whether the kernel unpacks the weight while it multiplies, so that only the result is allocated."""
        # Number of rows: all but the last dimension of the input.
        few = x.numel() <= x.shape[-1] * (FUSED_ROWS if self.fused else 1)
        return few and not self.in_features % BLOCK and (self.fused or not x.requires_grad)


class _MatMul4Bit(torch.autograd.Function):
    """``MatMul4Bit`` of bitsandbytes: the weight is unpacked in each direction, and never kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, layer: Linear4bit) -> torch.Tensor:
        made = layer.multiply(x, bias)
        ctx.layer, ctx.bias_dtype = layer, None if bias is None else bias.dtype
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        wants_x, wants_bias, _ = ctx.needs_input_grad
        grad_bias = None
        if wants_bias:
            grad_bias = grad.sum(0, dtype=ctx.bias_dtype)
        layer: Linear4bit = ctx.layer
        grad_x = None
        if wants_x:
            # Unpacked again, since the forward pass kept nothing of it.
            grad_x = torch.matmul(grad, layer.unpack(layer.unpacked).to(grad.dtype))
        return grad_x, grad_bias, None


class Linear8bitLt(PackedLinear):
    """8-bit weights with a scale for each row, as in ``bitsandbytes.nn.Linear8bitLt``.

    Args:
        like: the layer that it replaces.
        in_features, out_features: its sizes.
        threshold: magnitude from which columns of activations are multiplied in 16 bits; 0 for never.
        device: where it is created.
    """

    def __init__(
        self, like: nn.Module, in_features: int, out_features: int, *, threshold: float = 6.0, device: Any = None
    ) -> None:
        super().__init__(like, in_features, out_features)
        self.threshold = threshold
        made = torch.empty(out_features, in_features, dtype=torch.int8, device=device)
        self.weight = nn.Parameter(made, requires_grad=False)
        self.register_buffer("SCB", torch.empty(out_features, dtype=torch.float32, device=device))

    SCB: torch.Tensor

    @property
    def outliers(self) -> int:
        """Number of columns treated as outliers."""
        if self.threshold:
            return math.ceil(self.in_features / OUTLIER_SHARE)
        return 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product of the quantised part plus that of the outlier columns."""
        bias = self._bias_like(x)
        return _MatMul8bitLt.apply(x, bias, self)  # type: ignore[no-any-return, no-untyped-call]  # torch's

    def quantise_rows(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantise activations to 8 bits with a scale for each row (``int8_vectorwise_quant``)."""
        scales = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        rows = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        if self.threshold:
            # The mask of outliers is created and freed here; its size counts for the peak of this call.
            found = x.abs() >= self.threshold
            del found
        return rows, scales

    def multiply(
        self, x: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The product, and the columns of ``x`` multiplied in its own dtype (``int8_mixed_scaled_mm``)."""
        if not self.threshold:
            return self._scaled(x, rows, bias), None
        outer = x.new_empty(x.shape[0], self.outliers)
        # The columns of the weight that meet outliers are unpacked to the input's dtype.
        columns = torch.empty(self.out_features, self.outliers, dtype=torch.int8, device=x.device)
        picked = (columns * self.SCB.view(-1, 1) * (1 / 127)).to(x.dtype).t()
        made = self._scaled(x, rows, bias)
        return made.addmm(outer, picked), outer

    def _scaled(self, x: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        # Sums are int32 until scaled, and the float16 result is allocated beside them.
        sums = torch.empty(rows.shape[0], self.out_features, dtype=torch.int32, device=x.device)
        made = torch.empty_like(sums, dtype=torch.float16)
        # A bias with a dtype other than float16 is added after the kernel.
        if bias is not None and bias.dtype != torch.float16:
            made.add_(bias)
        made = made.to(x.dtype)
        del sums
        return made


class _MatMul8bitLt(torch.autograd.Function):
    """``MatMul8bitLt`` of bitsandbytes for weights that stay in 8 bits: it saves the input for the backward pass,
    which unpacks the whole weight to the input's dtype."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, layer: Linear8bitLt) -> torch.Tensor:
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        # The 8-bit kernels take float16 only: other inputs are copied.
        rows, scales = layer.quantise_rows(x.to(torch.float16))
        made, outer = layer.multiply(x, rows, bias)
        # Freed before saving for the backward pass: only the input and the outliers survive the forward pass.
        del rows, scales
        ctx.layer, ctx.shape, ctx.dtype = layer, shape, x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.kept = (outer, x) if ctx.needs_input_grad[0] else None
        return made.reshape(*shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        wants_x, wants_bias, _ = ctx.needs_input_grad
        grad_bias = None
        if wants_bias:
            grad_bias = grad.sum(0, dtype=ctx.bias_dtype)
        if not wants_x:
            return None, grad_bias, None
        layer: Linear8bitLt = ctx.layer
        grad = grad.reshape(-1, grad.shape[-1]).contiguous()
        # The whole weight in the input's dtype, which makes this backward pass expensive.
        weight = layer.weight.to(ctx.dtype, copy=True).mul_(layer.SCB.unsqueeze(1).mul(1.0 / 127.0))
        return torch.matmul(grad.to(ctx.dtype), weight).view(ctx.shape), grad_bias, None


class MarlinLinear(PackedLinear):
    """GPTQ or AWQ weights in 32-bit integers, multiplied by Marlin, which unpacks them on the fly. Not trainable.

    Args:
        like: the layer that it replaces.
        in_features, out_features: its sizes.
        bits: of a weight.
        group: how many weights of a column share a scale; below 1 for all of them.
        zeros: whether each scale has a zero point.
        ordered: whether columns were quantised in the order of their activations (``desc_act``).
        transposed: whether a word holds weights of one row, as in AWQ, rather than of one column.
        dtype: of the scales.
        device: where it is created.
    """

    def __init__(
        self,
        like: nn.Module,
        in_features: int,
        out_features: int,
        *,
        bits: int,
        group: int,
        zeros: bool,
        ordered: bool,
        transposed: bool,
        dtype: torch.dtype = torch.float16,
        device: Any = None,
    ) -> None:
        super().__init__(like, in_features, out_features)
        if group < 1:
            groups = 1
        else:
            groups = math.ceil(in_features / group)
        number_type = torch.int32
        rows, columns = in_features, out_features * bits // WORD_BITS
        if not transposed:
            # GPTQ packs along the inputs, AWQ along the outputs.
            rows, columns = in_features * bits // WORD_BITS, out_features
        self.register_buffer("qweight", torch.empty(rows, columns, dtype=number_type, device=device))
        self.register_buffer("scales", torch.empty(groups, out_features, dtype=dtype, device=device))
        if zeros:
            self.register_buffer(
                "qzeros", torch.empty(groups, out_features * bits // WORD_BITS, dtype=number_type, device=device)
            )
        if ordered:  # the group of each column, and the order they were sorted in
            for name in ("g_idx", "g_idx_sort_indices"):
                self.register_buffer(name, torch.empty(in_features, dtype=number_type, device=device))
        # Marlin's bias has the dtype of the scales, whatever the layer's was.
        if self.bias is not None:
            self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), requires_grad=False)

    scales: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, with the sums of one tile for each multiprocessor allocated beside it."""
        # Converted once, permanently.
        if self.scales.dtype != x.dtype:
            self.scales = self.scales.to(x.dtype)
        self._bias_like(x)
        # Rows of the flattened input; tiles have 16 rows, up to 64.
        rows = x.numel() // x.shape[-1]
        made = x.new_empty((*x.shape[:-1], self.out_features))
        tile = min(math.ceil(rows / 16) * 16, MARLIN_ROWS) * MARLIN_COLUMNS
        # Lives only during the call, and determines the peak of a small batch.
        sums = torch.empty(_multiprocessors(x.device) * tile, dtype=torch.float32, device=x.device)
        del sums
        return made


def _multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the simulated card; 1 for any other device."""
    backend = registered()
    if device.type != DEVICE or backend is None:
        return 1
    return backend.engine.cards[device.index or 0].architecture.multiprocessors


def adapt(
    model: nn.Module, *, rank: int, targets: str = ALL_LINEAR, checkpointing: bool = False, keeps_type: bool = False
) -> nn.Module:
    """Add adapters to ``model``, which alone are trained; packed models are prepared for them first.

    What is not packed then becomes float32, and the inputs of checkpoints require gradients
    (`peft.prepare_model_for_kbit_training`). Adapters are float32 if their layer is packed or has 16 bits.

    Args:
        model: of transformers or diffusers, without numbers; it is changed.
        rank: of the adapters.
        targets: `ALL_LINEAR`, module names separated by commas, or "" for peft's choice for the architecture.
        checkpointing: whether activations are recomputed in the backward pass.
        keeps_type: whether what is not packed keeps its dtype, which adapters then have too.

    Raises:
        CannotPredictError: in one sentence, if this Python has no peft, a name does not exist, or peft refuses.
    """
    peft = _peft()
    if rank < 1:
        raise _refused(f"The rank of adapters is 1 or more, not {rank}.", "Give a rank such as 16.")
    wanted = targets.strip() if targets.strip().lower() == ALL_LINEAR else _names(model, targets)
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=wanted)
    # peft knows bitsandbytes' classes, but not the ones that stand for them here.
    settings._register_custom_module({Linear4bit: _over_packed(clones=True), Linear8bitLt: _over_packed(clones=False)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses old names of transformers
        warnings.filterwarnings("ignore", r"The following \w+_pattern keys")  # for experts, which it leaves alone
        is_packed = any(isinstance(module, PackedLinear) for module in model.modules())
        if keeps_type and checkpointing and is_packed:
            # with reentrant checkpoints and frozen embeddings no gradient would reach the adapters
            whole: Any = model
            whole.enable_input_require_grads()
        if not keeps_type and is_packed:
            # Before adapters are added: they take the dtypes after this conversion.
            peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=checkpointing)
        try:
            adapted: nn.Module = peft.get_peft_model(
                model, settings, low_cpu_mem_usage=_is_without_numbers(model), autocast_adapter_dtype=not keeps_type
            )
        except (ValueError, NotImplementedError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
            problem = f"peft puts no adapters on {type(model).__name__} ({first})."
            raise _refused(problem, "Name modules that take one with --lora-targets.") from error
    if keeps_type:
        # peft makes them float32 if a layer's own numbers are packed, whatever the arguments
        kept = next(weight.dtype for weight in model.parameters() if not weight.requires_grad)
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.data = weight.data.to(kept)
    return adapted


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise _refused("This Python has no peft, which LoRA needs.", GET_PEFT) from error
    return peft


def _refused(message: str, remedy: str) -> CannotPredictError:
    return CannotPredictError("adapters", message, remedy)


def _names(model: nn.Module, targets: str) -> list[str] | None:
    """The names in ``targets``, each the end of a module's name as for peft; ``None`` for none."""
    wanted = [name.strip() for name in targets.split(",") if name.strip()]
    there = [name for name, _ in model.named_modules()]
    for name in wanted:
        # As peft matches: a name must be whole parts at the end of the path.
        if not any(found == name or found.endswith(f".{name}") for found in there):
            known = ", ".join(_linear_names(model)) or "none"
            problem = f"{type(model).__name__} has no module {name!r} to put an adapter on."
            raise _refused(problem, f"Its linear layers are: {known}; {ALL_LINEAR} means all of them.")
    return wanted or None


def _linear_names(model: nn.Module) -> Sequence[str]:
    """Last parts of the names of linear layers, each once."""
    found = dict.fromkeys(
        name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)
    )
    names = [name for name in found if name and not name.isdigit()]
    if len(names) <= MOST_NAMED:
        return names
    return [*names[:MOST_NAMED], "…"]


def _is_without_numbers(model: nn.Module) -> bool:
    return any(weight.is_meta for weight in model.parameters())


@functools.cache
def _over_packed(*, clones: bool) -> type[nn.Module]:
    """peft's layer class over a packed layer.

    Args:
        clones: whether the layer's result is copied before the adapter's share is added, as with 4 bits.
    """
    from peft.tuners import lora

    class OverPacked(lora.Linear):
        """Like ``Linear4bit`` and ``Linear8bitLt`` of `peft.tuners.lora.bnb`, for one adapter that is not merged."""

        def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            result: torch.Tensor = self.base_layer(x, *args, **kwargs)
            if clones:
                result = result.clone()
            # Under autocast the layers convert their inputs themselves.
            converts = not torch.is_autocast_enabled(x.device.type)
            for name in self.active_adapters:
                if name not in self.lora_A:
                    continue
                first: Any = self.lora_A[name]
                second, dtype = self.lora_B[name], result.dtype
                given = x
                if converts:
                    given = x.to(first.weight.dtype)
                made = second(first(self.lora_dropout[name](given))) * self.scaling[name]
                # Added out of place, as in peft: the base layer's result lives a moment longer.
                result = result + (made.to(dtype) if converts else made)
            return result

    return OverPacked

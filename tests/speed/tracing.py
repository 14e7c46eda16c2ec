"""What a model of timm asks of a device, in mixed precision, written down on the meta device."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpudash.speed.classify import classify
from gpudash.speed.work import StepWork


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The lists of torch/csrc's aten/src/ATen/autocast_mode.h, by the names that Python calls them.
_IN_HALF = _words(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d prelu addmm addmv addr matmul __matmul__ "
    "__rmatmul__ einsum mm mv linear addbmm baddbmm bmm"
)
_IN_FLOAT = _words(
    "__pow__ __rpow__ pow __rtruediv__ __rdiv__ reciprocal rsqrt exp expm1 log log2 log10 log1p cosh sinh tan erfinv "
    "cdist cosine_similarity cross_entropy group_norm layer_norm mse_loss nll_loss l1_loss smooth_l1_loss norm "
    "normalize softplus interpolate"
)
_FLOAT_ANSWER = _words("softmax log_softmax sum prod cumsum cumprod")


class _Autocast(TorchFunctionMode):
    """As ``torch.autocast("cuda", torch.float16)``, which does not heed the meta device."""

    def __init__(self, fused_attention: bool) -> None:
        super().__init__()
        self._fused_attention = fused_attention
        self._cast: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return self._attention(*self._each(self._half, args), **self._each_named(self._half, kwargs))
        if name in _IN_HALF:
            return func(*self._each(self._half, args), **self._each_named(self._half, kwargs))
        if name in _IN_FLOAT:
            return func(*self._each(_float, args), **self._each_named(_float, kwargs))
        if name in _FLOAT_ANSWER and args[0].is_floating_point() and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float32
            if name.endswith("softmax"):
                dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
                # On CUDA one kernel reads fp16 and writes fp32.
                from_half = args[0].dtype == torch.float16
                return getattr(torch.ops.aten, f"_{name}")(args[0], dim, from_half)
        return func(*args, **kwargs)

    def _half(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        if not tensor.is_leaf or not tensor.requires_grad:
            return tensor.half()
        # A weight is cast once a step.
        if id(tensor) not in self._cast:
            self._cast[id(tensor)] = tensor.half()
        return self._cast[id(tensor)]

    @staticmethod
    def _each(change: Any, values: Any) -> Any:
        return tuple(
            change(value)
            if isinstance(value, torch.Tensor)
            else type(value)(_Autocast._each(change, value))
            if isinstance(value, list | tuple) and type(value) in (list, tuple)
            else value
            for value in values
        )

    @staticmethod
    def _each_named(change: Any, values: Any) -> Any:
        return {name: change(value) if isinstance(value, torch.Tensor) else value for name, value in values.items()}

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> torch.Tensor:
        aten = torch.ops.aten
        if query.dim() != 4:
            lifted = [tensor.reshape(-1, 1, *tensor.shape[-2:]) for tensor in (query, key, value)]
            result = self._attention(*lifted, dropout_p=dropout_p, is_causal=is_causal, scale=scale)
            return result.reshape(query.shape[:-1] + value.shape[-1:])
        if attn_mask is None and query.shape[-1] == value.shape[-1] and query.shape[-1] <= 256:
            return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = attn_mask.to(query.dtype)
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[-2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, False, dropout_p, is_causal, scale=scale
        )[0]


def _float(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype != torch.float16:
        return tensor
    return tensor.float()


def _channels_last(tensor: torch.Tensor) -> bool:
    if tensor.dim() != 4 or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=torch.channels_last)


def _plain(tensor: torch.Tensor) -> tuple[tuple[int, ...], str, int]:
    in_memory = zip(tensor.shape, tensor.stride(), strict=True)
    shape = tuple(1 if stride == 0 else size for size, stride in in_memory)
    return shape, str(tensor.dtype).removeprefix("torch."), tensor.element_size()


class Recorder(TorchDispatchMode):
    """Counts operations by class and size."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[Any] = Counter()
        self.phase = "forward"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket._qualified_op_name.split("::")[1]
        scalars: dict[str, Any] = {}
        if name == "convolution":
            scalars = {"groups": args[8], "transposed": args[6]}
        if name == "convolution_backward":
            scalars = {"groups": args[9], "transposed": args[7]}
        if name == "convolution" and (_channels_last(args[0]) or _channels_last(args[1])):
            # As cudnn_conv_suggest_memory_format; the meta device keeps to the usual order.
            result = torch.empty_like(result, memory_format=torch.channels_last)
        if name.startswith("upsample_"):
            scalars = {"channels_last": _channels_last(args[0])}
        elif scalars:
            scalars["channels_last"] = any(
                _channels_last(tensor) for tensor in [*args[:3], result] if isinstance(tensor, torch.Tensor)
            )
        if name.startswith(("native_layer_norm", "native_group_norm", "_softmax", "_log_softmax")):
            scalars["contiguous"] = args[0].is_contiguous()
        if name in ("native_batch_norm", "cudnn_batch_norm"):
            scalars["training"] = args[5]
        answers = [tensor for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
        operation = classify(
            name,
            [_plain(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)],
            [_plain(tensor) for tensor in answers],
            scalars=scalars,
            phase=self.phase,
        )
        if operation is not None:
            self.operations[operation] += 1
        return result


def inference(name: str, image: int, batch: int, channels_last: bool = False) -> StepWork:
    """What ``benchmark.py --amp`` of timm asks of a device a step."""
    model = _model(name, fused_attention=True, channels_last=channels_last).eval()
    given = _images(batch, image, channels_last)
    recorder = Recorder()
    with torch.no_grad(), _Autocast(True), recorder:
        model(given)
    return StepWork(dict(recorder.operations), items=batch, synchronisations=1)


def training(name: str, image: int, batch: int, channels_last: bool = False) -> StepWork:
    """The same of ``benchmark.py --bench train --amp``, as it ran with PyTorch 1.12.

    That is with attention written out, gradients zeroed in place, and SGD with Nesterov's momentum, tensor by tensor.
    """
    model = _model(name, fused_attention=False, channels_last=channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
    given = _images(batch, image, channels_last)
    classes = torch.empty(batch, dtype=torch.long, device="meta")
    for turn in range(2):
        recorder = Recorder()
        with recorder:
            recorder.phase = "optimizer"
            optimizer.zero_grad(set_to_none=False)
            recorder.phase = "forward"
            with _Autocast(False):
                output = model(given)
                if isinstance(output, tuple):
                    output = output[0]
                loss = functional.cross_entropy(output, classes)
            recorder.phase = "backward"
            loss.backward()
            recorder.phase = "optimizer"
            optimizer.step()
        del output, loss, turn
    return StepWork(dict(recorder.operations), items=batch, synchronisations=1)


def family(name: str) -> str:
    """The module of timm that a model is written in: its architecture."""
    import timm

    return timm.models.model_entrypoint(name).__module__.rsplit(".", 1)[1]


@lru_cache(maxsize=1)
def _model(name: str, fused_attention: bool, channels_last: bool) -> Any:
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(fused_attention)
    with torch.device("meta"):
        model = timm.create_model(name)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model


def _images(batch: int, image: int, channels_last: bool) -> torch.Tensor:
    given = torch.empty(batch, 3, image, image, device="meta")
    if channels_last:
        return given.contiguous(memory_format=torch.channels_last)
    return given

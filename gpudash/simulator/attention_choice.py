"""Which kernel CUDA would give an attention to (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend

HALVES = (torch.float16, torch.bfloat16)
LARGEST_FLASH_WIDTH = 256
NONE_LEFT = "No available kernel. Aborting execution."

PREFER_CUDNN = ((9, 0), (10, 0))
"""Compute capabilities on which torch takes cuDNN's attention where it can (``check_prefer_cudnn_attention``)."""

WIDEST_CUDNN = 128

cudnn: Any = getattr(SDPBackend, "CUDNN_ATTENTION", None)

Attended = list[torch.Tensor]


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
    dropout: float,
    capability: tuple[int, int],
) -> Any:
    """The first kernel, in torch's order of priority, that is enabled and takes these tensors on such a card.

    Raises:
        RuntimeError: torch's, when there is none.
    """
    attended = [query, key, value]
    enabled: Any = torch.backends.cuda
    usable = {
        SDPBackend.FLASH_ATTENTION: enabled.flash_sdp_enabled()
        and mask is None
        and _takes_flash(attended, is_causal, enable_gqa),
        SDPBackend.EFFICIENT_ATTENTION: enabled.mem_efficient_sdp_enabled()
        and not enable_gqa
        and _takes_efficient(attended, mask),
        SDPBackend.MATH: enabled.math_sdp_enabled(),
    }
    order = _order()
    if cudnn is not None and enabled.cudnn_sdp_enabled():
        usable[cudnn] = capability >= (8, 0) and not dropout and _takes_cudnn(attended, enable_gqa)
        if capability in PREFER_CUDNN:
            order.insert(0, cudnn)
    for backend in order:
        if usable.get(backend, False):
            return backend
    raise RuntimeError(NONE_LEFT)


def _order() -> list[Any]:
    known = {int(backend): backend for backend in (getattr(SDPBackend, name) for name in SDPBackend.__members__)}
    if hasattr(torch._C, "_get_sdp_priority_order"):
        return [known[number] for number in torch._C._get_sdp_priority_order() if number in known]
    return [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _fits(attended: Attended, enable_gqa: bool) -> bool:
    """Whether the tensors are of four dimensions, of one dtype, dense in the last one, and match in the first two."""
    query, key, value = attended
    if any(tensor.dim() != 4 for tensor in attended) or len({tensor.dtype for tensor in attended}) > 1:
        return False
    if any(tensor.stride(-1) != 1 and tensor.shape[-1] > 1 for tensor in attended):
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0] or 0 in (query.shape[2], key.shape[2]):
        return False
    if enable_gqa:
        return key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    return query.shape[1] == key.shape[1] == value.shape[1]


def _takes_flash(attended: Attended, is_causal: bool, enable_gqa: bool) -> bool:
    query, key, value = attended
    if query.dtype not in HALVES or not _fits(attended, enable_gqa):
        return False
    if not query.shape[3] == key.shape[3] == value.shape[3] <= LARGEST_FLASH_WIDTH:
        return False
    return not is_causal or query.shape[2] == key.shape[2]


def _takes_cudnn(attended: Attended, enable_gqa: bool) -> bool:
    """Half precision of widths that are multiples of 8; what dropout takes of it only cuDNN knows."""
    query, key, value = attended
    if query.dtype not in HALVES or not _fits(attended, enable_gqa):
        return False
    return all(tensor.shape[3] % 8 == 0 and tensor.shape[3] <= WIDEST_CUDNN for tensor in (query, key, value))


def _takes_efficient(attended: Attended, mask: torch.Tensor | None) -> bool:
    query, key, value = attended
    if query.dtype not in (*HALVES, torch.float32) or not _fits(attended, False):
        return False
    if mask is not None and mask.dim() not in (2, 4):
        return False
    multiple = 8 if query.dtype in HALVES else 4
    width, last = query.shape[3], value.shape[3]
    return width == key.shape[3] and width > 0 and last > 0 and width % multiple == 0 and last % multiple == 0

"""Convolutions by torch's own kernels, small: what they ask of torch's allocator and give back to it, in order.

``python -m tests.unit.simulator.own_convolutions`` with a CUDA build prints it as JSON; ``recorded/convolutions.json``
has that of torch 2.13 on a stand-in for the CUDA libraries, which computes nothing. The card does not matter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn

from tests.gpu.recording import History

DTYPE = torch.bfloat16

FIRST = torch.contiguous_format

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

Layer = tuple[Callable[[], nn.Module], tuple[int, ...]]

LAYERS: dict[str, Layer] = {
    "images": (lambda: nn.Conv2d(6, 8, 3, padding=1), (3, 6, 12, 10)),
    "pixels": (lambda: nn.Conv2d(6, 8, 1), (3, 6, 12, 10)),
    "patches, no bias": (lambda: nn.Conv2d(6, 8, 4, 4, bias=False), (3, 6, 12, 16)),
    "dilated": (lambda: nn.Conv2d(6, 8, 3, dilation=2), (3, 6, 12, 10)),
    "groups": (lambda: nn.Conv2d(6, 8, 3, groups=2), (3, 6, 12, 10)),
    "groups of one image, dilated": (lambda: nn.Conv2d(6, 8, 3, groups=2, dilation=2), (1, 6, 12, 10)),
    "channels": (lambda: nn.Conv2d(6, 12, 3, groups=6), (3, 6, 12, 10)),
    "signals": (lambda: nn.Conv1d(6, 8, 3, 2), (3, 6, 40)),
    "channels of signals": (lambda: nn.Conv1d(6, 6, 3, groups=6), (3, 6, 40)),
    "volumes": (lambda: nn.Conv3d(6, 8, 3, padding=1), (3, 6, 6, 8, 10)),
    "voxels": (lambda: nn.Conv3d(6, 8, 1, bias=False), (3, 6, 6, 8, 10)),
    "groups of volumes": (lambda: nn.Conv3d(6, 8, 3, groups=2), (3, 6, 6, 8, 10)),
    "channels of volumes": (lambda: nn.Conv3d(6, 6, 3, groups=6), (3, 6, 6, 8, 10)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 8, 4, 2, 1), (3, 6, 12, 10)),
    "transposed, pixels": (lambda: nn.ConvTranspose2d(6, 8, 1, bias=False), (3, 6, 12, 10)),
    "transposed groups": (lambda: nn.ConvTranspose2d(6, 8, 3, groups=2, output_padding=1, stride=2), (3, 6, 12, 10)),
    "transposed signals": (lambda: nn.ConvTranspose1d(6, 8, 3, 2), (3, 6, 40)),
    "transposed volumes": (lambda: nn.ConvTranspose3d(6, 8, 2, 2), (3, 6, 6, 8, 10)),
    "transposed volumes with fewer channels": (lambda: nn.ConvTranspose3d(8, 2, 3, padding=1), (3, 8, 6, 8, 10)),
    "transposed groups of volumes": (lambda: nn.ConvTranspose3d(6, 8, 2, groups=2), (3, 6, 6, 8, 10)),
}


def samples() -> Iterator[str]:
    """The names of all: layers whose channels lie first, and those of images and volumes with channels last, too."""
    for name, (_, size) in LAYERS.items():
        yield name
        if len(size) in LAST:
            yield f"{name}, last"
    yield "images, of which only the weight learns"
    yield "images, of which only the input has a gradient"


def requests(device: str, name: str) -> list[int]:
    """What the forward and the backward pass request, as a script: bytes, or ``-n`` where the n-th block is freed."""
    known, _, ending = name.rpartition(", ")
    is_last = ending == "last"
    make, size = LAYERS[known if is_last else name.partition(", of which")[0]]
    layout = LAST[len(size)] if is_last else FIRST
    layer = make().to(device, DTYPE)
    layer.to(memory_format=layout)
    layer.requires_grad_("only the input" not in name)
    values = torch.ones(size, dtype=DTYPE, device=device).contiguous(memory_format=layout)
    values.requires_grad_("only the weight" not in name)
    learnt = [tensor for tensor in (values, *layer.parameters()) if tensor.requires_grad]

    def run() -> list[torch.Tensor]:
        result = layer(values)
        incoming = torch.ones_like(result, memory_format=layout)
        return [result, *torch.autograd.grad(result, learnt, incoming)]

    with torch.backends.cudnn.flags(enabled=False):
        run()  # products have their workspaces from then on
        with History(values.device) as history:
            made = run()
            entries = history.entries()
    del made
    found: list[int] = []
    blocks: dict[int, int] = {}
    for entry in entries:
        if entry["action"] == "alloc":
            found.append(entry["size"])
            blocks[entry["addr"]] = sum(step > 0 for step in found)
        elif entry["action"] == "free_requested" and entry["addr"] in blocks:
            found.append(-blocks.pop(entry["addr"]))
    return found


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(requests('cuda', name))}" for name in samples())
    sys.stdout.write("{\n " + ",\n ".join(lines) + "\n}\n")

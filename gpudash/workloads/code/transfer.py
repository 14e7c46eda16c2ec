"""The bandwidth measurement as a plain PyTorch program."""

from __future__ import annotations

from gpudash.specs import TransferSpec
from gpudash.specs.transfer import COMPARED_BYTES, COMPUTE_MARGIN, COMPUTE_SIZE, COPY_STEPS, SERIES, SERIES_BYTES


def transfer_code(spec: TransferSpec, device: str) -> list[str]:
    """The lines of the program."""
    cuda = device.startswith("cuda")
    paths = _paths(spec, device)
    overlapped = any(path[3] for path in paths)
    pinned = ', non_blocking=memory == "pinned"' if cuda else ""
    return [
        "import statistics",
        "import time",
        "",
        "import torch",
        "",
        f"torch.set_num_threads({spec.threads or 1})",
        f'device = "{device}"',
        "",
        "def seconds_of(work, stream=None):",
        *(["    torch.cuda.synchronize()"] if cuda else []),
        "    began = time.perf_counter()",
        "    work()",
        *(["    (stream or torch.cuda.current_stream()).synchronize()"] if cuda else []),
        "    return time.perf_counter() - began",
        "",
        *(_beside() if overlapped else []),
        "paths = [",
        *(f"    {', '.join(map(repr, paths[first : first + 2]))}," for first in range(0, len(paths), 2)),
        "]",
        "for source, target, memory, overlapped in paths:",
        f"    for size in {spec.block_sizes}:",
        f"        count = min({SERIES}, max(1, -(-{SERIES_BYTES} // size)))",
        f"        a = {_buffer(cuda, 'source')}",
        f"        b = {_buffer(cuda, 'target')}",
        "        def copies():",
        "            for _ in range(count):",
        f"                b.copy_(a{pinned})",
        "        copies()",
        f"        seconds = [{_sample(overlapped)} for _ in range({spec.samples})]",
        "        rate = size * count / statistics.median(seconds)",
        '        print(source, target, memory, overlapped, size, f"{rate:.3e} B/s")',
        "",
        f"block = torch.ones({min(spec.block_sizes[-1], COMPARED_BYTES)}, dtype=torch.uint8)",
        "def steps(every_step):",
        "    there = block.to(device, copy=True)",
        f"    for _ in range({COPY_STEPS}):",
        "        there.bitwise_xor_(1)",
        "        if every_step:",
        '            there = there.to("cpu", copy=True).to(device, copy=True)',
        "    there.cpu()",
        'print(f"copied every step {seconds_of(lambda: steps(True)):.6f} s")',
        'print(f"copied once {seconds_of(lambda: steps(False)):.6f} s")',
    ]


def _paths(spec: TransferSpec, device: str) -> list[tuple[str, str, str, bool]]:
    """The ways that can be measured: source, target, the host's memory, and whether beside a computation."""
    ends = {"h2d": ("cpu", device), "d2h": (device, "cpu"), "h2h": ("cpu", "cpu")}
    return [
        (source, target, memory, overlapped)
        for name, (source, target) in ends.items()
        if spec.directions in ("all", name) and (device != "cpu" or name == "h2h")
        for memory in ("pageable", "pinned")
        if spec.memory in ("both", memory) and (memory == "pageable" or device.startswith("cuda"))
        for overlapped in (False, True)
        if spec.blocking in ("both", "overlapped" if overlapped else "blocking")
        and not (overlapped and (name == "h2h" or memory == "pageable"))
    ]


def _buffer(cuda: bool, place: str) -> str:
    pinned = f', pin_memory=memory == "pinned" and {place} == "cpu"' if cuda else ""
    return f"torch.empty(size, dtype=torch.uint8, device={place}{pinned}).fill_(1)"


def _sample(overlapped: bool) -> str:
    return "beside(copies) if overlapped else seconds_of(copies)" if overlapped else "seconds_of(copies)"


def _beside() -> list[str]:
    """Copies on a stream of their own, while products that last longer keep the GPU busy."""
    size = COMPUTE_SIZE
    return [
        f"matrix, stream = torch.ones({size}, {size}, device=device), torch.cuda.Stream()",
        "torch.mm(matrix, matrix)",
        "product_seconds = seconds_of(lambda: torch.mm(matrix, matrix))",
        "def beside(copies):",
        f"    products = max(1, int({COMPUTE_MARGIN} * seconds_of(copies) / product_seconds))",
        "    def both():",
        "        for _ in range(products):",
        "            torch.mm(matrix, matrix)",
        "        with torch.cuda.stream(stream):",
        "            copies()",
        "    return seconds_of(both, stream)",
        "",
    ]

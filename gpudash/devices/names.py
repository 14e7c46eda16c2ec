"""The existing devices and their names. Uses neither drivers nor torch."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gpudash.devices.card_performance import LANE_BYTES_PER_SECOND
from gpudash.devices.known_gpus import SIMULATED_PREFIX, KnownGpu, find, nearest
from gpudash.devices.simulated_cards import address_of, card_called, card_of_name, simulated_uuid
from gpudash.units import GIB, MAX_SIZE, MIB, format_bytes, parse_size

SIMULATED = "SIMULATED"
"""Shown with every simulated GPU and its figures."""

SPEED_REMARK = "times and rates are the CPU's, for {device} is SIMULATED"
"""Shown with every speed measured on a simulated GPU."""

SIMULATED_PRODUCT = f"{SIMULATED_PREFIX} GPU"

SHARED = "shared with the CPU"
"""Shown after a memory that a GPU shares with the CPU."""

OFFERED_BYTES = 8 * GIB
"""Capacity of the simulated GPU that is offered if there is no GPU."""

MOST_SIMULATED = 16


OF_AN_INSTANCE = "what a driver tells of a MIG instance is its memory and its processes; all else is of the whole GPU"
"""Why the other readings are gaps."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU listed by NVML, or simulated by gpudash.

    Attributes:
        nvml_index: position in NVML's own (PCI bus) order, not torch's index; for a simulated one, N in ``sim:N``.
        uuid: "GPU-…", the identity used in recordings and settings; "MIG-…" for a MIG instance, "SIM-0-24GiB" if
            simulated, torch's name if only torch knows it.
        pci_bus_id: "00000000:41:00.0" in any common spelling; compare with `pci_address`. "" if simulated.
        product: marketing name.
        total_bytes: memory; ``None`` if the driver does not report it.
        cuda_capability: (major, minor), if the driver reports it.
        multiprocessors: number of multiprocessors, if it follows from the driver's data.
        pcie_generation, pcie_width: maximum of the link; an idle link runs slower to save power.
        simulated: whether only its name and its memory's bookkeeping exist.
        shared_memory: whether it uses the computer's memory, like a GB10 or a Jetson.
        instances: number of its MIG instances, each a GPU of its own here; programs then only use those.
        parent: UUID of the GPU that contains this MIG instance; "" for a whole one.
        instance: index of the instance in it.
        by_torch: whether only torch knows it: its only readings are torch's figures during a run.
    """

    nvml_index: int
    uuid: str
    pci_bus_id: str
    product: str
    total_bytes: int | None = None
    cuda_capability: tuple[int, int] | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    simulated: bool = False
    multiprocessors: int | None = None
    shared_memory: bool = False
    instances: int = 0
    parent: str = ""
    instance: int = 0
    by_torch: bool = False

    @property
    def number(self) -> str:
        """NVML's number: "0", or "0:1" for a MIG instance."""
        if self.parent:
            return f"{self.nvml_index}:{self.instance}"
        return str(self.nvml_index)

    @property
    def link_bytes_per_second(self) -> float | None:
        """Rate of the link to the GPU in one direction; ``None`` if the driver does not report it."""
        return link_bytes_per_second(self.pcie_generation, self.pcie_width)


Kind = Literal["cpu", "cuda", "sim", "xpu", "mps"]

UNTRIED = "gpudash was never tried on {device}, which nobody who wrote it has"
"""Shown with Intel (xpu) and Apple (mps) devices."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that torch can use.

    Attributes:
        name: torch's name: "cpu", "cuda:0", "sim:0", "xpu:0", "mps"; "sim:0@24GiB" for a program's own card.
        product: product name.
        total_bytes: size of its memory.
        uuid: UUID of the GPU, as in `Gpu`; ``None`` for the CPU.
        problem: why no run can use it, in one sentence; ``None`` if a run can.
    """

    name: str
    product: str
    total_bytes: int | None
    uuid: str | None = None
    problem: str | None = None

    @property
    def kind(self) -> Kind:
        return kind_of(self.name)

    @property
    def remark(self) -> str:
        """A remark to show wherever it is offered; "" for none."""
        if self.kind in ("xpu", "mps"):
            return UNTRIED.format(device=self.name)
        return ""

    @property
    def memory(self) -> str:
        """Key of its memory in readings: "host", or a GPU's UUID; its name if it has no readings."""
        # For a GPU that only torch knows, the name is the UUID; a device with neither is never read.
        return self.uuid or ("host" if self.kind == "cpu" else self.name)

    @property
    def simulated(self) -> bool:
        """Whether it is a simulated GPU."""
        return self.kind == "sim"


def kind_of(name: str) -> Kind:
    """The kind in torch's name of a device: "sim" for "sim:0"; "cuda" for an invalid name."""
    kind = name.partition(":")[0]
    # "cpu" is never numbered: a numbered name is of another kind.
    return next((known for known in get_args(Kind) if known == kind and (":" not in name or known != "cpu")), "cuda")


def shown_name(name: str, product: str = "") -> str:
    """A device's name for display: "sim:0 (SIMULATED)"; others unchanged.

    Args:
        product: product of a simulated device, to name its GPU if it has one: "sim:0 (SIMULATED H100 80GB)".
    """
    if kind_of(name) != "sim":
        return name
    return f"{address_of(name)} ({simulated_text(product or card_of_name(name))})"


def badged_name(name: str) -> str:
    """A device's name next to a badge that says it is simulated: "sim:0", "sim:0 · 24 GiB" for a program's own
    card."""
    return " · ".join(filter(None, (address_of(name), card_of_name(name))))


def simulated_text(product: str) -> str:
    """A simulated GPU in words: "SIMULATED", "SIMULATED H100 80GB"."""
    return f"{SIMULATED} {known_product(product)}".strip()


def shown_devices(device: str, spec: Mapping[str, Any], product: str = "") -> str:
    """The devices of a run for display: "cuda:0, cuda:1", "2 × cpu", or `shown_name` for a single one.

    Args:
        device: device of the run.
        spec: fields of its spec; ``devices`` names all if there are several.
        product: product of a single device.
    """
    names = names_in(spec)
    if not names:
        return shown_name(device, product)
    return _counted(names, shown_name)


def badged_devices(device: str, spec: Mapping[str, Any]) -> str:
    """`shown_devices` next to a badge that says they are simulated."""
    return _counted(names_in(spec) or [device], badged_name)


def names_in(spec: Mapping[str, Any]) -> list[str]:
    """The devices of a run's ranks; none where it runs on one device."""
    return [name.strip() for name in str(spec.get("devices") or "").split(",") if name.strip()]


def _counted(names: Sequence[str], shown: Callable[[str], str]) -> str:
    counts = Counter(names)
    # A repeated name is counted, without its badge: "2 × cpu".
    return ", ".join(shown(name) if count == 1 else f"{count} × {name}" for name, count in counts.items())


SimulatedCard = int | KnownGpu
"""A GPU to simulate: its memory in bytes, or a known GPU."""

LEAST_SIMULATED = 302 * MIB
"""Smallest GPU that can be simulated, in bytes: the context, and a small segment of 2 MiB."""

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")

_MOST_GIB = 288
"""A number without a unit up to this is assumed to mean GiB."""


def parse_card(text: str) -> SimulatedCard:
    """A card from text: a size such as ``8GiB``, or the name of a known GPU such as ``h100``.

    Raises:
        ValueError: one sentence, if it is neither.
    """
    known = find(text)
    if known is not None:
        return known
    # A bare number means bytes elsewhere; here it probably meant GiB, so suggest likely spellings.
    if _NUMBER.fullmatch(text.strip()) and 0 < float(text) < MIB:
        size = f"{text.strip()}{'GiB' if float(text) <= _MOST_GIB else 'MiB'}"
        # Names of cards that contain the number too: "4090" probably means the card.
        near = [size, *(key for key in nearest(text) if text.strip() in re.findall("[0-9]+", key))]
        raise ValueError(f"{text.strip()} without a unit is a count of bytes; did you mean {_either(near)}?")
    near = nearest(text)
    try:
        return parse_size(text)
    except ValueError:
        if not near:
            raise
    raise ValueError(f"There is no known GPU {text!r}; did you mean {_either(near)}, or a size such as 8GiB?")


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[:-1] else names)


def parse_simulated(text: str) -> SimulatedCard:
    """Like `parse_card`, for a GPU that programs use, which must be larger than their context.

    Raises:
        ValueError: as in `parse_card`; also if the card has no room besides the context.
    """
    card = parse_card(text)
    size = size_of(card)
    if size < LEAST_SIMULATED:
        # The parser of sizes would accept it, but no program could create a tensor on it.
        raise ValueError(
            f"A GPU of {format_bytes(size)} has no room for a tensor: the CUDA context takes about "
            f"{format_bytes(LEAST_SIMULATED - 2 * MIB)} of it, so simulate {format_bytes(LEAST_SIMULATED)} or more"
        )
    return card


def parse_cards(text: str) -> list[SimulatedCard]:
    """Cards separated by commas, each as in `parse_simulated`; none for an empty text.

    Raises:
        ValueError: as in `parse_simulated`, for the first invalid one.
    """
    return [parse_simulated(part.strip()) for part in text.split(",") if part.strip()]


def size_of(card: SimulatedCard) -> int:
    """Bytes of memory."""
    if isinstance(card, KnownGpu):
        return card.total_bytes
    return card


def written(card: SimulatedCard) -> int | str:
    """A card as files and messages have it: its size in bytes, or its name, which `read_card` takes."""
    if isinstance(card, KnownGpu):
        return card.key
    return card


def card_name(card: SimulatedCard) -> str:
    """The name of a card: its product, or its size."""
    if isinstance(card, KnownGpu):
        return card.name
    return format_bytes(card)


LONGEST_SIZE = 20
"""Most digits of a size in bytes."""


def read_card(value: Any) -> SimulatedCard | None:
    """Read the output of `written`; ``None`` for anything else."""
    # bool is an int in Python, but not a size.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    if value.isascii() and value.isdecimal() and len(value) < LONGEST_SIZE:
        return int(value)  # lists of runs store text
    return find(value)


@dataclass(frozen=True, slots=True)
class Simulation:
    """The GPUs to simulate.

    Attributes:
        cards: ``sim:0``, ``sim:1`` and so on; empty if none was requested.
        others: bytes of simulated other processes on the first one.
        offered: whether to offer one if there is no GPU and none was requested.

    Raises:
        ValueError: one sentence, if there are too many, or a size is invalid.
    """

    cards: tuple[SimulatedCard, ...] = ()
    others: int = 0
    offered: bool = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """Capacity of each card in bytes."""
        return tuple(map(size_of, self.cards))

    def __post_init__(self) -> None:
        if len(self.cards) > MOST_SIMULATED:
            raise ValueError(f"At most {MOST_SIMULATED} GPUs can be simulated, not {len(self.cards)}")
        for size in self.sizes:
            if not 0 < size <= MAX_SIZE:
                raise ValueError(f"A simulated GPU has between 1 byte and 1 PiB of memory, not {format_bytes(size)}")
        first = OFFERED_BYTES
        if self.sizes:
            first = self.sizes[0]
        if not 0 <= self.others <= first:
            held, there = format_bytes(self.others), format_bytes(first)
            raise ValueError(f"Simulated other processes cannot hold {held} of the {there} of sim:0")


def simulated_product(card: SimulatedCard) -> str:
    """The product name of a simulated GPU: "Simulated H100 80GB"."""
    if isinstance(card, KnownGpu):
        return f"{SIMULATED_PREFIX} {card.name}"
    return SIMULATED_PRODUCT


def known_product(product: str) -> str:
    """The GPU in a simulated product's name: "H100 80GB"; "" if it is only a size."""
    return product.removeprefix(SIMULATED_PRODUCT).removeprefix(SIMULATED_PREFIX).strip()


def simulated_gpu(index: int, card: SimulatedCard) -> Gpu:
    """The GPU behind ``sim:index``."""
    uuid, product = simulated_uuid(index, card), simulated_product(card)
    # A size has no capability or multiprocessors: better none than made-up values.
    if not isinstance(card, KnownGpu):
        return Gpu(index, uuid, "", product, card, simulated=True)
    capability, count = card.capability, card.multiprocessors
    return Gpu(index, uuid, "", product, card.total_bytes, capability, simulated=True, multiprocessors=count)


def simulated_device(gpu: Gpu, problem: str | None = None) -> Device:
    """The device for a simulated GPU; a ``problem`` makes it unusable."""
    return Device(f"sim:{gpu.nvml_index}", gpu.product, gpu.total_bytes, gpu.uuid, problem)


def simulated_card(device: Device) -> SimulatedCard:
    """The card from which a simulated device was created."""
    return card_called(device.product, device.total_bytes or OFFERED_BYTES)


_PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-9a-f])?")


def pci_address(text: str) -> tuple[int, int, int]:
    """(domain, bus, device) in a PCI bus id, whatever the width of its domain.

    Raises:
        ValueError: if the text is not a PCI bus id.
    """
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a PCI bus id such as 00000000:41:00.0")
    return int(match[1] or "0", 16), int(match[2], 16), int(match[3], 16)


ONE_INSTANCE = "CUDA uses one MIG instance in a process; CUDA_VISIBLE_DEVICES=MIG-… chooses another by its UUID"


@dataclass(frozen=True, slots=True)
class CudaOrder:
    """torch's numbering of GPUs, computed without CUDA.

    Attributes:
        gpus: GPUs by torch's index.
        reason: why GPUs are missing or uncertain, in words; "" if none are.
    """

    gpus: tuple[Gpu, ...]
    reason: str = ""


def cuda_order_here(gpus: Sequence[Gpu]) -> CudaOrder:
    """The GPUs in torch's order, by the variables of this process."""
    return cuda_order(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))


def cuda_order(gpus: Sequence[Gpu], visible: str | None = None, order: str | None = None) -> CudaOrder:
    """The GPUs in torch's order.

    CUDA sorts by speed (``FASTEST_FIRST``) unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. CUDA_VISIBLE_DEVICES then selects
    by index, UUID or the beginning of a UUID, up to the first entry that matches no GPU (CUDA C++ Programming Guide,
    "CUDA Environment Variables"). If a MIG instance is selected, CUDA uses the first one and no other GPU (MIG User
    Guide, "CUDA Device Enumeration").

    Args:
        gpus: GPUs in any order.
        visible: value of CUDA_VISIBLE_DEVICES; ``None`` if it is not set.
        order: value of CUDA_DEVICE_ORDER.
    """
    # By address, not by NVML's index, which also follows the bus, but without a guarantee.
    by_bus = sorted((gpu for gpu in gpus if not gpu.parent), key=lambda gpu: pci_address(gpu.pci_bus_id))
    instances = sorted((gpu for gpu in gpus if gpu.parent), key=lambda gpu: gpu.instance)
    reason = ""
    if order != "PCI_BUS_ID" and len({gpu.product for gpu in by_bus}) > 1:
        # CUDA's measure of speed is undocumented; the capability comes closest, and the reason says so.
        by_bus.sort(key=lambda gpu: gpu.cuda_capability or (0, 0), reverse=True)
        reason = "CUDA numbers unlike GPUs by speed; set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure which is which"
    if visible is None:
        chosen = by_bus
    else:
        chosen = _visible(visible, by_bus, instances)
    # CUDA uses the first MIG instance that it finds, and no other GPU.
    first = next((part for gpu in chosen for part in instances if gpu.uuid in (part.uuid, part.parent)), None)
    if first is not None:
        # With a single GPU and instance, or an instance named by the user, there is no ambiguity.
        named = len(gpus) == 2 or (visible or "").startswith("MIG-")
        return CudaOrder((first,), "" if named else ONE_INSTANCE)
    if visible is None:
        hidden = 0
    else:
        hidden = len(by_bus) - len(chosen)
    if hidden:
        sentence = f"CUDA_VISIBLE_DEVICES={visible} hides {hidden} of {len(by_bus)} GPUs"
        if reason:
            reason = f"{sentence}; {reason}"
        else:
            reason = sentence
    return CudaOrder(tuple(chosen), reason)


def _visible(visible: str, by_bus: Sequence[Gpu], instances: Sequence[Gpu]) -> list[Gpu]:
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        # The first entry without a match ends the list, as in CUDA.
        gpu = _named(entry, by_bus, instances)
        if gpu is None:
            break
        if gpu in chosen:
            return []  # if a GPU is named twice, CUDA has no devices at all
        chosen.append(gpu)
    return chosen


def _named(entry: str, gpus: Sequence[Gpu], instances: Sequence[Gpu]) -> Gpu | None:
    if entry.isdecimal():
        if int(entry) < len(gpus):
            return gpus[int(entry)]
        return None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    # The beginning of a UUID only selects a GPU if it is unique.
    matches = [gpu for gpu in (*gpus, *instances) if gpu.uuid.startswith(entry)]
    if len(matches) == 1:
        return matches[0]
    return None


FASTEST_LINK_BYTES_PER_SECOND = 16 * LANE_BYTES_PER_SECOND[6]
"""Faster than any link in use: assumed if a driver does not report a GPU's link."""


def link_bytes_per_second(generation: float | None, width: float | None) -> float | None:
    """Rate of a PCIe link in one direction; ``None`` if generation or width is unknown."""
    if generation is None or width is None:
        return None
    lane = LANE_BYTES_PER_SECOND.get(int(generation))
    if lane is None:
        return None
    return lane * width


_MAKERS = {"cuda": "CUDA device", "xpu": "Intel GPU", "mps": "Apple GPU"}


def gpus_by_torch(order: CudaOrder, torch: Mapping[str, Any] | None) -> tuple[Gpu, ...]:
    """The GPUs that torch sees but NVML does not list: another vendor's, or with a hidden or missing library.

    Args:
        order: the GPUs that NVML lists, in torch's order.
        torch: torch's report on itself and its devices; ``None`` if not known yet.
    """
    seen = () if torch is None else torch.get("devices", ())
    cuda = [device for device in seen if kind_of(device["name"]) == "cuda"]
    # torch's first CUDA devices are NVML's, in this order; NVML lacks the ones after them.
    found = (*cuda[len(order.gpus) :], *(device for device in seen if kind_of(device["name"]) in ("xpu", "mps")))
    return tuple(_by_torch(device["name"], device["product"], device["total_bytes"], torch) for device in found)


def _by_torch(name: str, product: str | None, total: int | None, torch: Mapping[str, Any] | None) -> Gpu:
    kind, _, index = name.partition(":")
    if kind == "cuda" and (torch or {}).get("hip_version"):
        maker = "ROCm device"
    else:
        maker = _MAKERS[kind]
    return Gpu(int(index or 0), name, "", product or maker, total, shared_memory=kind == "mps", by_torch=True)


def torch_devices(order: CudaOrder, torch: Mapping[str, Any] | None) -> list[Device]:
    """The devices besides the CPU that a run can use, in torch's order; arguments as in `gpus_by_torch`."""
    # Until torch has reported, NVML's GPUs are assumed to be usable.
    listed = order.gpus if torch is None or torch["cuda_available"] else ()
    found = [Device(f"cuda:{n}", gpu.product, gpu.total_bytes, gpu.uuid) for n, gpu in enumerate(listed)]
    by_torch = gpus_by_torch(order, torch)
    return [*found, *(Device(gpu.uuid, gpu.product, gpu.total_bytes, gpu.uuid) for gpu in by_torch)]


def unread_gpus(torch: Mapping[str, Any], problem: str) -> str:
    """Why torch's GPUs only have torch's readings; replaces ``problem``, which says why NVML lists none."""
    names = [device["name"] for device in torch.get("devices", ())]
    if not names and not torch.get("cuda_available"):
        return problem
    rest = "torch tells of their memory while a run is on them, and of load and temperature nothing."
    if torch.get("hip_version"):
        return f"This torch is a build for ROCm {torch['hip_version']}: its cuda devices are AMD's; {rest}"
    if any(kind_of(name) == "cuda" for name in names) or not names:
        return f"NVIDIA's library of readings (NVML) answers for no GPU: those that torch sees are used; {rest}"
    return f"No driver is read for {' and '.join(names)}, and gpudash was never tried there: {rest}"


def why_torch_has_no_gpu(torch: Mapping[str, Any], order: CudaOrder) -> str | None:
    """One sentence if torch cannot use an existing GPU, or is missing itself; else ``None``."""
    if torch.get("problem"):
        return str(torch["problem"])
    # If NVML has no GPU, it is no news that torch has none.
    if torch["cuda_available"] or not (order.gpus or order.reason):
        return None
    if not torch.get("cuda_version"):
        build = "CPU build"
        if torch.get("hip_version"):
            build = f"build for ROCm {torch['hip_version']}"
        cause = f"torch {torch['version']} is a {build} though a GPU is there"
        return f"{cause}; install a CUDA build of torch to run on it."
    return order.reason or "torch sees no CUDA device though a GPU is there; gpudash doctor looks for the cause."


def default_device(devices: Sequence[Device], free_bytes: dict[str, int]) -> str:
    """The CUDA device with most free memory (by UUID in ``free_bytes``), else ``cpu``."""
    cuda = [device for device in devices if device.kind == "cuda"]
    if not cuda:
        return "cpu"
    # Of equal ones the first, which is also torch's default.
    return max(cuda, key=lambda device: free_bytes.get(device.uuid or "", 0)).name


def short_product(product: str) -> str:
    """A product's name without its vendor: "RTX 4090", "EPYC 9554"; a MIG instance's begins with its profile."""
    for maker in ("NVIDIA GeForce ", "NVIDIA ", "AMD ", "Intel(R) ", "Intel "):
        product = product.removeprefix(maker)
    whole, mig, profile = product.partition(" MIG ")
    # A MIG instance's name ends with its profile, which a narrow column would cut off.
    if mig:
        product = f"MIG {profile} {whole}"
    return product.replace("(R)", "").replace("(TM)", "").split(" CPU @")[0].strip()

"""Storages of the simulated device: the block of the card behind each one, and where its bytes really are."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpudash.memory.allocator.refusal import REFUSED, AllocationRefused, format_size, message
from gpudash.simulator import faults
from gpudash.simulator.device.naming import DEVICE, naming
from gpudash.simulator.device.simulated_gpu import SimulatedGpu

KEY = "PrivateUse1"
"""torch's dispatch key for the device that a process may add."""

EXTERNAL_DEVICE = 12
"""``kDLExtDev`` of dlpack.h, which torch maps to the device registered from Python."""

FLOAT = 2
"""``kDLFloat`` of dlpack.h."""

CPU = torch.device("cpu")

AS_ON_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""CPU kernels that use sizes and strides only, and so work for any device."""

OutOfMemoryError: Any = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError

BLOCK = "_sim_block"
"""Attribute of a simulated storage: its `StorageBlock`."""

BACKED = "_sim_storage"
"""Attribute of a host storage: a weak reference to the simulated one whose contents it holds."""

RELEASED = "_sim_let_go"
"""Attribute of a simulated storage whose block was released: the host bytes that hold its contents."""

PINNED = "_sim_pinned"
"""Attribute of host storages that were pinned."""

WITHOUT_NUMBERS = "_sim_without_numbers"
"""Attribute of host storages whose contents were not computed."""

_on_host: Callable[..., torch.UntypedStorage] = torch._C.StorageBase.__new__
_over_pointer: Any = torch._C._construct_storage_from_data_pointer
_size: Callable[[Any], int] = torch.UntypedStorage.nbytes
"""Size of a storage in bytes, even if its block was released."""

_set = torch.ops.aten.set_.source_Storage_storage_offset
_alias = torch.ops.aten.alias.default
_view_dtype = torch.ops.aten.view.dtype


class KernelLibrary(torch.library.Library):
    """Registers kernels that see real devices and sizes, even if torch calls them while a function mode replaces
    devices or ``torch.jit.trace`` turns sizes into tensors.

    torch disables modes for calls made through one, but not for those of a backward pass.
    """

    def impl(self, op_name: Any, fn: Any, *args: Any, **options: Any) -> None:
        """Register the kernel of one operation."""
        if isinstance(op_name, str):
            name = op_name
        else:
            name = op_name.name()
        if "::" not in name:
            name = f"{self.ns}::{name}"
        super().impl(op_name, seeing_plainly(fn, name), *args, **options)  # type: ignore[no-untyped-call]

    def fallback(self, fn: Any, *args: Any, **options: Any) -> None:
        """Register the kernel of all operations that have none of their own."""
        super().fallback(seeing_plainly(fn), *args, **options)  # type: ignore[no-untyped-call]

    def hand_on(self, op_name: str, fn: Any, key: str) -> None:
        """Register a kernel unchanged: one of torch's own, or one that reads no tensor's device or sizes."""
        super().impl(op_name, fn, key)  # type: ignore[no-untyped-call]


_is_mode_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
_jit: Any = torch._C
_tracing_state: Callable[[], Any] = _jit._get_tracing_state
_set_tracing_state: Callable[[Any], None] = _jit._set_tracing_state
_TRACER = _jit._dispatch_key_parse("Tracer")


def letting_the_tracer_in() -> Any:
    """A context manager that lets torch's tracer record: below a Python mode it is excluded and refuses to change."""
    shut_out = _jit._dispatch_tls_local_exclude_set().remove(_TRACER)
    return _jit._ForceDispatchKeyGuard(_jit._dispatch_tls_local_include_set().add(_TRACER), shut_out)


def seeing_plainly(kernel: Any, name: str = "") -> Any:
    """``kernel`` without torch's function modes and tracer, both of which change what it sees of a tensor.

    An error inside the kernel is reported as one of the simulator, see `gpudash.simulator.faults.simulator_error`.

    Args:
        kernel: the kernel to call.
        name: of its operation; "" if it serves any, in which case the operation is its first argument.
    """
    # a marker that torch compares with, not a function to call
    if kernel is torch.library.fallthrough_kernel:
        return kernel

    def run(*args: Any, **kwargs: Any) -> Any:
        tracing = _tracing_state()
        # rare: the common path below is kept as cheap as possible, since every operation takes it
        if tracing is not None:
            return run_untraced(tracing, args, kwargs)
        try:
            if not _is_mode_on():
                return kernel(*args, **kwargs)
            with torch._C.DisableTorchFunction():
                return kernel(*args, **kwargs)
        except Exception as error:
            fault = faults.simulator_error(error, name, args, kwargs)
            # torch's own errors, which a program may rely on, pass unchanged
            if fault is None:
                if isinstance(error, torch.OutOfMemoryError) and error.__traceback__ is not None:
                    # torch's allocator has no Python frames: ours would bury the program's. Operations around this one
                    # judge the error by its frames, so it is marked as judged.
                    setattr(error, faults.TORCHS, True)
                    error.__traceback__.tb_next = None
                raise
            raise fault from error

    def run_untraced(tracing: Any, args: Any, kwargs: Any) -> Any:
        with letting_the_tracer_in():
            _set_tracing_state(None)
            try:
                return run(*args, **kwargs)
            finally:
                _set_tracing_state(tracing)

    return run


def kernel_library(namespace: str) -> KernelLibrary:
    """Registers kernels for operations of ``namespace``, ``_`` for all; they last as long as the result."""
    return KernelLibrary(namespace, "IMPL")  # type: ignore[no-untyped-call]


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int), ("device_id", ctypes.c_int)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter)]


class StorageBlock:
    """What is behind one storage: the card's block and, if numbers are computed, the bytes on the host.

    It is an attribute of the storage's Python object, which torch keeps for as long as the storage lives.
    """

    __slots__ = ("address", "card", "host")

    def __init__(self, card: SimulatedGpu, address: int, host: torch.UntypedStorage | None) -> None:
        self.card = card
        self.address = address
        self.host = host

    def __del__(self) -> None:
        """Release the block. May run in any thread, during any operation."""
        # only queued: a finalizer may interrupt the very call that holds the card's lock
        self.card.release(self.address)


class Storages:
    """Creates and finds the storages of the simulated device.

    Attributes:
        on_full: called with the card and the refused request before torch's error is raised.
    """

    def __init__(self) -> None:
        self._prototypes: dict[tuple[int, torch.dtype, bool], torch.Tensor] = {}
        self._kept: list[Any] = []
        self.on_full: list[Callable[[SimulatedGpu, AllocationRefused], None]] = []

    def open(self, card: SimulatedGpu) -> None:
        """Create the context on ``card``, as the first use of CUDA does.

        Raises:
            torch.OutOfMemoryError: there is no memory for it.
        """
        try:
            card.open()
        except AllocationRefused as refused:
            raise self._out_of_memory(card, refused) from None

    def block(self, storage: torch.UntypedStorage) -> StorageBlock | None:
        """The block behind ``storage``; ``None`` if it has no bytes."""
        return getattr(storage, BLOCK, None)

    def host(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The host bytes that hold the contents of ``storage``; not in a dry run."""
        block: StorageBlock | None = getattr(storage, BLOCK, None)
        if block is not None and block.host is not None:
            return block.host
        # torch refuses to create a tensor without a storage, and an empty one has no block
        if not storage.nbytes():
            return _on_host(torch.UntypedStorage, 0)
        # torch created it from the pointer of another storage, as it does when reading a file
        return _storage(storage.data_ptr(), CPU, storage.nbytes())

    def known(self, index: int, host: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """The live storage on device ``index`` whose contents ``host`` holds."""
        backed = getattr(host, BACKED, None)
        storage: torch.UntypedStorage | None = None
        if backed is not None:
            storage = backed()
        # the storage may have been freed, or belong to another card's tensor over the same host bytes
        if storage is not None and storage.device.index == index:
            return storage
        return None

    def new(
        self, card: SimulatedGpu, size: int, host: torch.UntypedStorage | None = None, label: str | None = None
    ) -> torch.UntypedStorage:
        """Create a storage of ``size`` bytes on ``card``.

        Args:
            card: the card.
            size: bytes.
            host: host bytes that hold its contents; new ones by default.
            label: what it is for, if known.

        Raises:
            torch.OutOfMemoryError: the card is full.
            RuntimeError: torch's, if host memory is full.
        """
        # as in torch, 0 bytes make no request
        if size == 0:
            return _storage(0, torch.device(DEVICE, card.index), 0)
        try:
            address = card.allocate(size, label)
        except AllocationRefused as refused:
            raise self._out_of_memory(card, refused) from None
        block = StorageBlock(card, address, host)
        pointer = address
        if card.computes:
            # the pointer leads to host bytes, so that reading it by mistake does not crash
            if host is None:
                host = block.host = _on_host(torch.UntypedStorage, size)
            pointer = host.data_ptr()
        storage = _storage(pointer, torch.device(DEVICE, card.index), size)
        # the block lives as long as the storage's Python object, and is freed with it
        setattr(storage, BLOCK, block)
        # a weak reference: the host bytes must not keep the simulated storage alive
        if host is not None:
            setattr(host, BACKED, weakref.ref(storage))
        return storage

    def release(self, storage: torch.UntypedStorage) -> None:
        """Free the card's block behind ``storage`` until `take_again`.

        Its host bytes stay, since torch keeps their address.
        """
        block = self.block(storage)
        if block is not None:
            setattr(storage, RELEASED, block.host)
            setattr(storage, BLOCK, None)

    def take_again(self, storage: torch.UntypedStorage, card: SimulatedGpu) -> bool:
        """Undo `release` with new bytes on ``card``; false if the storage was not released.

        Raises:
            torch.OutOfMemoryError: the card is full.
        """
        if self.block(storage) is not None or not _size(storage):
            return False
        try:
            address = card.allocate(_size(storage))
        except AllocationRefused as refused:
            raise self._out_of_memory(card, refused) from None
        setattr(storage, BLOCK, StorageBlock(card, address, getattr(storage, RELEASED, None)))
        return True

    def has_released(self, storage: torch.UntypedStorage) -> bool:
        """Whether `release` was called for ``storage`` and not yet undone."""
        return self.block(storage) is None and hasattr(storage, RELEASED)

    def tensor(
        self,
        storage: torch.UntypedStorage,
        size: Sequence[int],
        stride: Sequence[int],
        offset: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """A tensor over ``storage``; sizes, strides and offset in elements."""
        tensor: torch.Tensor = _alias.redispatch(AS_ON_CPU, self._prototype(storage.device.index or 0, dtype))
        _set.redispatch(AS_ON_CPU, tensor, storage, offset, list(size), list(stride))
        return tensor

    def _out_of_memory(self, card: SimulatedGpu, refused: AllocationRefused) -> Exception:
        """torch's error; observers of a full card are called first, while everything is still in place."""
        # before the error unwinds the stack: to explain a full memory, a callback must see what filled it
        for callback in self.on_full:
            callback(card, refused)
        made: Exception = OutOfMemoryError(message(refused, naming.shown.upper(), _processes(card)))
        setattr(made, REFUSED, refused)
        return made

    def _prototype(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        """An empty tensor; aliases of it are inference tensors if it is one."""
        key = index, dtype, torch.is_inference_mode_enabled()
        found = self._prototypes.get(key)
        if found is None:
            found = self._imported(index)
            if dtype != torch.float32:
                found = _view_dtype.redispatch(AS_ON_CPU, found, dtype)
            self._prototypes[key] = found
        return found

    def _imported(self, index: int) -> torch.Tensor:
        """An empty tensor on device ``index``: for a Python device torch creates tensors only through dlpack."""
        shape = (ctypes.c_int64 * 1)(0)
        strides = (ctypes.c_int64 * 1)(1)
        managed = _DLManagedTensor()
        managed.dl_tensor = _DLTensor(
            None, _DLDevice(EXTERNAL_DEVICE, index), 1, _DLDataType(FLOAT, 32, 1), shape, strides, 0
        )
        managed.deleter = _Deleter(_keep)
        name = ctypes.c_char_p(b"dltensor")
        self._kept += [managed, shape, strides, name]  # torch keeps pointers to all of them
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        tensor: torch.Tensor = torch._C._from_dlpack(make(ctypes.addressof(managed), name, None))
        return tensor


_transforms: Any = torch._C._functorch


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with a storage inside one that transforms of ``torch.func`` have wrapped, at any depth."""
    while _transforms.is_functorch_wrapped_tensor(tensor):
        tensor = _transforms.get_unwrapped(tensor)
    return tensor


def lacks_numbers(tensor: torch.Tensor) -> bool:
    """Whether a CPU tensor has no numbers, see `gpudash.simulator.dry_run.host_tensors`."""
    return tensor.layout is torch.strided and getattr(unwrapped(tensor).untyped_storage(), WITHOUT_NUMBERS, False)


def _processes(card: SimulatedGpu) -> str:
    """torch's sentences about the processes that use a card, in order of their IDs.

    As in ``reportProcessMemoryInfo`` of c10/cuda/CUDACachingAllocator.cpp, which queries NVML.
    """
    held = dict(card.others)
    if card.is_shared and card.held_bytes:
        held[os.getpid()] = card.held_bytes
    names = {pid: f"Process {pid}" for pid in held}
    names[os.getpid()] = "Including non-PyTorch memory, this process"
    return "".join(f"{names[pid]} has {format_size(held[pid])} memory in use. " for pid in sorted(held))


def _keep(_managed: Any) -> None:
    """The deleter of an imported tensor, which has nothing to free."""


def _storage(pointer: int, device: torch.device, size: int) -> torch.UntypedStorage:
    made: torch.UntypedStorage = _over_pointer(pointer, device, size)
    return made


def contiguous(size: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor, in elements."""
    strides = [1] * len(size)
    for axis in range(len(size) - 2, -1, -1):
        # an empty dimension counts as one, as in torch
        strides[axis] = strides[axis + 1] * max(size[axis + 1], 1)
    return strides


def extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Number of elements a storage must hold for a tensor with these sizes and strides."""
    last = 0
    for length, step in zip(size, stride):
        if length == 0:
            return 0
        last += (length - 1) * step
    return last + 1

"""CUDA kernels loaded and launched through the driver: grids of blocks, and clusters of them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator

import torch

from torchmdx.runtime.device_guard import gpu_index, on_device

_SUCCESS = 0
_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_COOPERATIVE, _CLUSTER = 2, 4  # of CUlaunchAttributeID


class DriverError(RuntimeError):
    """A function of the CUDA driver failed; says which and why."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int, what: str) -> None:
    if code != _SUCCESS:
        name = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(name))
        raise DriverError(f"{what} failed: {(name.value or b'unknown error').decode()}")


@contextlib.contextmanager
def _in_context(device: torch.device) -> Iterator[None]:
    """The device is current, with its context: in a new thread torch makes one current only when it launches."""
    driver, context = _driver(), ctypes.c_void_p()
    with on_device(device):
        torch.cuda.init()
        _check(driver.cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
        if not context:
            index = ctypes.c_int(gpu_index(device))
            _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), index), "cuDevicePrimaryCtxRetain")
            _check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        yield


def _function(code: bytes, name: str, device: torch.device, most_shared_bytes: int) -> ctypes.c_void_p:
    """A kernel of a cubin, loaded on a device. Raises DriverError."""
    driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
    with _in_context(device):
        _check(driver.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
        _check(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "cuModuleGetFunction")
        _check(driver.cuFuncSetAttribute(function, _SHARED_BYTES, most_shared_bytes), "cuFuncSetAttribute")
    return function


def _launch(config: _Config, function: ctypes.c_void_p, given: ctypes.Structure) -> None:
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(given))
    _check(_driver().cuLaunchKernelEx(ctypes.byref(config), function, arguments, None), "cuLaunchKernelEx")


class GridKernel:
    """A kernel on one device whose blocks run in any order. code: a cubin. Raises DriverError."""

    def __init__(self, code: bytes, name: str, device: torch.device, *, threads: int, shared_bytes: int) -> None:
        self.device, self.threads, self.shared_bytes, self._code = device, threads, shared_bytes, code
        self._function = _function(code, name, device, shared_bytes)

    def launch(self, blocks: int, given: ctypes.Structure) -> None:
        """Launches on the current stream with one argument, a structure."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        shape = dict(grid=(blocks, 1, 1), block=(self.threads, 1, 1))
        _launch(_Config(**shape, shared_bytes=self.shared_bytes, stream=stream), self._function, given)


class ClusterKernel:
    """A kernel on one device whose blocks run in clusters.

    Raises DriverError.

    Args:
        code: A cubin.
        most_shared_bytes: The most dynamic shared memory of a block.
        together: All blocks run at the same time, or the launch fails.
    """

    def __init__(
        self,
        code: bytes,
        name: str,
        device: torch.device,
        *,
        threads: int,
        cluster: int,
        most_shared_bytes: int,
        together: bool = True,
    ) -> None:
        self.device, self.threads, self.cluster, self._code = device, threads, cluster, code
        self._function, self._num_attributes = _function(code, name, device, most_shared_bytes), 1 + together
        self._attributes = (_Attribute * 2)()
        self._attributes[0].id, self._attributes[1].id = _CLUSTER, _COOPERATIVE
        self._attributes[0].value[:3] = [cluster, 1, 1]
        self._attributes[1].value[0] = 1

    def _config(self, clusters: int, shared_bytes: int, stream: int, num_attributes: int) -> _Config:
        return _Config(
            grid=(clusters * self.cluster, 1, 1),
            block=(self.threads, 1, 1),
            shared_bytes=shared_bytes,
            stream=stream,
            attributes=self._attributes,
            num_attributes=num_attributes,
        )

    def most_clusters(self, shared_bytes: int) -> int:
        """Clusters that this device can run at the same time."""
        found, config = ctypes.c_int(), self._config(1, shared_bytes, 0, 1)
        with _in_context(self.device):
            code = _driver().cuOccupancyMaxActiveClusters(ctypes.byref(found), self._function, ctypes.byref(config))
        _check(code, "cuOccupancyMaxActiveClusters")
        return found.value

    def launch(self, clusters: int, shared_bytes: int, given: ctypes.Structure) -> None:
        """Launches on the current stream with one argument, a structure."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        _launch(self._config(clusters, shared_bytes, stream, self._num_attributes), self._function, given)

"""The rates of a device, for floors.py: measured with large products and copies; of L1 from clock and width."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import torch

from torchmdx.commands.floors import L1_BYTES_A_CLOCK, SPLIT_PRODUCTS, Rates

CLOCK_RATE = 13  # CU_DEVICE_ATTRIBUTE_CLOCK_RATE, kHz


def device_rates(device: torch.device, precision: str) -> Rates:
    """Rates for a precision of a step: "float32" (on a GPU three TF32 products), "tf32", "bfloat16" or "float64"."""
    wide = torch.float64 if precision == "float64" else torch.float32
    memory = copy_rate(device)
    if device.type != "cuda":
        rate = product_rate(device, wide)
        return Rates(products=rate, arithmetic=rate, memory=memory, one_unit=True)
    arithmetic = product_rate(device, wide)
    products = arithmetic
    if precision == "bfloat16":
        products = product_rate(device, torch.bfloat16)
    elif wide == torch.float32:
        products = product_rate(device, wide, tf32=True) / (SPLIT_PRODUCTS if precision == "float32" else 1)
    return Rates(products=products, arithmetic=arithmetic, memory=memory, l1=l1_rate(device))


def product_rate(device: torch.device, dtype: torch.dtype, *, tf32: bool = False) -> float:
    """Operations a second of a product of large matrices; tf32: of float32 in TF32."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.rand(size, size, device=device, dtype=dtype)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        return 2.0 * size**3 / _seconds(lambda: a @ a, device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def copy_rate(device: torch.device) -> float:
    """Bytes a second, read plus written, of a large copy."""
    a = torch.rand(2**26 if device.type == "cuda" else 2**23, device=device)
    b = torch.empty_like(a)
    return 2.0 * a.numel() * a.element_size() / _seconds(lambda: b.copy_(a), device)


def l1_rate(device: torch.device) -> float | None:
    """Bytes a second that all multiprocessors of a GPU read from L1 at its highest clock; None if that is unknown."""
    kilohertz = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    handle = ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(handle), index) or driver.cuDeviceGetAttribute(
        ctypes.byref(kilohertz), CLOCK_RATE, handle
    ):
        return None
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return L1_BYTES_A_CLOCK * multiprocessors * kilohertz.value * 1e3


def _seconds(run: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """The shortest of a few runs, after two others."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[2:])

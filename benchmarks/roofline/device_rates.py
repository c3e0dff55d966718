"""The rates of a device, for floors.py: measured with large products and copies; of L1 from clock and width."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from benchmarks.roofline.floors import L1_BYTES_A_CLOCK, Rates
from torchmdx.runtime.isolation import EXACT, TF32, float32_products

CLOCK_RATE = 13  # CU_DEVICE_ATTRIBUTE_CLOCK_RATE, kHz
CACHES = Path("/sys/devices/system/cpu")  # of Linux
SECONDS_TO_MEASURE, FEWEST_RUNS = 0.3, 5  # for the shortest of several runs
# What tensor cores multiply: the dtype of matrices, and whether torch has to round them.
UNITS = {
    "tf32": (torch.float32, True),
    "fp16": (torch.float16, False),
    "float64": (torch.float64, False),
}


def device_rates(device: torch.device, precision: str, units: Iterable[str] = ()) -> Rates:
    """Rates for a step of this precision; units: of UNITS, which its kernels use."""
    wide = torch.float64 if precision == "float64" else torch.float32
    memory, arithmetic, cache = copy_rate(device), product_rate(device, wide), cache_bytes(device)
    if device.type != "cuda":
        return Rates(products={}, arithmetic=arithmetic, memory=memory, cache=cache, one_unit=True)
    products = {name: product_rate(device, UNITS[name][0], tf32=UNITS[name][1]) for name in sorted(units)}
    return Rates(products=products, arithmetic=arithmetic, memory=memory, l1=l1_rate(device), cache=cache)


def cache_bytes(device: torch.device) -> float:
    """Bytes of the last cache before memory, of a CPU those of all its chips; 0 if they are not known."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes: dict[tuple[str, str], float] = {}
    for folder in CACHES.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size, shared = ((folder / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
        if size.endswith("K"):
            sizes[level, shared] = float(size[:-1]) * 1024
    last = max((level for level, _ in sizes), default="")
    return sum(size for (level, _), size in sizes.items() if level == last)


def product_rate(device: torch.device, dtype: torch.dtype, *, tf32: bool = False) -> float:
    """Operations a second of a product of large matrices; tf32: of float32 in TF32."""
    size = 8192 if device.type == "cuda" else 512
    a = torch.rand(size, size, device=device, dtype=dtype)
    with float32_products(TF32 if tf32 else EXACT):
        return 2.0 * size**3 / _seconds(lambda: a @ a, device)


def copy_rate(device: torch.device) -> float:
    """Bytes a second, read plus written, of a large copy."""
    a = torch.rand(2**26 if device.type == "cuda" else 2**23, dtype=torch.float32, device=device)
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


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """The shortest of several runs, after two others: other work of the machine only makes runs longer."""
    times: list[float] = []
    while len(times) < 2 + FEWEST_RUNS or sum(times) < SECONDS_TO_MEASURE:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[2:])

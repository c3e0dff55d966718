"""Kernels that are set up while the one before them still runs: programmatic dependent launch (compute capability 9).

A kernel in a row of small ones waits for the last program of the one before, and only then is it launched. Launched
with `overlapped`, its programs may be there already: they wait themselves (`wait_for_results`) before they touch memory.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@functools.cache
def overlapped(device: torch.device) -> dict[str, Any]:
    """Options of a launch. Only for kernels that begin with `wait_for_results`, of all that they read or write."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return {}
    if os.environ.get("TM_PDL", "1") == "0":
        return {}
    return {"OVERLAPPED": True, "launch_pdl": True}


@triton.jit
def wait_for_results(OVERLAPPED: tl.constexpr):
    """Until all kernels before this one have ended and what they wrote can be read; then the next may be set up."""
    if OVERLAPPED:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def prefetch(POINTER, LINES: tl.constexpr, OVERLAPPED: tl.constexpr, HOW: tl.constexpr):
    """Fetches LINES x 128 bytes that no kernel of the row writes into the nearest cache, and waits for nothing."""
    if OVERLAPPED:
        at = (POINTER + tl.arange(0, LINES) * 32).to(tl.int64)
        if HOW == 1:
            tl.inline_asm_elementwise(
                "prefetch.global.L1 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
            )
        if HOW == 2:
            tl.inline_asm_elementwise("ld.global.ca.u32 $0, [$1];", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def prefetch3(POINTER, SIZE: tl.constexpr, OVERLAPPED: tl.constexpr, HOW: tl.constexpr):
    """The same for three matrices of so many floats."""
    for k in tl.static_range(3):
        prefetch(POINTER + k * SIZE, SIZE // 32, OVERLAPPED, HOW)

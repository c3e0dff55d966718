"""Weights fetched before they are needed: into the first cache, while what comes before them waits for other things."""

import triton
import triton.language as tl


@triton.jit
def prefetch(POINTER, LINES: tl.constexpr, HOW: tl.constexpr):
    """Fetches LINES x 128 bytes, and waits for nothing."""
    if HOW > 0:
        at = (POINTER + tl.arange(0, LINES) * 32).to(tl.int64)
        if HOW == 1:
            tl.inline_asm_elementwise(
                "prefetch.global.L1 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
            )
        if HOW == 2:
            tl.inline_asm_elementwise("ld.global.ca.u32 $0, [$1];", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def prefetch3(POINTER, SIZE: tl.constexpr, HOW: tl.constexpr):
    """The same for three matrices of so many floats."""
    for k in tl.static_range(3):
        prefetch(POINTER + k * SIZE, SIZE // 32, HOW)

"""The C libraries that are compiled without knowing the processor: sources, flags, and their files in the package.

Imports nothing but the standard library: the build of the package reads this file by itself.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

# Name: the file that is compiled, and all files of the library, from the package's folder.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "tensornet": ("engines/cpu/tensornet.c", "engines/cpu/tensornet*.[ch]", "runtime/instructions.h"),
    "tensornet_double": ("engines/cpu/tensornet_double.c", "engines/cpu/tensornet*.[ch]", "runtime/instructions.h"),
    "kernels": ("engines/cpu/kernels.c", "engines/cpu/kernels*.[ch]", "runtime/instructions.h"),
    "cell_list": ("neighbors/backends/cell_list.c", "neighbors/backends/cell_list*.[ch]", "runtime/instructions.h"),
}
# No -march: the libraries have code for several instruction sets where it matters, and choose at run time.
FLAGS = ("-O3", "-ffp-contract=fast", "-fopenmp-simd", "-fPIC", "-shared", "-std=gnu11", "-w")
_DIGITS = 16


def texts(package: Path, name: str) -> list[str]:
    """The sources of a library, in a fixed order."""
    paths = [path for pattern in LIBRARIES[name][1:] for path in package.glob(pattern)]
    return [path.read_text() for path in sorted(paths)]


def packaged_file(package: Path, name: str) -> Path:
    """Where a build of the package puts the library. The name holds a hash of sources and flags, so none is stale."""
    digest = hashlib.sha256("\0".join([*texts(package, name), *FLAGS]).encode()).hexdigest()[:_DIGITS]
    return package / LIBRARIES[name][0].replace(".c", f"-{digest}.so")

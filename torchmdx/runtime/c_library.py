"""C sources of the package as loaded libraries: the one that the package was built with, else compiled on first use."""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
from pathlib import Path

from torchmdx.runtime.c_sources import FLAGS, LIBRARIES, packaged_file, texts
from torchmdx.runtime.compile_cache import CompileError, find_compiler, load_library, run_compiler

log = logging.getLogger(__name__)
PACKAGE = Path(__file__).parents[1]


@functools.cache
def c_library(name: str) -> ctypes.CDLL | None:
    """The library of this name in LIBRARIES; None, with one line in the log, if it can't be compiled or loaded.

    Functions return int64 and have no declared arguments.
    """
    return _found(name)[0]


def c_library_state(name: str) -> str:
    """Where the library comes from, or why there is none, in a few words."""
    return _found(name)[1]


@functools.cache
def _found(name: str) -> tuple[ctypes.CDLL | None, str]:
    packaged = packaged_file(PACKAGE, name)
    if packaged.exists():
        try:
            return ctypes.CDLL(str(packaged)), "compiled with the package"
        except OSError as error:
            log.warning("%s is compiled again: it can't be loaded (%s)", packaged.name, error)
    try:
        # Whatever compiler made it: a folder that is shared serves machines without one.
        loaded = load_library(
            name, (*texts(PACKAGE, name), " ".join(FLAGS), platform.machine()), lambda made: _compile(name, made)
        )
    except (OSError, CompileError) as error:
        log.warning("the CPU runs slower code in torch instead of %s: %s", name, error)
        return None, str(error)
    return loaded, "compiled on this machine"


def _compile(name: str, made: Path) -> None:
    source = PACKAGE / LIBRARIES[name][0]
    command = [find_compiler("CC", "cc", "gcc", "clang"), *FLAGS, str(source), "-o", str(made), "-lm"]
    run_compiler(command, source.name, folder=source.parent)

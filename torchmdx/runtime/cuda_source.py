"""CUDA C++ of the package: compiled by NVRTC, which comes with torch's CUDA wheels, and kept in the cache of code."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torchmdx.runtime.compile_cache import CompileError, library_file

FLAGS = ("--std=c++17",)
_SUCCESS = 0
_TYPES: dict[str, type[Any]] = {"int": ctypes.c_int, "float": ctypes.c_float, "long long": ctypes.c_longlong}


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """The library of NVRTC. Raises CompileError if it is not installed."""
    for path in _candidates():
        try:
            for builtins in sorted(path.parent.glob("libnvrtc-builtins.so*")):
                ctypes.CDLL(str(builtins))  # NVRTC asks for it by name only
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CompileError("NVRTC, the compiler of torch's CUDA wheels, was not found (libnvrtc.so)")


def _candidates() -> Iterator[Path]:
    """Files of NVRTC next to torch, and in the packages that its wheels depend on."""
    torch, nvidia = importlib.util.find_spec("torch"), importlib.util.find_spec("nvidia")
    if torch is not None and torch.origin is not None:
        yield from sorted((Path(torch.origin).parent / "lib").glob("libnvrtc-*.so*"))
        yield from sorted((Path(torch.origin).parent / "lib").glob("libnvrtc.so*"))
    for base in nvidia.submodule_search_locations or () if nvidia is not None else ():
        yield from sorted(Path(base).glob("*/lib/libnvrtc.so.*"))


def cubin(
    name: str, files: Mapping[str, str], architecture: str, constants: Mapping[str, int | str] | None = None
) -> bytes:
    """Code for an architecture, such as "sm_90", from the file `name`; the other files are what it includes.

    Args:
        constants: Macros to define. From the cache, if it is there.

    Raises:
        CompileError: If no folder can keep the code.
        CacheError: If no folder can keep the code.
    """
    library = nvrtc()
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    flags = (f"--gpu-architecture={architecture}", *FLAGS, *(f"-D{k}={v}" for k, v in (constants or {}).items()))
    key = (*files, *files.values(), *flags, f"{major.value}.{minor.value}")
    made = library_file(Path(name).stem, key, lambda path: _write(path, _compiled(library, name, files, flags)))
    return made.read_bytes()


def cubins(
    name: str,
    files: Mapping[str, str],
    architecture: str,
    kernels: Mapping[str, str],
    constants: Mapping[str, int | str] | None = None,
) -> dict[str, bytes]:
    """As `cubin`, for a file with one kernel: code for each of several, by its name, compiled in parallel.

    Nearly all of the time goes into the machine code of a kernel, so several take as long as the largest.

    Args:
        kernels: What each calls, by its name: the file has macros KERNEL and NAME for them.
    """

    def one(kernel: str) -> bytes:
        return cubin(name, files, architecture, {**(constants or {}), "NAME": kernel, "KERNEL": kernels[kernel]})

    with ThreadPoolExecutor(len(kernels)) as pool:
        return dict(zip(kernels, pool.map(one, kernels), strict=True))


def members(text: str, name: str) -> tuple[tuple[str, type[Any]], ...]:
    """The members of `struct NAME` in a source, for the `_fields_` of a ctypes.Structure.

    Pointers, and numbers of types int, float and long long; several of a type may stand in one declaration.
    """
    inside = text[text.index(f"struct {name} {{") :].partition("{")[2].partition("\n};")[0]
    found: list[tuple[str, type[Any]]] = []
    for declaration in re.sub("//.*", "", inside).split(";"):
        first, *others = declaration.strip().split(",")
        kind, _, rest = first.rpartition(" ")
        for member in (rest, *others) if kind else ():
            pointer = "*" in member
            found.append((member.strip().lstrip("*"), ctypes.c_void_p if pointer else _TYPES[kind]))
    return tuple(found)


def _write(path: Path, code: bytes) -> None:
    path.write_bytes(code)


def _check(library: ctypes.CDLL, code: int, what: str) -> None:
    if code != _SUCCESS:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompileError(f"{what} failed: {library.nvrtcGetErrorString(code).decode()}")


def _compiled(library: ctypes.CDLL, name: str, files: Mapping[str, str], options: Sequence[str]) -> bytes:
    """The code that NVRTC makes of the files. Raises CompileError with its first message."""
    program = ctypes.c_void_p()
    included = [other for other in files if other != name]
    texts = (ctypes.c_char_p * len(included))(*(files[other].encode() for other in included))
    names = (ctypes.c_char_p * len(included))(*(other.encode() for other in included))
    made = library.nvrtcCreateProgram(
        ctypes.byref(program), files[name].encode(), name.encode(), len(included), texts, names
    )
    _check(library, made, "nvrtcCreateProgram")
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), given) != _SUCCESS:
            lines = _text(library, "nvrtcGetProgramLog", program).decode(errors="replace").splitlines()
            errors = [line for line in lines if "error" in line] or lines or ["no message"]
            raise CompileError(f"NVRTC could not compile {name}: {errors[0]}")
        return _text(library, "nvrtcGetCUBIN", program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, function: str, program: ctypes.c_void_p) -> bytes:
    """What a pair of functions of NVRTC, one of them for the size, returns."""
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"{function}Size")(program, ctypes.byref(size)), function)
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, function)(program, buffer), function)
    return buffer.raw.rstrip(b"\0") if function.endswith("Log") else buffer.raw

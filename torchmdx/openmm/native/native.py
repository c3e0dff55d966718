"""The Python side of the plugin: callbacks for C++, and adding the force to a System."""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray

from torchmdx.openmm.native.build import BuildError, plugin
from torchmdx.openmm.native.provider import Handles, Provider, Session
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER


class _Handles(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in Handles.__dataclass_fields__]


class _Units(ctypes.Structure):
    _fields_ = [("length", ctypes.c_double), ("energy", ctypes.c_double), ("force", ctypes.c_double)]


_ID, _TEXT, _DOUBLES = ctypes.c_longlong, ctypes.POINTER(ctypes.c_char), ctypes.POINTER(ctypes.c_double)
_HANDLES = ctypes.POINTER(_Handles)
_OPEN = ctypes.CFUNCTYPE(_ID, _ID, ctypes.c_int, _TEXT, ctypes.c_int)
_START = ctypes.CFUNCTYPE(ctypes.c_int, _ID, _DOUBLES, _DOUBLES, _HANDLES, _TEXT, ctypes.c_int)
_RECOVER = ctypes.CFUNCTYPE(ctypes.c_int, _ID, ctypes.c_int, _HANDLES, _TEXT, ctypes.c_int)
_AUDIT = ctypes.CFUNCTYPE(ctypes.c_int, _ID, ctypes.c_longlong, ctypes.c_longlong, _TEXT, ctypes.c_int)
_EVALUATE = ctypes.CFUNCTYPE(ctypes.c_int, _ID, _DOUBLES, _DOUBLES, _DOUBLES, _DOUBLES, _TEXT, ctypes.c_int)
_CLOSE = ctypes.CFUNCTYPE(None, _ID)
_RESTORE = ctypes.CFUNCTYPE(_ID, ctypes.c_char_p, _TEXT, ctypes.c_int)
_DROP = ctypes.CFUNCTYPE(None, _ID)


class _Callbacks(ctypes.Structure):
    _fields_ = [
        ("open", _OPEN),
        ("start", _START),
        ("recover", _RECOVER),
        ("audit", _AUDIT),
        ("evaluate", _EVALUATE),
        ("close", _CLOSE),
        ("restore", _RESTORE),
        ("drop", _DROP),
    ]


_numbers = itertools.count(1)
_providers: dict[int, Provider] = {}
_sessions: dict[int, Session] = {}
_restorers: list[Callable[[str], Provider]] = []


def _guarded(work: Callable[..., int]) -> Callable[..., int]:
    """A decorator that passes errors to C++ as text instead of an exception.

    The last two arguments are the buffer for the text and its size; the text is empty on success. C++ fills the buffer
    before the call, because a pending signal may raise before the first line of `call`, and ctypes then returns an
    undefined value.
    """

    @functools.wraps(work)
    def call(*arguments: Any) -> int:
        *given, message, size = arguments
        try:
            answer = work(*given)
            message[0] = b"\0"
            return answer
        except BaseException as error:  # includes KeyboardInterrupt, which would be lost
            text = (str(error) or type(error).__name__).encode(errors="replace")[: size - 1]
            text = text.decode(errors="ignore").encode()  # no incomplete character at the end
            ctypes.memmove(message, text + b"\0", len(text) + 1)
            return 0

    return call


def _array(pointer: Any, count: int) -> NDArray[np.float64]:
    return np.ctypeslib.as_array(pointer, (count, 3))


@_guarded
def _open(provider: int, device: int) -> int:
    number = next(_numbers)
    _sessions[number] = _providers[provider].open(None if device < 0 else device)
    return number


def _fill(handles: Handles, out: Any) -> int:
    for name in Handles.__dataclass_fields__:
        setattr(out.contents, name, getattr(handles, name))
    return 1


@_guarded
def _start(session: int, positions: Any, cell: Any, out: Any) -> int:
    found = _sessions[session]
    box = _array(cell, 3).copy() if cell else None
    return _fill(found.start(_array(positions, found.num_atoms).copy(), box), out)


@_guarded
def _recover(session: int, energy_only: int, out: Any) -> int:
    return _fill(_sessions[session].recover(bool(energy_only)), out)


@_guarded
def _audit(session: int, evaluation: int, step: int) -> int:
    _sessions[session].audit(evaluation, step)
    return 1


@_guarded
def _evaluate(session: int, positions: Any, cell: Any, energy: Any, forces: Any) -> int:
    found = _sessions[session]
    box = _array(cell, 3) if cell else None
    energy[0], result = found.evaluate(_array(positions, found.num_atoms), box, with_forces=bool(forces))
    if forces:
        _array(forces, found.num_atoms)[:] = result
    return 1


def _close(session: int) -> None:
    found = _sessions.pop(session, None)
    if found is not None:
        found.close()


@_guarded
def _restore(reference: bytes) -> int:
    number = next(_numbers)
    _providers[number] = _restorers[-1](reference.decode())
    return number


def _drop(provider: int) -> None:
    """Releases a provider; its potential is freed with the last force and Context that use it."""
    _providers.pop(provider, None)


# Kept as long as the process lives, because C++ holds their addresses.
_CALLBACKS = _Callbacks(
    _OPEN(_open),
    _START(_start),
    _RECOVER(_recover),
    _AUDIT(_audit),
    _EVALUATE(_evaluate),
    _CLOSE(_close),
    _RESTORE(_restore),
    _DROP(_drop),
)


_loaded: list[ctypes.CDLL] = []


def plugin_in_use() -> ctypes.CDLL:
    """The plugin that was loaded last; there is one if a force of it exists."""
    return _loaded[-1]


@functools.cache
def _library(cuda: bool) -> ctypes.CDLL:
    """The plugin, with its callbacks registered. Raises BuildError."""
    library = plugin(cuda)
    units = _Units(NANOMETER, 1.0 / KJ_PER_MOL, NANOMETER / KJ_PER_MOL)
    taken = library.torchmdx_register(ctypes.byref(_CALLBACKS), ctypes.byref(units))
    if cuda and not taken:
        raise BuildError("OpenMM has not loaded its CUDA platform: " + "; ".join(_failures() or ["no reason given"]))
    atexit.register(library.torchmdx_shut_down)
    _loaded.append(library)
    return library


def _failures() -> list[str]:
    return [text for text in openmm.Platform.getPluginLoadFailures() if "libOpenMMCUDA.so" in text.split(":")[0]]


def unavailable(cuda: bool = True) -> str | None:
    """None if the plugin can be used, with or without OpenMM's CUDA platform; else a one-line reason.

    The first call compiles the plugin, which takes a few seconds.
    """
    try:
        _library(cuda)
    except BuildError as error:
        return str(error)
    return None


def load_cached(cuda: bool) -> bool:
    """Loads the plugin if it has been compiled on this machine. Returns whether it is loaded; compiles nothing."""
    try:
        plugin(cuda, only_cached=True)
        _library(cuda)
    except BuildError:
        return False
    return True


def restore_with(restorer: Callable[[str], Provider]) -> None:
    """Sets the function that creates a provider from the reference in a saved System."""
    _restorers[:] = [restorer]  # a single one, however many forces are added


def add_force(
    system: openmm.System,
    provider: Provider,
    *,
    atoms: Sequence[int] | None,
    periodic: bool,
    scale_parameter: str | None,
    reference: str,
    energy_offset: float = 0.0,
    cuda: bool = True,
) -> openmm.Force:
    """Adds a force to the system and returns it; reference: text from which the provider can be restored.

    Args:
        energy_offset: kJ/mol, subtracted from the energy before it is scaled.
    """
    library, number = _library(cuda), next(_numbers)
    chosen = (ctypes.c_int * len(atoms or ()))(*(atoms or ()))
    _providers[number] = provider  # released by the force; nothing below can fail
    index = library.torchmdx_add(
        ctypes.c_void_p(int(system.this)),
        ctypes.c_longlong(number),
        chosen,
        len(chosen),
        int(periodic),
        (scale_parameter or "").encode(),
        reference.encode(),
        ctypes.c_double(energy_offset),
    )
    return system.getForce(index)

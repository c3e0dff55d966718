"""Compiled libraries, kept in the user's cache directory: made once, checked before they are loaded.

Where: $TORCHMDX_CACHE, else `torchmdx` in $XDG_CACHE_HOME, else in ~/.cache; an empty variable counts as unset. A
relative $TORCHMDX_CACHE is taken from the current directory; a relative $XDG_CACHE_HOME is ignored, as its
specification asks. Without a usable home directory libraries are kept in a private folder of the temporary directory.

A library runs with the user's rights, so that folder and file must belong to the user or to root, and nobody else may
write to them. Its name ends in the SHA-256 of its bytes: a file that was cut short is found, and compiled anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

VARIABLE = "TORCHMDX_CACHE"
_DIGITS = 16


class CacheError(OSError):
    """There is no folder that compiled code may be kept in, or a library can't be kept there; says why."""


class CompileError(RuntimeError):
    """There is no compiler, or it failed; says which and why in a line."""


def cache_directory() -> Path:
    """The folder that is to be used, absolute; it need not exist."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and not os.path.isabs(base):
        _tell(f"XDG_CACHE_HOME must be an absolute path, got {base!r}: it is ignored")
    elif base:
        return Path(base) / "torchmdx"
    home = _home()
    return _temporary() if home is None else home / ".cache" / "torchmdx"


def usable_directory() -> Path:
    """The folder to keep files in, there and safe: `cache_directory`, or the temporary one in place of the default.

    Raises CacheError where neither can be used.
    """

    def writable(folder: Path) -> Path:
        if not os.access(folder, os.W_OK):
            raise CacheError(f"{folder} cannot be written")
        return folder

    return _first(writable)


def load_library(name: str, key: Sequence[str], make: Callable[[Path], None]) -> ctypes.CDLL:
    """The library of this name and key, from the cache, or made there by `make`, which writes the file it is given.

    A file that is damaged or not safe is replaced, once, and the log says why. Raises CacheError, OSError if what was
    made can't be loaded, and what `make` raises.
    """
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:_DIGITS]
    return _first(lambda folder: _load_from(folder, f"{name}-{digest}", make))


def _first(use: Callable[[Path], Any]) -> Any:
    """What `use` gives for the folder that was chosen; for the temporary one where there was no choice and it fails."""
    folder, other = cache_directory(), _temporary()
    try:
        return use(_prepared(folder))
    except CacheError as error:
        if os.environ.get(VARIABLE) or folder == other:
            raise
        _tell(f"{error}: using {other} instead; ${VARIABLE} chooses another folder")
    return use(_prepared(other))


def _load_from(folder: Path, stem: str, make: Callable[[Path], None]) -> ctypes.CDLL:
    for path in sorted(folder.glob(f"{stem}-*.so")):
        reason = _flaw(path)
        if reason is None:
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                reason = f"it can't be loaded ({error})"
        log.warning("%s is compiled again: %s", path, reason)
        with contextlib.suppress(OSError):
            path.unlink()
    return ctypes.CDLL(str(_keep(folder, stem, make)))


def _keep(folder: Path, stem: str, make: Callable[[Path], None]) -> Path:
    """Makes a library and moves it to its name. Several processes may do so at once: each leaves a whole file."""
    try:
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as place:
            made = Path(place) / "library.so"
            make(made)
            path = folder / f"{stem}-{_digest(made)}.so"
            made.chmod(0o755)
            _flush(made)
            os.replace(made, path)
            _flush(folder)
            return path
    except OSError as error:
        raise CacheError(f"{folder} cannot keep compiled code: {error}") from error


def find_compiler(variable: str, *names: str) -> str:
    """The compiler that an environment variable or one of these names stands for. Raises CompileError."""
    found = (shutil.which(name) for name in (os.environ.get(variable) or names[0], *names[1:]))
    compiler = next((path for path in found if path), None)
    if compiler is None:
        raise CompileError(f"no compiler found ({', '.join(names)} or ${variable})")
    return compiler


def run_compiler(command: Sequence[str], source: str, *, folder: Path | None = None, text: str | None = None) -> None:
    """Runs a compiler in a folder, with `text` as its input. Raises CompileError, which names the source."""
    try:
        done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"{command[0]} could not compile {source}: {error}") from error
    if done.returncode:
        lines = done.stderr.splitlines()
        told = [line for line in lines if "error" in line] or lines or ["no message"]
        raise CompileError(f"{command[0]} could not compile {source}: {told[0]}")


def _flush(path: Path) -> None:
    """Has a file, or the entries of a folder, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _flaw(path: Path) -> str | None:
    """Why a library must not be loaded; None if it may."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return "it is not a regular file"
        if (reason := _not_ours(found)) is not None:
            return reason
        if _digest(path) != path.stem.rsplit("-", 1)[-1]:
            return "it is damaged, its bytes don't have the SHA-256 in its name"
    except OSError as error:
        return f"it can't be read ({error})"
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]


def _prepared(folder: Path) -> Path:
    """The folder, made if need be, for this user alone. Raises CacheError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat() if folder != _temporary() else folder.lstat()
    except OSError as error:
        raise CacheError(f"{folder} cannot keep compiled code: {error}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError(f"{folder} cannot keep compiled code: it is not a folder")
    if (reason := _not_ours(found)) is not None:
        raise CacheError(f"{folder} cannot keep compiled code: {reason}")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise CacheError(f"{folder} cannot keep compiled code: it can't be read")
    return folder


def _not_ours(found: os.stat_result) -> str | None:
    """What lets others decide what is loaded; None if nothing does."""
    own = os.geteuid()
    if found.st_uid not in (own, 0):
        return f"it must belong to user {own} or to root, got owner {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return f"it must not be writable by everybody, got mode {stat.S_IMODE(found.st_mode):o} (chmod o-w)"
    return None


def _home() -> Path | None:
    """The user's home directory, if there is one that exists."""
    given = os.environ.get("HOME", "")
    try:
        home = Path(given or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None
    return home if home.is_absolute() and home.is_dir() else None


def _temporary() -> Path:
    return Path(tempfile.gettempdir()).absolute() / f"torchmdx-{os.geteuid()}"


@functools.cache
def _tell(message: str) -> None:
    """One line in the log, once."""
    log.warning("%s", message)

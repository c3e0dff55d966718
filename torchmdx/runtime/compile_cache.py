"""A cache of compiled libraries in the user's cache directory: compiled once, checked before they are loaded.

The folder is $TORCHMDX_CACHE, else `torchmdx` in $XDG_CACHE_HOME, else in ~/.cache; an empty variable counts as unset.
A relative $TORCHMDX_CACHE is relative to the current directory; a relative $XDG_CACHE_HOME is ignored, as its
specification requires. Without a usable home directory, a private folder of the temporary directory is used.

A library runs with the user's rights, so folder and file must belong to the user or to root, and nobody else may write
to them. The file name ends in the SHA-256 of the content, so that a truncated file is detected and compiled again.
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
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchmdx.runtime.file_lock import only_one

log = logging.getLogger(__name__)

VARIABLE = "TORCHMDX_CACHE"
_DIGITS = 16


class CacheError(OSError):
    """No folder can be used for compiled code, or a library cannot be written there; says why."""


class CompileError(RuntimeError):
    """No compiler was found, or it failed; a one-line reason."""


def cache_directory() -> Path:
    """The folder of the cache, absolute; it need not exist. Raises CacheError for a path in quotes."""
    if given := os.environ.get(VARIABLE):
        if given[0] in "\"'" and given[-1] == given[0]:  # from a file of variables whose reader keeps them
            raise CacheError(f"{VARIABLE} must be a path without quotes around it, got {given}")
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and not os.path.isabs(base):
        _warn_once(f"XDG_CACHE_HOME must be an absolute path, got {base!r}: it is ignored")
    elif base:
        return Path(base) / "torchmdx"
    home = _home()
    return _temporary() if home is None else home / ".cache" / "torchmdx"


def usable_directory() -> Path:
    """The folder for files, after checking that it exists and is safe: `cache_directory`, else the temporary one.

    Raises:
        CacheError: If none can be used; a folder that $TORCHMDX_CACHE names is never replaced.
    """

    def writable(folder: Path) -> Path:
        if not os.access(folder, os.W_OK):
            raise CacheError(f"{folder} cannot be written")
        return folder

    return _with_folder(writable)


def readable_directory() -> Path:
    """As `usable_directory`, but a folder that $TORCHMDX_CACHE names need not be writable."""
    try:
        return usable_directory()
    except CacheError:
        return _checked_folder(cache_directory())


def load_library(name: str, key: Sequence[str], make: Callable[[Path], None]) -> ctypes.CDLL:
    """Loads the library with this name and key from the cache; if missing, `make` writes it to the path it is given.

    A file that is damaged or unsafe is replaced, and the log says why.

    Raises:
        CacheError: If the new library cannot be loaded, and what `make` raises.
        OSError: If the new library cannot be loaded, and what `make` raises.
    """
    stem = _stem(name, key)
    return _with_folder(lambda folder: _load_from(folder, stem, make))


class _Announced(threading.local):
    """What this thread is about to compile, logged when a compiler has been found and starts."""

    text: str | None = None


_announced = _Announced()


def library_file(name: str, key: Sequence[str], make: Callable[[Path], None]) -> Path:
    """The path of the library with this name and key, made and checked as by `load_library`, without loading it."""
    stem = _stem(name, key)

    def find(folder: Path) -> Path:
        return _safe_library(folder, stem) or _make_library(folder, stem, make)

    return Path(_with_folder(find))


def _stem(name: str, key: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:_DIGITS]
    return f"{name}-{digest}"


def _with_folder(use: Callable[[Path], Any]) -> Any:
    """Calls `use` with the cache folder; on CacheError with the temporary one, unless $TORCHMDX_CACHE is set."""
    folder, other = cache_directory(), _temporary()
    try:
        return use(_checked_folder(folder))
    except CacheError as error:
        if os.environ.get(VARIABLE) or folder == other:
            raise
        _warn_once(f"{error}: using {other} instead; ${VARIABLE} chooses another folder")
    return use(_checked_folder(other))


def _load_from(folder: Path, stem: str, make: Callable[[Path], None]) -> ctypes.CDLL:
    for path in sorted(folder.glob(f"{stem}-*.so")):
        reason = _why_unsafe(path)
        if reason is None:
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                reason = f"it can't be loaded ({error})"
        log.warning("%s is compiled again: %s", path, reason)
        with contextlib.suppress(OSError):
            path.unlink()
    return ctypes.CDLL(str(_make_library(folder, stem, make)))


def _make_library(folder: Path, stem: str, make: Callable[[Path], None]) -> Path:
    """Makes a library and renames it to its final name, atomically. Other processes that need it wait meanwhile."""
    name = stem.rsplit("-", 1)[0]

    def waiting() -> None:
        log.warning("waiting for another process, which compiles %s", name)

    with only_one(folder / f".{stem}.lock", waiting):
        if (found := _safe_library(folder, stem)) is not None:
            return found
        _announced.text = f"compiling {name}, once for this machine and version; it is kept in {folder}"
        return _made(folder, stem, make)


def _safe_library(folder: Path, stem: str) -> Path | None:
    return next((path for path in sorted(folder.glob(f"{stem}-*.so")) if _why_unsafe(path) is None), None)


def _made(folder: Path, stem: str, make: Callable[[Path], None]) -> Path:
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
    """The path of a compiler: the one in an environment variable, else the first of `names`. Raises CompileError."""
    found = (shutil.which(name) for name in (os.environ.get(variable) or names[0], *names[1:]))
    compiler = next((path for path in found if path), None)
    if compiler is None:
        raise CompileError(f"no compiler found ({', '.join(names)} or ${variable})")
    return compiler


def run_compiler(command: Sequence[str], source: str, *, folder: Path | None = None, text: str | None = None) -> None:
    """Runs a compiler in a folder, with `text` as standard input. Raises CompileError, which names the source."""
    if _announced.text is not None:
        log.warning(_announced.text)
        _announced.text = None
    try:
        done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"{command[0]} could not compile {source}: {error}") from error
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if "error" in line] or lines or ["no message"]
        raise CompileError(f"{command[0]} could not compile {source}: {errors[0]}")


def _flush(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _why_unsafe(path: Path) -> str | None:
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


def _checked_folder(folder: Path) -> Path:
    """The folder, created for this user alone if it does not exist. Raises CacheError if it is unsafe."""
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
    """Why other users could change a file or folder; None if they cannot."""
    own = os.geteuid()
    if found.st_uid not in (own, 0):
        return f"it must belong to user {own} or to root, got owner {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return f"it must not be world-writable, got mode {stat.S_IMODE(found.st_mode):o} (chmod o-w)"
    return None


def _home() -> Path | None:
    """The user's home directory; None if it does not exist."""
    given = os.environ.get("HOME", "")
    try:
        home = Path(given or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None
    return home if home.is_absolute() and home.is_dir() else None


def _temporary() -> Path:
    return Path(tempfile.gettempdir()).absolute() / f"torchmdx-{os.geteuid()}"


@functools.cache
def _warn_once(message: str) -> None:
    """Logs a warning the first time that it occurs."""
    log.warning("%s", message)

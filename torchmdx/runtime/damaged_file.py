"""Reading files that may be damaged, or made to do harm: whatever is wrong becomes a ValueError that names the file."""

from __future__ import annotations

import errno
import json
import pickle
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What values of the wrong kind make Python, NumPy, torch and the readers of containers raise.
WRONG_VALUES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,  # and so RecursionError and NotImplementedError
    SyntaxError,
    TypeError,
    pickle.UnpicklingError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def naming(origin: str | Path) -> Iterator[None]:
    """Errors inside, about what a file holds, become a ValueError that names the file; one that does so stays.

    Errors of the file system and missing packages pass: they are not about what the file holds.
    """
    name = str(origin)
    try:
        yield
    except ValueError as error:
        if name in str(error) or repr(name) in str(error):
            raise
        raise ValueError(f"{name!r}: {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # seeking to an impossible place, which the file tells
            raise
        raise ValueError(f"{name!r} is damaged ({error})") from error
    except MemoryError as error:
        raise ValueError(f"{name!r} needs more memory than there is, or is damaged") from error
    except WRONG_VALUES as error:
        raise ValueError(f"{name!r} is damaged ({type(error).__name__}: {error})") from error


def parse_json(text: str | bytes) -> Any:
    """The value in a JSON text. Raises ValueError for anything else, and for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def is_newer(version: str, known: int) -> bool:
    """Whether the version that a file states is a whole number above this one."""
    return version.isascii() and version.isdigit() and len(version) < 10 and int(version) > known

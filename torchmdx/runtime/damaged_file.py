"""Reading files that may be damaged or malicious: every error becomes a ValueError that names the file."""

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

# Exceptions that Python, NumPy, torch and container readers raise for values of the wrong kind.
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
    """Turns errors about the content of a file into a ValueError that names the file.

    A ValueError that already names it passes unchanged, as do errors of the file system and missing packages.
    """
    name = str(origin)
    try:
        yield
    except ValueError as error:
        if name in str(error) or repr(name) in str(error):
            raise
        raise ValueError(f"{name!r}: {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a seek to an invalid offset that the file contains
            raise
        raise ValueError(f"{name!r} is damaged ({error})") from error
    except MemoryError as error:
        raise ValueError(f"{name!r} needs more memory than is available, or is damaged") from error
    except WRONG_VALUES as error:
        raise ValueError(f"{name!r} is damaged ({type(error).__name__}: {error})") from error


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for text that is not JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def is_newer(version: str, known: int) -> bool:
    """Whether the version in a file is an integer greater than `known`."""
    return version.isascii() and version.isdigit() and len(version) < 10 and int(version) > known

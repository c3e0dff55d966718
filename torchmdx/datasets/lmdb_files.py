"""LMDB databases of structures: those of ASE rows, as OMat24 and OMol25 have, and why others are not read."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchmdx.runtime.damaged_file import WRONG_VALUES

ASELMDB = ".aselmdb"
LARGEST_ROW = 1 << 28  # bytes of a row when it is unpacked


def rows_of_lmdb(path: Path) -> Iterator[Any]:
    """Atoms of every row, in the order of their numbers: JSON of ASE's rows, compressed by zlib.

    Raises:
        ImportError: Without lmdb.
        ValueError: For another or a damaged database.
    """
    from ase.db.row import AtomsRow

    try:
        import lmdb
    except ImportError as error:
        raise ImportError(f"{str(path)!r} is an ASE database in LMDB, which needs lmdb: pip install lmdb") from error
    try:
        environment = lmdb.open(
            str(path), subdir=False, readonly=True, lock=False, readahead=False, meminit=False, max_readers=1
        )
    except lmdb.Error as error:
        raise ValueError(f"{str(path)!r} is not a whole LMDB database: {error}") from error
    with environment, environment.begin() as transaction:
        last = _json(transaction.get(b"nextid"), path, "nextid")
        if not isinstance(last, int):
            raise ValueError(f"{str(path)!r} must have the number nextid, as ASE databases in LMDB have, got {last!r}")
        for number in range(1, last):
            raw = transaction.get(str(number).encode("ascii"))
            if raw is None:  # deleted
                continue
            row = _json(raw, path, f"row {number}")
            if not isinstance(row, dict) or not {"numbers", "positions"} <= row.keys():
                raise ValueError(f"row {number} of {str(path)!r} must be a structure with numbers and positions")
            yield AtomsRow(row | {"id": number}).toatoms(add_additional_information=True)


def _json(raw: bytes | None, path: Path, what: str) -> Any:
    """The value of an entry; None without one. Raises ValueError for one that is no compressed JSON."""
    if raw is None:
        return None
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(raw, LARGEST_ROW)
        if unpacker.unconsumed_tail:
            raise ValueError(f"it has more than {LARGEST_ROW} bytes")
        return json.loads(text)
    except (zlib.error, ValueError, *WRONG_VALUES) as error:
        raise ValueError(f"{what} of {str(path)!r} is damaged: {error}") from error

"""Formats of data sets that are not read, with what to do instead."""

from __future__ import annotations

from pathlib import Path

PICKLES = "holds pickled Python objects, and loading them can run code"
BY_FAIRCHEM = "write extended XYZ or .aselmdb with fairchem's own tools"
REASONS = {
    ".lmdb": f"is an LMDB database of fairchem (OC20, OC22, ODAC), which {PICKLES}; {BY_FAIRCHEM}",
    ".pt": f"is a file of PyTorch (torch_geometric), which {PICKLES}; write .npz or extended XYZ from it",
    ".pth": f"is a file of PyTorch, which {PICKLES}; write .npz or extended XYZ from it",
    ".pkl": f"{PICKLES}; write .npz or extended XYZ from it",
    ".pickle": f"{PICKLES}; write .npz or extended XYZ from it",
    ".parquet": "is a table of Parquet (ColabFit, Hugging Face), which is not read: pip install colabfit-tools, or "
    "pyarrow, and write extended XYZ from it",
    ".tar": "is an archive: unpack it first",
    ".tgz": "is an archive: unpack it first",
    ".zip": "is an archive: unpack it first",
}


def refusal(path: Path) -> str | None:
    """Why a file is not read, by its name and first bytes; None for others."""
    reason = REASONS.get(path.suffix.lower())
    if path.name.lower().endswith((".tar.gz", ".tar.bz2", ".tar.xz")):
        reason = REASONS[".tar"]
    if reason is None and path.suffix.lower() == ".cfg" and path.is_file():
        with path.open("rb") as file:
            if file.read(9) == b"BEGIN_CFG":
                reason = "is a file of MTP (MLIP), which is not read: pip install maml, and write extended XYZ from it"
    return None if reason is None else f"{str(path)!r} {reason}"

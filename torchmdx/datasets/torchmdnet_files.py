"""Folders of .npy files as torchmd-net's Custom dataset has them: coordinates, embeddings, energies, forces."""

from __future__ import annotations

from pathlib import Path

from torchmdx.datasets.blocks import Blocks, Keys, Unreadable, block, mapped, rows_of_a_block
from torchmdx.runtime.damaged_file import WRONG_VALUES

GLOBS = {"positions": "*coord*.npy", "atomic_numbers": "*embed*.npy", "energy": "*energ*.npy", "forces": "*force*.npy"}


def read(path: Path, keys: Keys) -> Blocks:
    """Files of each kind, sorted by name, belong together; keys are glob patterns.

    Frames are numbered through all files.

    Raises:
        ValueError: Where there is not the same number of each kind.
    """
    if not path.is_dir():
        raise ValueError(f"torchmd-net's custom data must be a folder of .npy files, got {str(path)!r}")
    for name in keys.named():
        if name not in GLOBS:
            raise ValueError(f"torchmdnet-custom is a format without a {name} key, got {getattr(keys, name)!r}")
    globs = {name: getattr(keys, name) or pattern for name, pattern in GLOBS.items()}
    files = {name: sorted(path.glob(pattern)) for name, pattern in globs.items()}
    there = ", ".join(f"{len(files[name])} of {globs[name]}" for name in GLOBS)
    labels = [name for name in ("energy", "forces") if files[name]]
    if not files["positions"] or not labels:
        raise ValueError(f"{str(path)!r} must have coordinates, embeddings, and energies or forces, got {there}")
    if any(len(files[name]) != len(files["positions"]) for name in ("atomic_numbers", *labels)):
        raise ValueError(f"{str(path)!r} must have the same number of files of each kind, got {there}")
    first = 0
    for number in range(len(files["positions"])):
        arrays = {name: mapped(files[name][number]) for name in ("positions", "atomic_numbers", *labels)}
        shape = arrays["positions"].shape
        name = files["positions"][number].name
        wrong = [key for key in labels if arrays[key].shape[:1] != shape[:1]]
        if len(shape) != 3 or wrong:
            got = ", ".join(f"{key} {list(array.shape)}" for key, array in arrays.items())
            yield Unreadable(
                first, shape[0] if shape else 1, f"{name}: positions must be [frames, atoms, 3], got {got}"
            )
        else:
            step = rows_of_a_block(shape[1])
            for start in range(0, shape[0], step):
                part = {key: arrays[key][start : start + step] for key in ("positions", *labels)}
                try:
                    yield block(first + start, atomic_numbers=arrays["atomic_numbers"], **part)
                except (ValueError, *WRONG_VALUES) as error:
                    yield Unreadable(first + start, len(part["positions"]), f"{name}: {error}")
        first += shape[0] if shape else 1

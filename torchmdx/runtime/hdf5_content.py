"""HDF5 files whose arrays lie in other files: a file from somebody else must not make us read those."""

from __future__ import annotations

from typing import Any


def require_own_link(group: Any, name: str) -> None:
    """Raises ValueError if a name of a group is a link into another file, which is not opened."""
    import h5py

    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise ValueError(f"{name!r} must be in the file itself, got a link to {link.path!r} in {link.filename!r}")


def require_own_array(dataset: Any) -> None:
    """Raises ValueError if the values of an array are in other files: external storage, or a virtual array."""
    others = [name for name, *_ in dataset.external or ()]
    if dataset.is_virtual:
        others += [source.file_name for source in dataset.virtual_sources() if source.file_name != "."]
    if others:
        names = ", ".join(repr(name) for name in dict.fromkeys(others))
        raise ValueError(f"{dataset.name!r} must be stored in the file itself, got values in {names}")


def require_own(file: Any) -> None:
    """Raises ValueError for links into other files, and arrays in them, among the names of a file or group."""
    import h5py

    for name in file:
        require_own_link(file, name)
        if isinstance(file.get(name), h5py.Dataset):
            require_own_array(file[name])

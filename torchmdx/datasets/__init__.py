"""Labelled structures on disk: readers of users' files, a packed store, fixed splits, reference energies."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

# Properties whose names in files can be given, and formats of files. The command line reads them here, without NumPy.
KEY_NAMES = (
    "positions", "atomic_numbers", "cell", "charge", "energy", "forces", "stress", "virial", "charges", "dipole"
)  # fmt: skip
FORMAT_NAMES = ("ase", "npz", "spice", "torchmdnet-hdf5", "torchmdnet-custom", "deepmd")

if TYPE_CHECKING:
    from torchmdx.datasets.conversion import Broken as Broken
    from torchmdx.datasets.conversion import ConvertReport as ConvertReport
    from torchmdx.datasets.conversion import convert as convert
    from torchmdx.datasets.distributions import Statistics as Statistics
    from torchmdx.datasets.distributions import statistics as statistics
    from torchmdx.datasets.frames import Frames as Frames
    from torchmdx.datasets.splits import read_split as read_split
    from torchmdx.datasets.splits import split as split
    from torchmdx.datasets.splits import write_split as write_split
    from torchmdx.datasets.store import Store as Store
    from torchmdx.datasets.store import StoreWriter as StoreWriter
else:
    __all__, __getattr__, __dir__ = public_names(__name__)

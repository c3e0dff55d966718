"""Labelled structures on disk: readers of users' files, a packed store, fixed splits, reference energies."""

# Properties whose names in files can be given, and formats of files. The command line reads them here, without NumPy.
KEY_NAMES = (
    "positions", "atomic_numbers", "cell", "charge", "energy", "forces", "stress", "virial", "charges", "dipole"
)  # fmt: skip
FORMAT_NAMES = ("ase", "npz", "spice", "torchmdnet-hdf5", "torchmdnet-custom", "deepmd")

"""Names that tests and their fixtures share."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
# Between them: no, one, two and three periodic directions, charge, no mirror symmetry, cells below the cutoff.
STRUCTURES = ("ethanol", "cation", "chiral", "crystal", "slab", "bare_slab", "wire")
SMALL = dict(num_channels=8, num_layers=2, num_radial=6, cutoff=4.0, max_z=35)
SMALL_CHARGES = dict(num_charges=3)

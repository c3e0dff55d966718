import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT

from torchmdx.materials.crystal import relaxed


@pytest.fixture(scope="session")
def copper() -> Atoms:
    """A primitive cell at its minimum, with EMT; not to be changed."""
    atoms = bulk("Cu")
    atoms.calc = EMT()
    return relaxed(atoms, 1e-4, cell=True)

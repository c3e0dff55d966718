import numpy as np
from ase import Atoms

from torchmdx.report.view.read import of_structures


def test_frames_are_taken_with_all_that_belongs_to_them():
    frames = of_structures([Atoms("H", [[k, 0, 0]]) for k in range(6)], title="t", indices=np.arange(6) * 10)
    some = frames.take([1, 4])
    assert some.indices.tolist() == [10, 40]
    assert some.x.tolist() == [10.0, 40.0]
    assert [positions[0, 0] for positions in some.positions] == [1.0, 4.0]
    assert some.captions == ["frame 10", "frame 40"]
    assert some.num_frames == 6


def test_uniform_frames_have_the_same_atoms_and_directions():
    assert of_structures([Atoms("CO"), Atoms("CO")], title="t").uniform
    assert not of_structures([Atoms("CO"), Atoms("OC")], title="t").uniform
    periodic = Atoms("CO", cell=[5, 5, 5], pbc=True)
    slab = Atoms("CO", cell=[5, 5, 5], pbc=[True, True, False])
    assert not of_structures([periodic, slab], title="t").uniform
    assert not of_structures([periodic, Atoms("CO")], title="t").uniform

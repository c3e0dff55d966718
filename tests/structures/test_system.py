import numpy as np
import pytest
import torch
from ase import Atoms

from torchmdx import Batch, System

WATER = ([[0, 0, 0], [0, 0, 0.96], [0.93, 0, -0.24]], [8, 1, 1])


def read_only(values, dtype):
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


def test_arrays_lists_and_tensors_give_the_same_system():
    positions, numbers = WATER
    kinds = [
        (positions, numbers),
        (np.array(positions), np.array(numbers, dtype=np.int8)),
        (torch.tensor(positions), torch.tensor(numbers, dtype=torch.int32)),
        (read_only(positions, float), read_only(numbers, int)),
    ]
    for system in (System.create(*kind, cell=5 * np.eye(3), pbc=[1, 0, 1], charge=-1) for kind in kinds):
        assert system.positions.dtype == torch.float64
        assert system.atomic_numbers.dtype == torch.int64
        np.testing.assert_allclose(system.positions, positions, rtol=1e-7)
        assert system.atomic_numbers.tolist() == numbers
        assert system.pbc.tolist() == [True, False, True]
        assert system.charge == -1.0


def test_ase_atoms_keep_cell_pbc_and_charge(slab):
    slab.info["charge"] = 2
    system = System.from_ase(slab, dtype=torch.float32)
    assert system.positions.dtype == system.cell.dtype == torch.float32
    np.testing.assert_array_equal(system.positions, slab.positions.astype(np.float32))
    np.testing.assert_array_equal(system.cell, slab.cell.array.astype(np.float32))
    assert system.pbc.tolist() == [True, True, False]
    assert system.charge == 2.0


def test_the_charge_argument_wins_over_the_structure(cation):
    assert System.from_ase(cation).charge == 1.0
    assert System.from_ase(cation, charge=0).charge == 0.0
    del cation.info["charge"]
    assert System.from_ase(cation).charge == 0.0


def test_a_system_does_not_share_memory_with_the_atoms(ethanol):
    system = System.from_ase(ethanol)
    before = system.positions.clone()
    ethanol.positions += 1
    assert torch.equal(system.positions, before)


def test_gradients_flow_through_a_system_to_the_tensor_it_was_made_of():
    positions = torch.tensor(WATER[0], dtype=torch.float64, requires_grad=True)
    system = System.create(positions, WATER[1])
    (gradient,) = torch.autograd.grad((system.positions**2).sum(), positions)
    assert torch.equal(gradient, 2 * positions.detach())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"positions": [[0, 0, np.nan]] * 3}, ValueError, "positions must be finite, got nan of atom 0"),
        ({"positions": [[0, 0, 0]] * 2 + [[0, np.inf, 0]]}, ValueError, "positions must be finite, got inf of atom 2"),
        ({"positions": [[0, 0, 0]] * 2}, ValueError, r"positions must have shape \[3, 3\], got \[2, 3\]"),
        ({"positions": np.zeros((3, 2))}, ValueError, r"positions must have shape \[3, 3\], got \[3, 2\]"),
        ({"positions": "here"}, TypeError, "positions must be an array"),
        ({"atomic_numbers": [0, 1, 1]}, ValueError, r"from 1 to 118, got 0 for atom 0 \(the unknown element X\)"),
        ({"atomic_numbers": [8, 1, 119]}, ValueError, "from 1 to 118, got 119 for atom 2"),
        ({"atomic_numbers": [8, -1, 1]}, ValueError, "from 1 to 118, got -1 for atom 1"),
        ({"atomic_numbers": [8.0, 1.0, 1.0]}, TypeError, "vector of whole numbers, got float64"),
        ({"atomic_numbers": [[8, 1, 1]]}, TypeError, r"vector of whole numbers, got int64 of shape \[1, 3\]"),
        ({"atomic_numbers": ["O", "H", "H"]}, TypeError, "vector of whole numbers"),
        ({"cell": np.eye(2), "pbc": True}, ValueError, r"cell must have shape \[3, 3\], got \[2, 2\]"),
        ({"cell": np.full((3, 3), np.nan), "pbc": True}, ValueError, "cell must be finite, got nan in row 0"),
        ({"cell": np.ones((3, 3)), "pbc": True}, ValueError, "must be linearly independent"),
        ({"cell": [[1, 0, 0], [1, 0, 0], [0, 0, 0]], "pbc": [1, 1, 0]}, ValueError, "must be linearly independent"),
        ({"cell": np.diag([3, 0, 3]), "pbc": True}, ValueError, r"pbc is True along direction 1 but cell\[1\] is zero"),
        ({"pbc": True}, ValueError, "a periodic system needs a cell, got pbc without cell"),
        ({"pbc": [False, False, True]}, ValueError, "a periodic system needs a cell"),
        ({"cell": np.eye(3)}, ValueError, "pbc must be given with a cell"),
        ({"cell": np.eye(3), "pbc": [True, True]}, ValueError, r"pbc must be one value or three, got shape \[2\]"),
        ({"cell": np.eye(3), "pbc": 2}, ValueError, "pbc must be True, False or three of them, got 2"),
        ({"cell": np.eye(3), "pbc": "TTF"}, ValueError, "pbc must be True, False or three of them, got 'TTF'"),
        ({"charge": "one"}, TypeError, "charge must be a number of elementary charges, got 'one'"),
        ({"charge": np.nan}, ValueError, "charge must be finite, got nan"),
        ({"charge": [1, 2]}, TypeError, "charge must be a number of elementary charges"),
        ({"dtype": torch.float16}, TypeError, "dtype must be torch.float32 or torch.float64, got torch.float16"),
    ],
)
def test_bad_input_is_refused_with_the_requirement_and_the_value(changes, error, message):
    given = {"positions": WATER[0], "atomic_numbers": WATER[1], **changes}
    with pytest.raises(error, match=message):
        System.create(**given)


def test_an_unknown_element_of_ase_is_refused():
    with pytest.raises(ValueError, match="got 0 for atom 1"):
        System.from_ase(Atoms("HX", [[0, 0, 0], [0, 0, 1]]))


def test_a_system_made_by_hand_has_checked_shapes():
    system = System.create(*WATER)
    with pytest.raises(ValueError, match=r"cell of a system must have shape \[3, 3\], got \[1, 3, 3\]"):
        System(system.positions, system.atomic_numbers, system.cell[None], system.pbc)


def test_a_batch_concatenates_and_gives_its_systems_back(ethanol, cation, crystal):
    systems = [System.from_ase(atoms) for atoms in (ethanol, cation, crystal)]
    batch = Batch.from_systems(systems)
    assert (batch.num_atoms, batch.num_systems) == (9 + 5 + 3, 3)
    assert batch.system_index.tolist() == [0] * 9 + [1] * 5 + [2] * 3
    assert batch.counts().tolist() == [9, 5, 3]
    assert batch.charge.tolist() == [0.0, 1.0, 0.0]
    for before, after in zip(systems, batch.systems(), strict=True):
        for name in ("positions", "atomic_numbers", "cell", "pbc"):
            assert torch.equal(getattr(before, name), getattr(after, name))
        assert before.charge == after.charge


def test_a_batch_is_made_of_one_system_or_several_or_is_one():
    water = System.create(*WATER)
    batch = Batch.of([water, water])
    assert Batch.of(water).num_systems == 1
    assert batch.num_systems == 2
    assert Batch.of(batch) is batch


def test_a_batch_may_hold_an_empty_system():
    empty, water = System.create([], []), System.create(*WATER)
    assert Batch.from_systems([empty, water, empty]).counts().tolist() == [0, 3, 0]


def test_moving_to_another_dtype_leaves_whole_numbers_alone(crystal):
    batch = Batch.from_systems([System.from_ase(crystal)])
    single = batch.to(dtype=torch.float32)
    assert single.positions.dtype == single.cell.dtype == single.charge.dtype == torch.float32
    assert single.atomic_numbers.dtype == single.system_index.dtype == torch.int64
    assert batch.positions.dtype == torch.float64
    assert System.from_ase(crystal).to(dtype=torch.float32).cell.dtype == torch.float32


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="a batch needs at least one system, got none"):
        Batch.from_systems([])


def test_systems_of_different_dtype_do_not_mix():
    systems = [System.create(*WATER, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    with pytest.raises(ValueError, match="must share one device and dtype"):
        Batch.from_systems(systems)


def test_a_batch_of_wrong_shapes_is_refused():
    batch = Batch.from_systems([System.create(*WATER)])
    fields = {name: getattr(batch, name) for name in ("positions", "atomic_numbers", "system_index", "cell", "pbc")}
    with pytest.raises(ValueError, match=r"charge of a batch must have shape \[1\], got \[3\]"):
        Batch(**fields, charge=torch.zeros(3))

"""Modules of the user's own as potentials: what they are given, what they may return, and what takes them."""

import copy
import math
import pickle

import ase.build
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.lj import LennardJones

import torchmdx
from torchmdx import Batch, Calculator, CapturedStep, StepPool, System, evaluate, load, save, wrap
from torchmdx.evaluation.conformance import check
from torchmdx.models import wrapped
from torchmdx.structures.units import HARTREE

CUTOFF = 4.0
ELEMENTS = (1, 6, 8)


class Small(torch.nn.Module):
    """One message to each neighbour; energies of atoms."""

    def __init__(self, cutoff: float = CUTOFF, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.elements = torch.nn.Embedding(20, 8)
            self.filters = torch.nn.Linear(6, 8)
            self.out = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1))
        self.register_buffer("centres", torch.linspace(0.0, cutoff, 6))
        self.cut = cutoff

    def forward(self, vectors, edge_index, atomic_numbers):
        r = torch.linalg.vector_norm(vectors, dim=-1)
        radial = torch.exp(-((r[:, None] - self.centres) ** 2))
        cut = 0.5 * (torch.cos(math.pi / self.cut * r) + 1) * (r < self.cut)
        x = self.elements(atomic_numbers)
        messages = self.filters(radial) * x.index_select(0, edge_index[0]) * cut[:, None]
        return self.out(x * torch.tanh(torch.zeros_like(x).index_add(0, edge_index[1], messages))).squeeze(-1)


class OfSystems(Small):
    """The same as energies of systems, from positions and shifts."""

    def forward(self, positions, edge_index, shifts, atomic_numbers, system_index, num_systems):
        source, target = edge_index[0], edge_index[1]
        vectors = positions[source] - positions[target] + shifts
        energies = super().forward(vectors, edge_index, atomic_numbers)
        return energies.new_zeros(num_systems).index_add(0, system_index, energies)


class WithCharges(Small):
    """Charges too: the total charge, shared among the atoms of a system."""

    def forward(self, vectors, edge_index, atomic_numbers, system_index, charge, num_systems):
        counts = torch.zeros_like(charge).index_add(0, system_index, torch.ones_like(charge)[system_index])
        share = (charge / counts)[system_index]
        return super().forward(vectors, edge_index, atomic_numbers) + 0.1 * share**2, share


class Argon(torch.nn.Module):
    """Lennard-Jones with ASE's smooth cutoff: no weights, and no buffers."""

    def forward(self, vectors, edge_index, atomic_numbers, unused: float = 0.0):
        r2 = (vectors**2).sum(-1)
        inner, outer = (0.66 * CUTOFF) ** 2, CUTOFF**2
        between = (outer - r2) ** 2 * (outer + 2 * r2 - 3 * inner) / (outer - inner) ** 3
        smooth = torch.where(r2 < inner, 1.0, torch.where(r2 < outer, between, 0.0))
        c6 = 1 / r2**3
        pairs = 2.0 * (c6**2 - c6) * smooth
        return torch.zeros_like(atomic_numbers, dtype=vectors.dtype).index_add(0, edge_index[1], pairs)


@pytest.fixture
def small():
    return wrap(Small(), cutoff=CUTOFF, elements=ELEMENTS)


@pytest.fixture
def ethanol():
    return ase.build.molecule("CH3CH2OH")


@pytest.fixture
def ice():
    atoms = Atoms("OHHCO", [[0, 0, 0], [0.9, 0.2, 0], [-0.2, 0.9, 0.1], [1.5, 1.6, 1.4], [2.6, 1.6, 1.2]])
    atoms.set_cell([3.1, 3.3, 2.9])
    atoms.pbc = True
    return atoms


@pytest.mark.parametrize("kind", [Small, OfSystems, WithCharges])
def test_a_wrapped_module_meets_every_requirement(kind):
    potential = wrap(
        kind(), cutoff=CUTOFF, elements=ELEMENTS,
        energies="systems" if kind is OfSystems else "atoms", charges=kind is WithCharges,
    )  # fmt: skip
    found = check(potential, verbose=False)
    allowed = {"supercell"} if kind is OfSystems else set()  # which is of energies by atom, too
    assert set(found.failed) <= allowed, str(found)


def test_forces_and_stress_are_those_of_the_module_itself(small, ethanol, ice):
    """Autograd through the module over an explicit list of all pairs and images."""
    for atoms in (ethanol, ice):
        module = copy.deepcopy(small.network.module).double()
        positions = torch.tensor(atoms.positions, requires_grad=True)
        strain = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
        cell = torch.tensor(atoms.cell.array)
        reach = 3 if atoms.pbc.any() else 0
        source, target, images = [], [], []
        for n in np.ndindex(*(3 * [2 * reach + 1])):
            shift = (np.array(n) - reach) @ atoms.cell.array
            for i in range(len(atoms)):
                for j in range(len(atoms)):
                    d = np.linalg.norm(atoms.positions[j] + shift - atoms.positions[i])
                    if 0 < d < CUTOFF:
                        source.append(j), target.append(i), images.append(np.array(n) - reach)
        index = torch.tensor([source, target])
        deform = torch.eye(3, dtype=torch.float64) + (strain + strain.T) / 2
        shifts = torch.tensor(np.array(images).reshape(-1, 3), dtype=torch.float64) @ (cell @ deform)
        moved = positions @ deform
        energy = module(moved[index[0]] - moved[index[1]] + shifts, index, torch.tensor(atoms.numbers)).sum()
        forces, virial = torch.autograd.grad(-energy, (positions, strain))
        atoms.calc = Calculator(small, dtype="float64")
        assert atoms.get_potential_energy() == pytest.approx(energy.item(), abs=1e-6)
        np.testing.assert_allclose(atoms.get_forces(), forces.numpy(), atol=1e-6)
        if atoms.pbc.any():
            stress = -virial.numpy() / atoms.get_volume()
            np.testing.assert_allclose(atoms.get_stress(voigt=False), stress, atol=1e-7)


def test_a_module_without_weights(ethanol):
    atoms = Atoms("Ar13", np.random.default_rng(0).normal(size=(13, 3)) * 0.2 + ase.build.bulk("Ar", "fcc", 1.7).repeat(
        (13, 1, 1)).positions)  # fmt: skip
    potential = wrap(Argon(), cutoff=CUTOFF, elements=[18])
    atoms.calc = Calculator(potential, dtype="float64")
    wanted = atoms.copy()
    wanted.calc = LennardJones(sigma=1, epsilon=1, rc=CUTOFF, ro=0.66 * CUTOFF, smooth=True)
    assert atoms.get_potential_energy() == pytest.approx(wanted.get_potential_energy(), rel=1e-12)
    np.testing.assert_allclose(atoms.get_forces(), wanted.get_forces(), rtol=1e-10, atol=1e-9)
    assert potential.double().dtype == torch.float64
    ethanol.calc = Calculator(potential)
    with pytest.raises(ValueError, match="does not know .* it was trained on Ar"):
        ethanol.get_forces()


@pytest.mark.parametrize("nested", [False, True])
def test_torchscript(ethanol, nested):
    """Copies have weights of their own, of any dtype, whether the module is compiled or a part of it is."""

    class Around(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, vectors, edge_index, atomic_numbers):
            return self.inner(vectors, edge_index, atomic_numbers)

    scripted = torch.jit.script(Small())
    potential = wrap(Around(scripted) if nested else scripted, cutoff=CUTOFF, elements=ELEMENTS, name="Scripted")
    wanted = evaluate(wrap(Small(), cutoff=CUTOFF, elements=ELEMENTS).double(), System.from_ase(ethanol))
    other = copy.deepcopy(potential).double().requires_grad_(False)
    found = evaluate(other, System.from_ase(ethanol))
    torch.testing.assert_close(found.forces, wanted.forces, rtol=0, atol=1e-12)
    assert potential.dtype == torch.float32
    with torch.no_grad():
        next(other.network.module.parameters()).add_(1.0)
    again = evaluate(copy.deepcopy(potential).double(), System.from_ase(ethanol))
    torch.testing.assert_close(again.forces, wanted.forces, rtol=0, atol=1e-12)
    step = CapturedStep(potential, System.from_ase(ethanol))
    np.testing.assert_allclose(step(ethanol.positions).forces, wanted.forces, atol=1e-5)


def test_a_pool_of_molecules_of_several_sizes(small, ethanol, ice):
    pool = StepPool(small, stress=True)
    for atoms in (ethanol, ice, ethanol[:4]):
        wanted = evaluate(copy.deepcopy(small).double(), System.from_ase(atoms), stress=True)
        found = pool(System.from_ase(atoms))
        np.testing.assert_allclose(found.forces, wanted.forces, atol=1e-5)


def test_charges_reach_the_calculator(ethanol):
    potential = wrap(WithCharges(), cutoff=CUTOFF, elements=ELEMENTS, charges=True)
    ethanol.info["charge"] = 3
    ethanol.calc = Calculator(potential, dtype="float64")
    np.testing.assert_allclose(ethanol.get_charges(), np.full(9, 1 / 3), rtol=1e-12)
    found = evaluate(potential, Batch.from_systems([System.from_ase(ethanol)] * 2))
    assert found.charges.shape == (18,)


def test_another_unit_of_energy(ethanol):
    ev, hartree = (wrap(Small(), cutoff=CUTOFF, elements=ELEMENTS, energy_unit=u) for u in (1.0, HARTREE))
    energies = [float(evaluate(p.double(), System.from_ase(ethanol)).energy[0]) for p in (ev, hartree)]
    assert energies[1] == pytest.approx(HARTREE * energies[0], rel=1e-12)


def test_a_file_needs_the_module_that_it_was_saved_from(small, ethanol, tmp_path, monkeypatch):
    file = tmp_path / "small.safetensors"
    save(small, file)
    wanted = evaluate(small, System.from_ase(ethanol))
    wrap(Small(seed=1), cutoff=CUTOFF, elements=ELEMENTS)  # other weights under the same name
    again = load(file)
    assert (again.config.elements, again.cutoff) == (ELEMENTS, CUTOFF)
    torch.testing.assert_close(evaluate(again, System.from_ase(ethanol)).forces, wanted.forces, rtol=0, atol=0)
    monkeypatch.setattr(wrapped, "WRAPPED", {})
    message = (
        r"needs the module that was wrapped as 'Small': wrap one like it first, torchmdx.wrap\(module, name='Small', "
        r"cutoff=4.0, elements=\(1, 6, 8\)\). Loading a file never imports code"
    )
    with pytest.raises(ValueError, match=message):
        load(file)


def test_a_file_of_another_module_is_refused(small, tmp_path):
    save(small, tmp_path / "small.safetensors")

    class Small2(Small):
        def __init__(self):
            super().__init__()
            self.filters = torch.nn.Linear(6, 8, bias=False)

    wrap(Small2(), cutoff=CUTOFF, elements=ELEMENTS, name="Small")
    with pytest.raises(ValueError, match="unexpected.*network.module.filters.bias"):
        load(tmp_path / "small.safetensors")


def test_potentials_and_calculators_are_pickled(small, ethanol):
    ethanol.calc = pickle.loads(pickle.dumps(Calculator(small)))
    wanted = evaluate(small, System.from_ase(ethanol))
    np.testing.assert_allclose(ethanol.get_forces(), wanted.forces, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("scripted", [False, True])
def test_a_wrapped_module_is_captured(ethanol, ice, scripted):
    module = torch.jit.script(Small()) if scripted else Small()
    potential = wrap(module, cutoff=CUTOFF, elements=ELEMENTS).cuda()
    exact = wrap(Small(), cutoff=CUTOFF, elements=ELEMENTS).double()
    for atoms in (ethanol, ice):
        step = CapturedStep(potential, System.from_ase(atoms), mode="graph", stress=True)
        for seed in range(5):
            atoms.rattle(0.02, seed=seed)
            wanted = evaluate(exact, System.from_ase(atoms), stress=True)
            found = step(atoms.positions)
            np.testing.assert_allclose(found.forces, wanted.forces, atol=1e-5)
        assert step.mode == "graph"


class Odd(Small):
    """Modules with one fault each."""

    def __init__(self, fault):
        super().__init__(cutoff=6.0 if fault == "longer" else CUTOFF)
        self.fault = fault

    def forward(self, vectors, edge_index, atomic_numbers):
        energies = super().forward(vectors, edge_index, atomic_numbers)
        match self.fault:
            case "shape":
                return energies[:1]
            case "constant":
                return energies.detach()
            case "random":
                return energies + torch.rand(())
            case "infinite":
                return energies / 0.0
            case "dict":
                return {"energy": energies}
            case "two":
                return energies, energies
            case "gradient":
                return energies + torch.zeros_like(energies).index_add(
                    0, edge_index[1], ((0 * vectors) ** 2).sum(-1).sqrt()
                )
        return energies


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("shape", ValueError, r"the energies of Odd must have shape \[3\] or \[3, 1\], got \[1\]"),
        (
            "constant",
            ValueError,
            "the energies of Odd must depend on the geometry, .*, got a gradient of 0",
        ),
        ("random", ValueError, "Odd must return the same energy for the same atoms, got"),
        ("infinite", ValueError, "the energies of Odd must be finite, got"),
        ("dict", TypeError, "Odd must return energies as tensors, got a dict"),
        ("two", TypeError, "Odd must return energies as tensors, got 2 values"),
        ("gradient", ValueError, "the gradient of Odd must be finite, also for pairs at the cutoff, got"),
        ("longer", ValueError, "pairs at the cutoff, 4.0 Å, must contribute nothing to the energies of Odd, got"),
    ],
)
def test_faults_are_found_at_once(fault, error, message):
    with pytest.raises(error, match=message):
        wrap(Odd(fault), cutoff=CUTOFF, elements=ELEMENTS)


class Unlike(torch.nn.Module):
    def forward(self, data, cell):
        return data


class Blind(torch.nn.Module):
    def forward(self, atomic_numbers):
        return atomic_numbers


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(module=lambda vectors: vectors), TypeError, "module must be a torch.nn.Module, got a function"),
        (dict(module=Unlike()), ValueError, "the arguments of forward must be among vectors, .*, got data, cell"),
        (dict(module=Blind()), ValueError, "forward must take the geometry, vectors or shifts, got atomic_numbers"),
        (dict(cutoff=0.0), ValueError, "cutoff must be > 0 Å and finite, got 0.0"),
        (dict(elements=[]), ValueError, "elements must be different atomic numbers from 1 to 118, got"),
        (dict(elements=[1, 1]), ValueError, r"elements must be different atomic numbers .* got \(1, 1\)"),
        (dict(elements=[1, 300]), ValueError, r"elements must be different atomic numbers .* got \(1, 300\)"),
        (dict(energies="pairs"), ValueError, "energies must be one of atoms, systems, got 'pairs'"),
        (dict(name="my model"), ValueError, "name must consist of letters, digits and _, got 'my model'"),
        (dict(charges=True), TypeError, "Small must return energies and charges as tensors, got a Tensor"),
        (dict(energies="systems"), ValueError, r"the energies of Small must have shape \[2\] or \[2, 1\], got \[3\]"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        wrap(**{"module": Small(), "cutoff": CUTOFF, "elements": ELEMENTS, **arguments})


def test_a_refused_module_leaves_the_name_to_the_one_before(small, tmp_path):
    save(small, tmp_path / "small.safetensors")
    with pytest.raises(ValueError, match="cutoff"):
        wrap(Odd("longer"), cutoff=CUTOFF, elements=ELEMENTS, name="Small")
    assert isinstance(load(tmp_path / "small.safetensors").network.module, Small)


def test_elements_that_it_does_not_know(small):
    with pytest.raises(ValueError, match="does not know N .* it was trained on H, C, O"):
        torchmdx.evaluate(small, System.create([[0.0, 0, 0], [0, 0, 1]], [7, 7]))


class Squares(torch.nn.Module):
    """A pair energy that ends with a slope at the cutoff, from squares of lengths rounded in one of two ways."""

    def __init__(self, fused: bool):
        super().__init__()
        self.fused = fused
        self.register_buffer("cut", torch.tensor(20.0))

    def forward(self, vectors, edge_index, atomic_numbers):
        if self.fused:  # products that are not rounded, as fused multiply-adds have them
            squares = (vectors.double() ** 2).sum(-1).to(vectors.dtype)
        else:
            squares = (vectors**2).sum(-1)
        energies = torch.clamp(squares - self.cut**2, max=0.0)
        return vectors.new_zeros(len(atomic_numbers)).index_add(0, edge_index[1], energies)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_rounding_puts_an_empty_slot_inside_the_cutoff(fused, dtype):
    potential = wrap(Squares(fused), cutoff=20.0, elements=[6]).to(dtype)
    far = torch.nn.functional.normalize(torch.randn(10_000, 3, generator=torch.Generator().manual_seed(0), dtype=dtype))
    edges = torchmdx.neighbors.edges.Edges(
        row_ptr=torch.tensor([0, 0, 0]),
        source=torch.ones(10_000, dtype=torch.int64),
        target=torch.ones(10_000, dtype=torch.int64),
        shifts=torch.zeros(10_000, 3),
        num_edges=torch.tensor(0),
        needed=torch.tensor(0),
        overflow=torch.tensor(False),
    )
    batch = Batch.of(System.create([[0.0, 0, 0], [0, 0, 1]], [6, 6], dtype=dtype))
    assert potential.network(edges, 1e6 * far, batch)[0].abs().max() == 0

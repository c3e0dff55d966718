"""Conversion: broken frames by file and index, units that cannot be, files that end too early."""

import ase.io
import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.datasets import checks
from torchmdx.datasets.conversion import convert
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store

NUMBERS = np.array([8, 1, 1])
WATER = np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])
# As a force field, for structures that move as molecules do: of bonds, in eV/Å², and of other pairs.
STIFF, SOFT = 30.0, 2.0


def thermal(count=40, seed=0):
    """Ethanol at about 300 K under springs: positions [F,9,3] Å, energies [F] as of all electrons, forces, eV."""
    generator = np.random.default_rng(seed)
    atoms = molecule("CH3CH2OH")
    first, second = np.triu_indices(len(atoms), 1)
    rest = atoms.get_all_distances()[first, second]
    strength = np.where(rest < 1.7, STIFF, np.where(rest < 2.7, SOFT, 0))
    positions = atoms.positions + generator.normal(scale=0.03, size=(count, len(atoms), 3))
    vectors = positions[:, second] - positions[:, first]
    lengths = np.linalg.norm(vectors, axis=-1)
    pulls = (strength * (lengths - rest) / lengths)[..., None] * vectors
    forces = np.zeros_like(positions)
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        forces[:, a] += pulls[:, k]
        forces[:, b] -= pulls[:, k]
    energy = -4218.0 + 0.5 * (strength * (lengths - rest) ** 2).sum(1)
    return atoms.numbers, positions, energy, forces


def archive(tmp_path, *, length=1.0, energy=1.0, force=None):
    numbers, positions, energies, forces = thermal()
    force = energy / length if force is None else force
    np.savez(tmp_path / "e.npz", z=numbers, R=positions * length, E=energies * energy, F=forces * force)
    return tmp_path / "e.npz"


def warned(file, **options) -> list[str]:
    lines: list[str] = []
    report = convert([file], file.parent / "out", log=lines.append, **options)
    assert [line for line in lines if line.startswith("warning: ")] == [f"warning: {text}" for text in report.warnings]
    return report.warnings


KCAL, HARTREE_BOHR, BOHR = 23.06, 1 / 51.42, 0.5292


@pytest.mark.parametrize(
    ("made", "declared", "words"),
    [
        (dict(), dict(), []),
        (dict(length=1 / BOHR), dict(length_unit="bohr"), []),
        (dict(energy=KCAL), dict(energy_unit="kcal/mol"), []),
        (dict(length=1 / BOHR), dict(force_unit="eV/bohr"), ["bohr declared as Å"]),
        (dict(), dict(length_unit="bohr", force_unit="eV/angstrom"), ["Å declared as bohr"]),
        (dict(), dict(length_unit="nm", force_unit="eV/angstrom"), ["Å or bohr declared as nm"]),
        (dict(energy=KCAL), dict(), ["energies are", "forces are"]),
        (dict(energy=KCAL), dict(force_unit="kcal/mol/angstrom"), ["energies are"]),
        (dict(energy=KCAL), dict(energy_unit="kcal/mol", force_unit="eV/angstrom"), ["forces are"]),
        (dict(force=HARTREE_BOHR), dict(), ["too small for structures that differ"]),
        (dict(), dict(energy_unit="hartree"), ["energies are", "forces are"]),
        (dict(energy=1e3), dict(), ["energies are", "forces are"]),
        (dict(energy=1e3), dict(energy_unit="meV"), []),
    ],
)
def test_units_that_cannot_be_are_warned_of(tmp_path, made, declared, words):
    warnings = warned(archive(tmp_path, **made), **declared)
    assert len(warnings) == len(words), warnings
    for word, text in zip(words, warnings, strict=True):
        assert word in text


def test_data_that_is_unusual_but_right_is_not_warned_of(tmp_path):
    """Relaxed crystals, rare gases, lone atoms, compressed and expanded metals, pseudopotential energies."""
    structures = []
    for k in range(20):
        for atoms in (bulk("Ar", a=5.3), bulk("Cs", a=6.1 + 0.01 * k), bulk("Cu", a=3.4 + 0.02 * k), Atoms("He")):
            atoms.calc = SinglePointCalculator(atoms, energy=-3.0 * len(atoms), forces=np.full((len(atoms), 3), 1e-4))
            structures.append(atoms)
    ase.io.write(tmp_path / "u.traj", structures)
    assert warned(tmp_path / "u.traj") == []


def test_angstrom_file_in_nm_is_refused_with_a_hint(tmp_path):
    """0.096 nm read as Å: atoms are broken, and why is said."""
    np.savez(tmp_path / "n.npz", z=NUMBERS, R=WATER[None] / 10, E=[-1.0])
    with pytest.raises(ValueError, match="two atoms must be at least 0.1 Å apart, got 0.0962 Å\n.*nm declared as Å"):
        convert([tmp_path / "n.npz"], tmp_path / "out", log=[].append)


def broken_frames() -> list[Atoms]:
    """Frame 0 is good, each of the others is broken in its own way, the last is good."""
    found = [Atoms(NUMBERS, WATER) for _ in range(8)]
    for k, atoms in enumerate(found):
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0 * k, forces=np.zeros((3, 3)))
    found[1].calc.results["energy"] = np.inf
    found[2].calc.results["forces"][1, 2] = np.inf
    found[3].positions[2, 0] = np.nan
    found[4].calc = None
    found[5].positions[2] = found[5].positions[1] + [0, 0, 0.05]
    found[6].set_cell([[5, 0, 0], [0, 5, 0], [5, 5, 0]])
    found[6].pbc = True
    for k in (3, 5, 6):
        found[k].calc = SinglePointCalculator(found[k], energy=1.0)
    return found


REASONS = {
    1: "energy must be finite",
    2: "forces must be finite",
    3: "positions must be finite",
    4: "no energy, forces or stress",
    5: "two atoms must be at least 0.1 Å apart, got 0.05 Å",
    6: "lattice vectors of the periodic directions must be linearly independent",
}


def test_broken_frames_are_skipped_and_told(tmp_path):
    ase.io.write(tmp_path / "b.traj", broken_frames())
    lines: list[str] = []
    report = convert([tmp_path / "b.traj"], tmp_path / "out", broken="skip", log=lines.append)
    assert (report.num_frames, report.num_broken) == (2, 6)
    for found, (index, reason) in zip(report.broken, REASONS.items(), strict=True):
        assert found.first == index
        assert reason in found.reason
        assert f"skipped {tmp_path / 'b.traj'}, frame {index}: {found.reason}" in lines
    store = Store.open(tmp_path / "out")
    assert [store.origin(k)[1] for k in range(2)] == [0, 7]
    assert store.gather([0, 1]).energy.tolist() == [0.0, -7.0]


def test_broken_frames_are_refused_by_default(tmp_path):
    ase.io.write(tmp_path / "b.traj", broken_frames())
    with pytest.raises(ValueError, match="6 frames") as caught:
        convert([tmp_path / "b.traj"], tmp_path / "out", log=[].append)
    text = str(caught.value)
    assert text.startswith("6 frames are broken (--broken skip leaves such frames out):")
    for index, reason in REASONS.items():
        assert f"b.traj, frame {index}: " in text
        assert reason in text
    assert list(tmp_path.iterdir()) == [tmp_path / "b.traj"]


def test_broken_frames_of_arrays(tmp_path):
    forces = np.zeros((4, 3, 3))
    forces[2, 1, 1] = np.nan
    numbers = np.array([NUMBERS, [8, 1, 119], NUMBERS, [0, 1, 1]])
    np.savez(tmp_path / "b.npz", z=numbers, R=np.tile(WATER, (4, 1, 1)), E=np.zeros(4), F=forces)
    report = convert([tmp_path / "b.npz"], tmp_path / "out", broken="skip", log=[].append)
    assert [(one.first, one.reason) for one in report.broken] == [
        (1, "atomic numbers must be 1 to 118, got 119"),
        (2, "forces must be finite, got NaN or infinity"),
        (3, "atomic numbers must be 1 to 118, got 0"),
    ]


def test_nothing_that_can_be_used(tmp_path):
    np.savez(tmp_path / "b.npz", z=NUMBERS, R=WATER[None], E=[np.nan])
    with pytest.raises(ValueError, match=r"1 frame is broken \(none can be used\):\n.*b.npz, frame 0: energy"):
        convert([tmp_path / "b.npz"], tmp_path / "out", broken="skip", log=[].append)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("broken", ["refuse", "skip"])
def test_group_of_wrong_shapes_is_one_run_of_frames(tmp_path, broken):
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for name, width in (("a", 3), ("b", 2), ("c", 3)):
            group = file.create_group(name)
            group["types"], group["pos"], group["energy"] = NUMBERS, np.tile(WATER, (4, 1, 1)), np.zeros(4)
            group["forces"] = np.zeros((4, width, 3))
    said = r"w.h5, frames 4 to 7: group '/b': forces must have the shape of the positions, \[4, 3, 3\], got \[4, 2, 3\]"
    if broken == "refuse":
        with pytest.raises(ValueError, match=said):
            convert([tmp_path / "w.h5"], tmp_path / "out", log=[].append)
    else:
        report = convert([tmp_path / "w.h5"], tmp_path / "out", broken="skip", log=[].append)
        assert (report.num_frames, report.num_broken) == (8, 4)
        assert Store.open(tmp_path / "out").origin(4)[1] == 8


def xyz(tmp_path):
    structures = [Atoms(NUMBERS, WATER) for _ in range(4)]
    for k, atoms in enumerate(structures):
        atoms.calc = SinglePointCalculator(atoms, energy=float(k))
    ase.io.write(tmp_path / "t.xyz", structures)
    return (tmp_path / "t.xyz").read_text().splitlines(keepends=True)


def test_xyz_that_ends_in_a_frame(tmp_path):
    lines = xyz(tmp_path)
    (tmp_path / "t.xyz").write_text("".join(lines[:-2]))
    with pytest.raises(ValueError, match="t.xyz, frame 3: the file ends after 1 of its 3 atoms"):
        convert([tmp_path / "t.xyz"], tmp_path / "out", log=[].append)
    report = convert([tmp_path / "t.xyz"], tmp_path / "out", broken="skip", log=[].append)
    assert (report.num_frames, report.num_broken) == (3, 1)


def test_xyz_with_a_line_that_is_not_numbers(tmp_path):
    lines = xyz(tmp_path)
    lines[7] = "O  0.0  what  0.0\n"
    (tmp_path / "t.xyz").write_text("".join(lines))
    report = convert([tmp_path / "t.xyz"], tmp_path / "out", broken="skip", log=[].append)
    assert [one.first for one in report.broken] == [1]
    assert "ASE can't read it: " in report.broken[0].reason
    assert Store.open(tmp_path / "out").gather([0, 1, 2]).energy.tolist() == [0, 2, 3]


@pytest.mark.parametrize("name", ["c.npz", "c.h5", "c.traj"])
def test_file_that_was_cut(tmp_path, name):
    numbers, positions, energy, forces = thermal(200)
    if name == "c.npz":
        np.savez(tmp_path / name, z=numbers, R=positions, E=energy, F=forces)
    elif name == "c.h5":
        with h5py.File(tmp_path / name, "w") as file:
            group = file.create_group("a")
            group["types"], group["pos"], group["energy"] = numbers, positions, energy
    else:
        ase.io.write(tmp_path / name, [Atoms(numbers, one) for one in positions])
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=name):
        convert([tmp_path / name], tmp_path / "out", broken="skip", log=[].append)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_trajectory_that_ends_in_a_frame(tmp_path):
    structures = [Atoms(NUMBERS, WATER) for _ in range(20)]
    for k, atoms in enumerate(structures):
        atoms.calc = SinglePointCalculator(atoms, energy=float(k))
    ase.io.write(tmp_path / "t.traj", structures)
    whole = (tmp_path / "t.traj").read_bytes()
    (tmp_path / "t.traj").write_bytes(whole[: len(whole) * 8 // 10])
    report = convert([tmp_path / "t.traj"], tmp_path / "out", broken="skip", log=[].append)
    assert report.num_broken == 1
    assert report.broken[0].first == report.num_frames
    assert "the rest is not read" in report.broken[0].reason
    frames = Store.open(tmp_path / "out").gather(np.arange(report.num_frames))
    assert report.num_frames > 5
    assert frames.energy.tolist() == list(range(report.num_frames))


def test_nearest_sees_images_and_says_who(tmp_path):
    pair_across = np.array([[0.1, 2, 2], [3.9, 2, 2]])
    generator = np.random.default_rng(4)
    large = generator.uniform(0, 30, size=(80, 3))
    large[[3, 70]] = [[1.0, 1, 1], [1, 1, 1.02]]
    parts = [
        Frames.single(pair_across, np.array([3, 9]), cell=4 * np.eye(3), pbc=[True] * 3),
        Frames.single(pair_across, np.array([3, 9]), cell=4 * np.eye(3), pbc=[False, True, True]),
        Frames.single(large, np.where(np.arange(80) == 3, 7, np.where(np.arange(80) == 70, 5, 1))),
        Frames.single(np.zeros((1, 3)), np.array([2])),
        Frames.single(WATER, NUMBERS),
        Frames.single(np.array([[9.0, 0, 0]]), np.array([29]), cell=1.8 * (1 - np.eye(3)), pbc=[True] * 3),
    ]  # fmt: skip
    distance, pair = checks.nearest(Frames.concatenate(parts))
    np.testing.assert_allclose(distance, [0.2, 3.8, 0.02, np.inf, (0.76**2 + 0.59**2) ** 0.5, 1.8 * 2**0.5], atol=1e-12)
    assert [sorted(one) for one in pair.tolist()] == [[3, 9], [3, 9], [5, 7], [0, 0], [1, 8], [29, 29]]


def test_several_files_of_several_formats(tmp_path):
    np.savez(tmp_path / "a.npz", z=NUMBERS, R=WATER[None], E=[-1.0])
    xyz(tmp_path)
    convert([tmp_path / "a.npz", tmp_path / "t.xyz"], tmp_path / "out", log=[].append)
    store = Store.open(tmp_path / "out")
    assert [store.origin(k) for k in (0, 1, 4)] == [
        (str(tmp_path / "a.npz"), 0), (str(tmp_path / "t.xyz"), 0), (str(tmp_path / "t.xyz"), 3)
    ]  # fmt: skip
    with pytest.raises(FileExistsError, match="already"):
        convert([tmp_path / "a.npz"], tmp_path / "out", log=[].append)
    with pytest.raises(ValueError, match="broken must be refuse or skip, got 'ignore'"):
        convert([tmp_path / "a.npz"], tmp_path / "new", broken="ignore")
    with pytest.raises(ValueError, match="at least one file"):
        convert([], tmp_path / "new")


def test_frames_without_labels_are_accepted_where_none_are_needed(tmp_path):
    named = molecule("CH4")
    named.info["REF_energy"] = -1.0
    ase.io.write(tmp_path / "bare.xyz", [molecule("H2O"), molecule("NH3")])
    ase.io.write(tmp_path / "named.xyz", named)
    for name, message in (("bare", "it has no energy, forces or stress"), ("named", "REF_energy")):
        with pytest.raises(ValueError, match=message):
            convert([tmp_path / f"{name}.xyz"], tmp_path / "refused", log=lambda text: None)
        convert([tmp_path / f"{name}.xyz"], tmp_path / name, unlabelled=True, log=lambda text: None)
    assert [len(Store.open(tmp_path / name)) for name in ("bare", "named")] == [2, 1]
    assert Store.open(tmp_path / "bare").labels == frozenset()


def test_labels_that_are_nan_are_missing(tmp_path):
    """As in ANI-1x: one method has labelled some frames, another one others."""
    energy, forces = np.array([-1.0, np.nan, -3.0, np.nan]), np.zeros((4, 3, 3))
    forces[2] = np.nan
    forces[3, 0, 0] = np.nan
    np.savez(tmp_path / "a.npz", z=NUMBERS, R=np.tile(WATER, (4, 1, 1)), E=energy, F=forces)
    report = convert([tmp_path / "a.npz"], tmp_path / "out", broken="skip", log=[].append)
    assert [(one.first, one.reason) for one in report.broken] == [(3, "energy must be finite, got NaN or infinity")]
    assert report.warnings[-2:] == [
        f"energy is NaN in 1 frame of {tmp_path / 'a.npz'}, where it is read as missing",
        f"forces is NaN in 1 frame of {tmp_path / 'a.npz'}, where it is read as missing",
    ]
    frames = Store.open(tmp_path / "out").gather([0, 1, 2])
    assert frames.has_energy.tolist() == [True, False, True]
    assert frames.has_forces.tolist() == [True, True, False]
    atoms = [Atoms(NUMBERS, WATER) for _ in range(2)]
    for k, one in enumerate(atoms):
        one.info["dft_energy"] = -5.0 if k else np.nan
        one.arrays["dft_forces"] = np.full((3, 3), 0.25)
    ase.io.write(tmp_path / "b.xyz", atoms)
    keys = {"energy": "dft_energy", "forces": "dft_forces"}
    convert([tmp_path / "b.xyz"], tmp_path / "xyz", keys=keys, log=[].append)
    assert Store.open(tmp_path / "xyz").gather([0, 1]).has_energy.tolist() == [False, True]


@pytest.mark.parametrize(
    ("stated", "options", "said"),
    [
        ({"energy": "kcal/mol"}, {}, "states energy in kcal/mol .* is read in eV: give --energy-unit"),
        ({"energy": "eV", "forces": "Ha/Bohr"}, {}, "states force in Ha/Bohr .*: give --force-unit"),
        ({"energy": "eV", "forces": "eV/Ang", "positions": "Ang"}, {}, None),
        ({"energy": "kcal/mol", "forces": "kcal/mol/A"}, {"energy_unit": "kcal/mol"}, None),
        ({"energy": "furlong"}, {}, None),
    ],
)
def test_units_that_a_file_states_are_those_that_it_is_read_in(tmp_path, stated, options, said):
    atoms = Atoms(NUMBERS, WATER)
    atoms.info |= {"energy": -5.0, "_property_unit_dict": stated}
    atoms.arrays["forces"] = np.zeros((3, 3))
    ase.io.write(tmp_path / "a.xyz", atoms)
    if said is None:
        assert convert([tmp_path / "a.xyz"], tmp_path / "out", log=[].append, **options).num_frames == 1
    else:
        with pytest.raises(ValueError, match=f"a.xyz' {said}"):
            convert([tmp_path / "a.xyz"], tmp_path / "out", log=[].append, **options)

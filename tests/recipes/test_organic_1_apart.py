"""Molecules apart in recipes/organic_1: their frames and files, and charge that crosses a gap."""

import numpy as np
import pytest

WATER = np.array([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
FORMALDEHYDE = np.array([[0.0, 0, 0], [1.2, 0, 0], [-0.6, 0.93, 0], [-0.6, -0.93, 0]])


@pytest.fixture
def entries(recipe):
    """Water and chloride, which all subsets share, formaldehyde and two ions, which train."""
    entry = recipe("start_file").Entry
    none = np.zeros((0, 2), int)

    def make(name, charge, numbers, positions, bonds):
        bonds = np.array(bonds).reshape(-1, 2)
        fixed = np.ones(len(bonds), bool)
        return entry(name, name, "train", charge, np.array(numbers), bonds, fixed, np.array(positions)[None])

    water = make("O", 0, [8, 1, 1], WATER, [[0, 1], [0, 2]])
    chloride = make("[Cl-]", -1, [17], [[0.0, 0, 0]], none)
    formaldehyde = make("C=O", 0, [6, 8, 1, 1], FORMALDEHYDE, [[0, 1], [0, 2], [0, 3]])
    cation = make("[OH3+]", 1, [8, 1, 1, 1], [*WATER, [-0.3, -0.5, 0.75]], [[0, 1], [0, 2], [0, 3]])
    anion = make("[OH-]", -1, [8, 1], WATER[:2], [[0, 1]])
    return water, chloride, formaldehyde, cation, anion


def test_molecules_stand_at_all_distances_and_keep_their_charges(recipe, entries, monkeypatch):
    assemblies = recipe("assemblies")
    monkeypatch.setattr(assemblies, "APART", {"charged": 60, "two ions": 5, "neutral": 20, "three": 20})
    monkeypatch.setattr(assemblies, "subset_of", lambda name: "train")
    assembler = assemblies.Assembler([*entries], {"O", "[Cl-]"}, "train", np.random.default_rng(0))
    frames = assembler.apart(list(entries[3:]))
    assert len(frames) == 3 * 105
    charges = {sum(charge for _, charge in frame.parts) for frame in frames}
    assert charges == {-1, 0, 1}
    ratios = []
    for frame in frames:
        assert frame.charge == sum(charge for _, charge in frame.parts)
        assert sum(atoms for atoms, _ in frame.parts) == len(frame.numbers) == len(frame.positions)
        owner = np.repeat(np.arange(len(frame.parts)), [atoms for atoms, _ in frame.parts])
        radii = np.array([assemblies.VDW[int(z)] for z in frame.numbers])
        apart = np.linalg.norm(frame.positions[:, None] - frame.positions, axis=-1) / np.add.outer(radii, radii)
        ratios.append(apart[owner[:, None] != owner].min())
    low, high = assemblies.APART_RATIOS
    assert low - 1e-6 < min(ratios) < 0.75 < 2.0 < max(ratios) < high + 1e-6
    # Evenly in the logarithm, but for a third molecule, which may come nearer to one than to the other.
    assert np.median(ratios) == pytest.approx(np.sqrt(low * high), rel=0.25)


def test_pairs_of_ions_need_both_signs(recipe, entries):
    assembler = recipe("assemblies").Assembler([*entries], {"O", "[Cl-]"}, "train", np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"ions of both signs, got charges \[-1\]"):
        assembler.apart([entries[4]])


def test_files_keep_names_charges_and_parts(recipe, tmp_path):
    frame, files = recipe("assemblies").Frame, recipe("frame_file")
    numbers, positions = np.array([8, 1, 1, 17]), np.concatenate([WATER, [[0.0, 0, 4]]])
    given = [
        frame(numbers, positions, -1, "O + F/C=C\\F", ((3, 0), (1, -1))),
        frame(numbers[:3], WATER, 0, "O"),
    ]
    files.write_frames(tmp_path / "a.xyz", given)
    found = list(files.read_frames(tmp_path / "a.xyz"))
    assert [(f.name, f.charge, f.parts) for f in found] == [(f.name, f.charge, f.parts) for f in given]
    for one, other in zip(found, given, strict=True):
        assert one.numbers.tolist() == other.numbers.tolist()
        assert one.positions == pytest.approx(other.positions, abs=1e-4)


def test_a_frame_without_a_charge_is_named(recipe, tmp_path):
    (tmp_path / "a.xyz").write_text("1\nProperties=species:S:1:pos:R:3\nO 0 0 0\n")
    with pytest.raises(ValueError, match=r"a\.xyz' must have charge and molecule, got 'Properties="):
        list(recipe("frame_file").read_frames(tmp_path / "a.xyz"))


@pytest.mark.parametrize(
    ("ion", "charge", "apart", "stays"),
    [
        (17, -1, 6.0, True),  # chloride holds its electron
        (1, -1, 6.0, False),  # a hydride does not
        (1, -1, 2.0, True),  # close molecules may share theirs
    ],
)
def test_frames_stay_if_charge_stays_where_it_belongs(recipe, ion, charge, apart, stays):
    frame, check = recipe("assemblies").Frame, recipe("check_apart")
    positions = np.concatenate([FORMALDEHYDE, [[1.2 + apart, 0, 0]]])
    given = frame(np.array([6, 8, 1, 1, ion]), positions, charge, "pair", ((4, 0), (1, charge)))
    assert check.far_parts(given) == ([0, 1] if apart > check.FAR else [])
    assert check.kept(given) is stays


def test_neutral_molecules_are_not_computed(recipe, monkeypatch):
    frame, check = recipe("assemblies").Frame, recipe("check_apart")
    monkeypatch.setattr(check, "moved", lambda frame: pytest.fail("computed"))
    positions = np.concatenate([WATER, WATER + np.array([0, 0, 9])])
    assert check.kept(frame(np.array([8, 1, 1] * 2), positions, 0, "O + O", ((3, 0), (3, 0))))

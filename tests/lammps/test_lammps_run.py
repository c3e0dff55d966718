"""Running inputs: errors end all processes, and the example runs as it is."""

from mpi import launch, needs_lammps

from torchmdx.lammps.example import write_example

pytestmark = needs_lammps


def test_the_example_runs(tmp_path):
    _, text = write_example(tmp_path, molecules=8)
    found = launch(tmp_path, text.read_text().replace("run             50", "run 2"), 2)
    assert found.status == 0, found.text
    assert len(found.thermo["Step"]) == 2
    assert (tmp_path / "water.restart").exists()

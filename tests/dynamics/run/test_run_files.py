"""Names and settings of a recorded run."""

import pytest

from torchmdx.dynamics.run.files import RunFiles


def test_structures_have_files_of_their_own(tmp_path):
    prefix = str(tmp_path / "run")
    assert [path.name for path in RunFiles(prefix, 1).trajectories] == ["run.dcd"]
    names = [path.name for path in RunFiles(prefix, 12).logs]
    assert names[0] == "run.00.log"
    assert names[-1] == "run.11.log"
    assert len({str(path) for path in RunFiles(prefix, 12).all()}) == 4 * 12 + 5  # trajectories of either format


def test_existing_files_are_found_and_removed(tmp_path):
    files = RunFiles(str(tmp_path / "run"), 2)
    files.require_new()
    files.trajectories[1].write_text("")
    with pytest.raises(FileExistsError, match="run.1.dcd; --restart continues the run"):
        files.require_new()
    files.remove()
    files.require_new()


def test_other_settings_are_refused(tmp_path):
    files = RunFiles(str(tmp_path / "run"), 1)
    with pytest.raises(FileNotFoundError, match="run.json' does not exist"):
        files.read_settings()
    files.write_settings({"seed": [1, 2], "timestep in fs": 0.5})
    files.require_settings({"seed": (1, 2), "timestep in fs": 0.5})
    with pytest.raises(ValueError, match="got timestep in fs 1.0, was 0.5"):
        files.require_settings({"seed": [1, 2], "timestep in fs": 1.0})
    for text in ("no json", "[1]", "{}", '{"format": 3}'):
        files.settings.write_text(text)
        with pytest.raises(ValueError, match="run.json' must"):
            files.read_settings()


def test_each_engine_continues_its_own_runs(tmp_path):
    prefix = str(tmp_path / "run")
    own, openmm = RunFiles(prefix), RunFiles(prefix, engine="openmm")
    (tmp_path / "run.xml").write_text("a file of the user")
    own.require_new()
    own.remove()
    with pytest.raises(FileExistsError, match="run.xml"):
        openmm.require_new()
    own.write_settings({"seed": 1})
    assert own.read_settings() == {"seed": 1}
    words = "must have format 1 of --engine openmm, got 'torchmdx dynamics 1', of --engine torchmdx"
    with pytest.raises(ValueError, match=words):
        openmm.read_settings()


def test_what_earlier_versions_did_stands_for_what_they_did_not_write(tmp_path):
    files = RunFiles(str(tmp_path / "run"), engine="openmm")
    files.write_settings({"seed": 1})
    assert files.require_settings({"seed": 1, "fixed atoms": "none"}, {"fixed atoms": "none"}) == []
    with pytest.raises(ValueError, match="got fixed atoms 0-1, was none"):
        files.require_settings({"seed": 1, "fixed atoms": "0-1"}, {"fixed atoms": "none"})
    with pytest.warns(UserWarning, match="which did not write cell in Å"):
        assert files.require_settings({"seed": 1, "cell in Å": [[1.0]]}) == ["cell in Å"]


def test_files_that_a_continuation_lacks_are_named(tmp_path):
    files = RunFiles(str(tmp_path / "run"))
    for path in (*files.trajectories, *files.logs):
        with pytest.raises(FileNotFoundError, match=f"a restart continues '.*{path.name}', which does not exist"):
            files.require_there()
        path.write_text("")
    files.require_there()
    with pytest.raises(FileNotFoundError, match="run.restart.npz"):
        files.require_there(files.restart)


def test_prefixes_that_are_no_file_names(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be in an existing directory"):
        RunFiles(str(tmp_path / "no" / "run"), 1)
    with pytest.raises(ValueError, match="must be a prefix of file names"):
        RunFiles(str(tmp_path), 1)


def test_a_run_with_a_precision_that_is_gone_is_continued_in_float32(tmp_path):
    files = RunFiles(str(tmp_path / "run"))
    files.write_settings({"precision": "half"})
    with pytest.warns(UserWarning, match="precision 'half' was removed.* is evaluated in float32") as warned:
        assert files.require_settings({"precision": "float32"}) == []
    assert len(warned) == 1

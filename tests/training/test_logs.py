"""CSV files, also after kills and resumed runs; TensorBoard; Weights & Biases."""

import math
import sys
import types

import numpy as np
import pytest

from torchmdx.report.history import read_table
from torchmdx.training.logs import Logs


def log_steps(logs, first, last):
    for step in range(first, last + 1):
        logs.step(step, {"loss": 1 / (step + 2), "lr": 1e-3})
        if step % 5 == 0:
            values = {"lr": 1e-3, "train_energy": 3.0 * step}
            logs.epoch(step // 5, step, values if step % 10 else {**values, "validation_energy": 4.5})


def files(directory):
    return {path.name: path.read_bytes() for path in directory.glob("*.csv")}


def test_rows_are_readable_during_the_run(tmp_path):
    logs = Logs(tmp_path, ("csv",), {})
    logs.step(1, {"loss": 0.1, "num_edges": 7})
    assert (tmp_path / "steps.csv").read_text() == "step,loss,num_edges\n1,0.1,7\n"
    logs.step(2, {"loss": math.nan})
    assert (tmp_path / "steps.csv").read_text().splitlines()[-1] == "2,nan,"
    logs.epoch(1, 2, {"lr": np.float32(1e-3)})
    assert (tmp_path / "epochs.csv").read_text() == "epoch,step,lr\n1,2,0.00100000005\n"
    logs.close()
    logs.close()


def test_a_new_column_is_empty_in_earlier_rows(tmp_path):
    logs = Logs(tmp_path, ("csv",), {})
    logs.step(1, {"loss": 1.0})
    logs.step(2, {"lr": 0.5, "loss": 2.0})
    logs.step(3, {"loss": 3.0})
    assert (tmp_path / "steps.csv").read_text() == "step,loss,lr\n1,1,\n2,2,0.5\n3,3,\n"
    columns = read_table(tmp_path / "steps.csv")
    np.testing.assert_array_equal(columns["lr"], [np.nan, 0.5, np.nan])
    with pytest.raises(ValueError, match="the name of a column must have no commas, .* got 'a,b'"):
        logs.step(4, {"a,b": 1.0})
    logs.step(4, {"loss": 4.0})
    assert list(read_table(tmp_path / "steps.csv")["step"]) == [1, 2, 3, 4]
    logs.close()


@pytest.mark.parametrize("torn", [b"", b"18,0.0", b"18", b"\0\0\0"])
def test_a_resumed_run_leaves_the_files_of_an_uninterrupted_one(tmp_path, torn):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    logs = Logs(whole, ("csv",), {})
    log_steps(logs, 1, 30)
    logs.close()
    logs = Logs(killed, ("csv",), {})
    log_steps(logs, 1, 17)
    assert files(killed)["steps.csv"] == b"".join(files(whole)["steps.csv"].splitlines(keepends=True)[:18])
    logs.close()
    for name in ("steps.csv", "epochs.csv"):
        with (killed / name).open("ab") as file:
            file.write(torn)
    resumed = Logs(killed, ("csv",), {}, resume_at=12)
    assert list(read_table(killed / "steps.csv")["step"]) == list(range(1, 13))
    assert list(read_table(killed / "epochs.csv")["epoch"]) == [1, 2]
    log_steps(resumed, 13, 30)
    resumed.close()
    assert files(killed) == files(whole)
    assert len(list(killed.iterdir())) == 2


def test_a_new_run_starts_new_files(tmp_path):
    for _ in range(2):
        logs = Logs(tmp_path, ("csv",), {})
        log_steps(logs, 1, 3)
        logs.close()
    assert list(read_table(tmp_path / "steps.csv")["step"]) == [1, 2, 3]


def test_resuming_without_files_creates_them(tmp_path):
    (tmp_path / "epochs.csv").write_bytes(b"")
    logs = Logs(tmp_path, ("csv",), {}, resume_at=5)
    logs.step(6, {"loss": 1.0})
    logs.close()
    assert (tmp_path / "steps.csv").read_text() == "step,loss\n6,1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,loss\n1,2\n", "steps.csv' must be a table that begins with the columns step, got 'time,loss'"),
        ("step,loss\n1,2\n2,3,4\n", "line 3 of .*steps.csv' must have 2 fields like its first line, got '2,3,4'"),
        ("step,loss\nx,2\n", "line 2 of .*steps.csv' must have 2 fields .* got 'x,2'"),
    ],
)
def test_a_file_that_is_not_a_log_is_rejected_and_unchanged(tmp_path, text, message):
    (tmp_path / "steps.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        Logs(tmp_path, ("csv",), {}, resume_at=1)
    assert (tmp_path / "steps.csv").read_text() == text


def test_a_failed_write_is_reported_and_keeps_earlier_rows(tmp_path, monkeypatch):
    logs = Logs(tmp_path, ("csv",), {})
    logs.step(1, {"loss": 1.0})

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("torchmdx.runtime.files.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            logs.step(2, {"loss": 1.0, "lr": 2.0})  # a new column: the file is written anew
    assert (tmp_path / "steps.csv").read_text() == "step,loss\n1,1\n"
    logs.step(2, {"loss": 2.0})
    logs.close()
    assert (tmp_path / "steps.csv").read_text() == "step,loss\n1,1\n2,2\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epochs.csv", "steps.csv"]


def test_unknown_loggers_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="loggers must be any of csv, tensorboard, wandb, mlflow, got 'tensorbord'"):
        Logs(tmp_path / "run", ("csv", "tensorbord"), {})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("tensorboard", "torch.utils.tensorboard", "needs TensorBoard.*pip install 'torchmdx\\[train\\]'"),
        ("wandb", "wandb", "the logger 'wandb' is not installed: pip install wandb"),
        ("mlflow", "mlflow", "the logger 'mlflow' is not installed: pip install mlflow"),
    ],
)
def test_missing_loggers_raise_with_install_command(tmp_path, monkeypatch, name, module, message):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=message):
        Logs(tmp_path / "run", ("csv", name), {})
    assert not (tmp_path / "run").exists()


def scalars(directory, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


def test_tensorboard_holds_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    logs = Logs(tmp_path, ("tensorboard",), {"model": {"num_channels": 8}})
    log_steps(logs, 1, 12)
    logs.close()
    found = scalars(tmp_path, "step/loss")
    assert found == pytest.approx({step: 1 / (step + 2) for step in range(1, 13)})
    assert scalars(tmp_path, "epoch/train_energy") == {5: 15.0, 10: 30.0}
    logs = Logs(tmp_path, ("tensorboard",), {}, resume_at=8)
    logs.step(9, {"loss": 7.0})
    logs.close()
    assert scalars(tmp_path, "step/loss") == pytest.approx({s: 1 / (s + 2) for s in range(1, 9)} | {9: 7.0})
    logs = Logs(tmp_path, ("tensorboard",), {})
    logs.step(1, {"loss": 5.0})
    logs.close()
    assert scalars(tmp_path, "step/loss") == {1: 5.0}


class FakeWandb(types.ModuleType):
    """The part of wandb that Logs uses; records the calls."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = []

    def init(self, **settings):
        run = types.SimpleNamespace(id=settings.get("id", f"run{len(self.runs)}"), settings=settings, rows=[], ended=0)
        run.log = lambda values, step: run.rows.append((step, values))
        run.finish = lambda: setattr(run, "ended", run.ended + 1)
        self.runs.append(run)
        return run


def test_wandb_gets_the_values_and_resumes_its_run(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for resume_at in (None, 5, None):
        logs = Logs(tmp_path / "aspirin", ("wandb",), {"seed": 3}, resume_at=resume_at)
        logs.step(6, {"loss": 0.5})
        logs.epoch(2, 6, {"lr": 1e-3})
        logs.close()
    first, second, third = fake.runs
    assert first.rows == [(6, {"step/loss": 0.5}), (6, {"epoch/lr": 1e-3, "epoch/epoch": 2})]
    assert (first.settings["config"], first.settings["name"], first.ended) == ({"seed": 3}, "aspirin", 1)
    assert (second.id, second.settings["resume"]) == ("run0", "allow")
    assert third.id == "run2"


class FakeMlflow(types.ModuleType):
    """The part of mlflow that Logs uses; records the calls."""

    def __init__(self):
        super().__init__("mlflow")
        self.calls, self.rows, self.configs = [], [], []
        self.set_experiment = lambda name: self.calls.append(("experiment", name))
        self.log_metrics = lambda values, step: self.rows.append((step, values))
        self.log_dict = lambda values, name: self.configs.append((name, values))
        self.end_run = lambda: self.calls.append(("end",))

    def start_run(self, **settings):
        self.calls.append(("start", settings))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=settings.get("run_id", "abc")))


def test_mlflow_gets_the_values_and_resumes_its_run(tmp_path, monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for resume_at in (None, 5):
        logs = Logs(tmp_path / "aspirin", ("mlflow",), {"seed": 3}, resume_at=resume_at)
        logs.step(6, {"loss": 0.5})
        logs.epoch(2, 6, {"lr": 1e-3})
        logs.close()
    assert fake.rows == 2 * [(6, {"step/loss": 0.5}), (6, {"epoch/lr": 1e-3, "epoch/epoch": 2.0})]
    assert fake.configs == [("config.json", {"seed": 3})]
    starts = [call for call in fake.calls if call[0] != "end"]
    new = [("experiment", "torchmdx"), ("start", {"run_name": "aspirin"})]
    assert starts == [*new, ("start", {"run_id": "abc"})]
    assert fake.calls.count(("end",)) == 2

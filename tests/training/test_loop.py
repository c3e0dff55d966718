"""A custom loop: epochs one by one, values and losses that are added, runs that are left and resumed."""

import made_up
import pytest
import torch

import torchmdx
from torchmdx.report.history import read_table
from torchmdx.training.config_file import make_config
from torchmdx.training.run import open_trainer, train


def config(tmp_path, name, **sections):
    store = tmp_path / "s"
    if not store.exists():
        made_up.store(store, 40)
    values = made_up.values(store, **{"training": {"epochs": 3}} | sections)
    return make_config(values | {"output": values["output"] | {"directory": str(tmp_path / name)}})


def same_weights(one, other):
    a, b = (torchmdx.load(place / "last.safetensors").state_dict() for place in (one, other))
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_loop_trains_as_the_command_does(tmp_path):
    train(config(tmp_path, "whole"))
    with open_trainer(config(tmp_path, "own")) as trainer:
        trainer.hooks.append(lambda trainer, values: {"twice": 2 * values["validation_forces"]})
        seen = [values["twice"] / values["validation_forces"] for values in trainer.epochs()]
    assert seen == [2.0] * 3
    assert same_weights(tmp_path / "whole", tmp_path / "own")
    table = read_table(tmp_path / "own" / "epochs.csv")
    assert table["twice"].tolist() == pytest.approx((2 * table["validation_forces"]).tolist())


def test_a_loop_that_is_left_goes_on(tmp_path):
    train(config(tmp_path, "whole"))
    with open_trainer(config(tmp_path, "own")) as trainer:
        for _ in trainer.epochs():
            break
    with open_trainer(config(tmp_path, "own"), resume=True) as trainer:
        assert (trainer.epoch, len(list(trainer.epochs()))) == (1, 2)
    assert same_weights(tmp_path / "whole", tmp_path / "own")


def test_a_loss_that_is_added_is_minimised(tmp_path):
    def small(result, labelled):
        return 1e3 * (result.forces**2).mean()

    sizes = {}
    for name, hook in (("plain", None), ("small", small)):
        with open_trainer(config(tmp_path, name, optimizer={"learning_rate": 0.01})) as trainer:
            if hook is not None:
                trainer.add_to_loss(hook)
            *_, last = trainer.epochs()
        rows = trainer.store.gather(trainer.parts["validation"])
        potential = torchmdx.load(tmp_path / name / "last.safetensors")
        found = [torchmdx.evaluate(potential, rows.system(k)).forces.pow(2).mean() for k in range(3)]
        sizes[name] = float(torch.stack(found).mean())
        assert last["validation_forces"] > 0
    assert sizes["small"] < 0.5 * sizes["plain"]


def test_several_potentials_need_the_command(tmp_path):
    several = config(tmp_path, "x", training={"epochs": 1, "ensemble": 2})
    with pytest.raises(ValueError, match="trains one potential in one process"), open_trainer(several):
        pass

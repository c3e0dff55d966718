"""The plan of an ensemble says whether its members are evaluated side by side."""

from dataclasses import replace

import pytest

from torchmdx import TensorNetConfig
from torchmdx.engines.plan import Workload, machine_named, plan
from torchmdx.engines.plan.members import most_side_by_side, plan_of_members
from torchmdx.models.priors.zbl import ZBLConfig


def plan_of(atoms, card, *, priors=(), precision="float32"):
    work = replace(Workload.usual(atoms), alone=False)
    member = plan(TensorNetConfig(), priors, work, precision, machine_named(card))
    return plan_of_members(3, member, priors=bool(priors))


@pytest.mark.parametrize(
    ("atoms", "options", "runs", "why"),
    [
        (2048, {}, "side by side", "2,048 atoms, of at most 2,048"),
        (2049, {}, "one after the other", "2,049 atoms, of more than 2,048"),
        (512, dict(precision="float64"), "side by side", "512 atoms, of at most 512"),
        (513, dict(precision="float64"), "one after the other", "513 atoms, of more than 512"),
        (513, dict(priors=(ZBLConfig(),)), "one after the other", "513 atoms, of more than 512"),
    ],
)
def test_members_are_evaluated_side_by_side_up_to_a_number_of_atoms(atoms, options, runs, why):
    found = plan_of(atoms, "H100", **options)
    stage = found.stages[0]
    assert (stage.name, stage.runs, stage.why) == ("members", runs, why)
    assert found.why.startswith("3 members: ")


def test_a_cpu_evaluates_one_member_at_a_time():
    assert plan_of(22, "CPU").stages[0].runs == "one after the other"


def test_members_do_not_take_one_launch_whose_blocks_wait_for_each_other():
    stages = {stage.name: stage for stage in plan_of(22, "H100").stages}
    assert stages["few atoms"].runs == "several launches"


def test_limits_are_read_when_an_ensemble_is_made(monkeypatch):
    monkeypatch.setattr("torchmdx.engines.plan.members.MOST_SIDE_BY_SIDE", 8)
    assert (most_side_by_side(fused=True), most_side_by_side(fused=False)) == (8, 512)

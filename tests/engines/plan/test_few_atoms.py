"""Which kernels few atoms get, and why others do not serve."""

from dataclasses import replace

import pytest
from test_plan_kernels import named, planned

from torchmdx import TensorNet2Config, TensorNetConfig
from torchmdx.engines.plan import Workload, machine_named, plan, plan_kernels
from torchmdx.engines.plan.decide import between_passes
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig

LIMITS = {
    "beside others": dict(alone=False),
    "many edges": dict(capacity=0x10000),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_one_launch_needs_the_whole_gpu(limit):
    work = Workload(atoms=22, capacity=400)
    for served in (work, replace(work, stress=True), replace(work, forces=False)):
        assert planned(TensorNetConfig(), served, "H100").one_launch
    found = planned(TensorNetConfig(), replace(work, **LIMITS[limit]), "H100")
    assert named(found) == "rows"
    assert found.stages[1].otherwise == "one launch of CUDA C++"


@pytest.mark.parametrize(
    ("atoms", "more", "searches"),
    [(22, {}, True), (65, {}, False), (22, dict(periodic=True), False), (22, dict(stress=True), False)],
    ids=str,
)
def test_one_launch_also_searches_in_small_molecules(atoms, more, searches):
    work = replace(Workload.usual(atoms), **{"periodic": False, **more})
    found = planned(TensorNetConfig(), work, "H100")
    assert found.one_launch
    together = "run together; without a skin they also search for neighbours" if searches else "run together"
    assert found.stages[1].why.endswith(together)


@pytest.mark.parametrize(
    ("settings", "most"), [(dict(num_layers=1), 120), (dict(num_channels=64), 60), (dict(num_channels=20), 30)], ids=str
)
def test_how_many_atoms_one_launch_serves_depends_on_the_network(settings, most):
    found = [planned(TensorNetConfig(**settings), atoms, "H100").one_launch for atoms in (most, most + 1)]
    assert found == [True, False]


def test_one_launch_leaves_out_priors_domains_and_chips_without_room():
    work, config = Workload(atoms=22, capacity=400), TensorNetConfig()
    assert not planned(config, work, "H100", priors=True).one_launch
    assert named(planned(config, replace(work, domain=True), "H100")) == "blocks"
    part = replace(machine_named("H100"), multiprocessors=16, clusters=((8, 2),))
    found = plan_kernels("TensorNet", config, replace(work, atoms=60), part)
    assert found.stages[1].why == "one launch has no room for 60 atoms in 2 clusters"


def test_blocks_wait_for_each_other_only_on_cards_where_that_has_been_measured():
    work, config = Workload(atoms=22, capacity=400), TensorNetConfig()
    other = replace(machine_named("H100"), name="H20", multiprocessors=78, clusters=())
    found = plan_kernels("TensorNet", config, work, other)
    assert not found.one_launch
    wanted = (
        "blocks that wait for each other were tested on an H100 and H200, not on H20: `torchmdx bench --all` tests it"
    )
    assert found.stages[1].why == wanted
    # Blocks that wait only for those of their own cluster, which the hardware starts together, run on all of them.
    assert plan_kernels("TensorNet2", TensorNet2Config(), work, other).clusters is not None


def test_clusters_need_forces_and_numbers_for_edges():
    work = Workload(atoms=22, capacity=640)
    assert named(planned(TensorNet2Config(), work, "H100")) == "rows clusters"
    assert named(planned(TensorNet2Config(), replace(work, forces=False), "H100")) == "rows"
    assert named(planned(TensorNet2Config(), replace(work, capacity=0x10000), "H100")) == "rows edge_maps"


def test_a_tensornet2_takes_one_launch_only_where_that_is_faster():
    work, config = Workload(atoms=15, capacity=400), TensorNet2Config()
    assert named(planned(config, work, "H100")) == "rows one_launch clusters"
    more = planned(config, replace(work, atoms=16), "H100")
    assert (named(more), more.stages[1].why) == ("rows clusters", "one launch is faster for 1 to 15 atoms, got 16")
    assert named(planned(config, work, "A100")) == "rows"
    alone = "it has forces and Coulomb energies of all pairs, but no stress and no other priors"
    several = {
        "other work may run at the same time, and its blocks wait for each other": (
            config,
            replace(work, alone=False),
            {},
        ),
        alone: (config, work, dict(priors=True)),
        "it needs at most 3 layers, got 4": (TensorNet2Config(num_layers=4), work, {}),
    }
    for why, (network, amount, options) in several.items():
        found = planned(network, amount, "H100", **options)
        assert (named(found), found.stages[1].why) == ("rows clusters", why)
    for other in (replace(work, stress=True), replace(work, search_cutoff=10.0)):
        assert planned(config, other, "H100").stages[1].why == alone


@pytest.mark.parametrize(
    ("priors", "served"),
    [
        ([CoulombConfig()], True),
        ([CoulombConfig(switch=(1.0, 2.0))], True),
        ([], True),
        ([CoulombConfig(cut_in_vacuum=True)], False),
        ([CoulombConfig(charges="given")], False),
        ([CoulombConfig(), ZBLConfig()], False),
    ],
    ids=str,
)
def test_which_priors_one_launch_can_evaluate(priors, served):
    assert between_passes("TensorNet2", priors) != served
    assert between_passes("TensorNet", priors) == bool(priors)


def test_the_plan_shows_coulomb_energies_as_part_of_one_launch():
    work, machine = Workload(atoms=15, capacity=400), machine_named("H100")
    found = plan(TensorNet2Config(), [CoulombConfig()], work, "float32", machine)
    assert [stage.name for stage in found.stages] == ["launches", "few atoms"]
    other = plan(TensorNet2Config(), [CoulombConfig(), ZBLConfig()], work, "float32", machine)
    assert other.stages[1].runs == "several launches"
    assert [stage.name for stage in other.stages][-2:] == ["prior coulomb", "prior zbl"]

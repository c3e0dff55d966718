"""The table: configurations, sizes and cards, and the fused kernels that each of them gets."""

from dataclasses import replace

import pytest

from torchmdx import TensorNet2Config, TensorNetConfig
from torchmdx.engines.plan import Workload, machine_named, plan_kernels
from torchmdx.engines.plan.kernels import FEWEST_MAP_ROWS, MOST_ROWS
from torchmdx.engines.plan.launch_sizes import Tiles

HOPPER, GENERAL = ("H100", "H200"), ("A100", "RTX 3090", "RTX 4090", "RTX 5090", "B200")
CARDS = HOPPER + GENERAL


def planned(config, work, card, **options):
    kind = type(config).__name__.removesuffix("Config")
    work = Workload.usual(work) if isinstance(work, int) else work
    return plan_kernels(kind, config, work, machine_named(card), **options)


def named(plan):
    """The chain, and what is used in it."""
    uses = ("one_launch", "atom_tiles", "by_elements", "clusters", "edge_maps")
    return " ".join([plan.chain, *(name for name in uses if getattr(plan, name))])


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(
    ("atoms", "wanted", "elsewhere"),
    [
        (0, "rows", "rows"),
        (15, "rows one_launch", "rows"),
        (22, "rows one_launch", "rows"),
        (49, "rows one_launch", "rows"),
        (60, "rows one_launch", "rows"),
        (90, "rows one_launch", "rows"),
        (91, "rows", "rows"),
        (166, "rows", "rows"),
        (448, "rows", "rows"),
        (449, "blocks by_elements", "blocks by_elements"),
        (1999, "blocks by_elements", "blocks by_elements"),
        (2000, "blocks atom_tiles by_elements", "blocks by_elements"),
        (24_000, "blocks atom_tiles by_elements", "blocks by_elements"),
        (10**6, "slabs atom_tiles by_elements", "lean by_elements"),
    ],
)
def test_a_tensornet(card, atoms, wanted, elsewhere):
    if atoms == 10**6 and card.startswith("RTX"):
        elsewhere = "slabs by_elements"  # tensors that are computed again take 37 GB
    assert named(planned(TensorNetConfig(), atoms, card)) == (wanted if card in HOPPER else elsewhere)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(
    ("atoms", "wanted", "elsewhere"),
    [
        (15, "rows one_launch clusters", "rows"),
        (16, "rows clusters", "rows"),
        (26, "rows clusters", "rows"),
        (60, "rows clusters", "rows"),
        (61, "rows edge_maps", "rows"),
        (128, "rows edge_maps", "rows"),
        (129, "rows edge_maps", "blocks"),
        (256, "rows edge_maps", "blocks"),
        (257, "blocks edge_maps", "blocks"),
        (682, "blocks edge_maps", "blocks"),
        (24_000, "blocks edge_maps", "blocks"),
    ],
)
def test_a_tensornet2(card, atoms, wanted, elsewhere):
    assert named(planned(TensorNet2Config(), atoms, card)) == (wanted if card in HOPPER else elsewhere)


def test_sums_by_elements_need_few_elements_with_many_neighbours():
    work = Workload(atoms=1000, capacity=24_000, elements=2)
    assert planned(TensorNetConfig(), work, "A100").by_elements
    for other in (dict(capacity=23_999), dict(elements=3), dict(elements=0)):
        assert not planned(TensorNetConfig(), replace(work, **other), "A100").by_elements
    assert planned(TensorNetConfig(), replace(work, elements=8, capacity=96_000), "A100").by_elements
    assert not planned(TensorNetConfig(), replace(work, elements=9, capacity=10**6), "A100").by_elements


def test_heads_and_layers_that_one_program_per_atom_does_not_have():
    shallow, deep = TensorNetConfig(num_layers=0), TensorNetConfig(head="gated", num_head_layers=4)
    for config in (shallow, deep):
        assert named(planned(config, 22, "A100")) == "blocks"
        assert named(planned(config, 22, "H100")) == "blocks one_launch"
    assert named(planned(TensorNetConfig(head="gated"), 22, "H100")) == "rows one_launch"


def test_what_one_program_per_atom_of_a_tensornet2_does_not_have():
    work, config = Workload(atoms=9, capacity=MOST_ROWS - 9), TensorNet2Config()
    assert named(planned(config, work, "A100")) == "rows"
    reasons = {
        "systems": planned(config, replace(work, systems=2), "A100"),
        "rows": planned(config, replace(work, capacity=MOST_ROWS - 8), "A100"),
        "charges": planned(TensorNet2Config(num_channels=16), work, "A100"),
    }
    assert {name: found.stages[0].why for name, found in reasons.items()} == {
        "systems": "one program per atom sums charges over one system, got 2",
        "rows": "values of 196,608 atoms and edges can be kept, got 196,609",
        "charges": "one program per atom has room for 16 numbers of charges, got 32",
    }
    assert {found.chain for found in reasons.values()} == {"blocks"}


def test_warps_that_specialise_serve_so_many_edges():
    few, many = (Workload(atoms=100, capacity=FEWEST_MAP_ROWS - 100 - less) for less in (1, 0))
    assert named(planned(TensorNet2Config(), few, "H100")) == "rows"
    assert named(planned(TensorNet2Config(), many, "H100")) == "rows edge_maps"
    assert named(planned(TensorNet2Config(num_channels=64), replace(many, atoms=150), "H100")) == "blocks"


def test_hidden_values_are_kept_of_so_many_rows():
    work = Workload(atoms=1000, capacity=MOST_ROWS - 1000)
    kept, again = (
        planned(TensorNet2Config(), replace(work, capacity=work.capacity + more), "RTX 4090") for more in (0, 1)
    )
    assert (kept.keeps_slopes, again.keeps_slopes) == (True, False)
    assert "evaluated again, 49,152 rows at a time" in [stage.runs for stage in again.stages]
    assert not planned(TensorNet2Config(), replace(work, forces=False), "RTX 4090").keeps_slopes


def test_launch_sizes_may_be_given():
    found = planned(TensorNetConfig(), 22, "A100", tiles=Tiles.choose(5000))
    assert (found.chain, found.tiles) == ("blocks", Tiles.choose(5000))
    lean = replace(Tiles.choose(5000), lean=True)
    assert planned(TensorNetConfig(), 22, "A100", tiles=lean).chain == "lean"
    assert planned(TensorNet2Config(), 22, "A100", tiles=lean).chain == "blocks"
    assert planned(TensorNetConfig(), Workload(atoms=9, forces=False), "A100", tiles=lean).chain == "blocks"
    pieces = replace(lean, piece=16)
    assert planned(TensorNetConfig(), 22, "A100", tiles=pieces).tiles.piece == 16
    domain = Workload(atoms=22, domain=True)  # its atoms are counted on the device, so there are no pieces
    assert planned(TensorNetConfig(), domain, "A100", tiles=pieces).tiles.piece == 0


def test_every_stage_says_why_and_what_would_run_otherwise():
    for config in (TensorNetConfig(), TensorNet2Config()):
        for atoms in (15, 166, 600, 2489, 24_000, 10**6):
            for card in CARDS:
                for stage in planned(config, atoms, card).stages:
                    assert stage.why
                    assert stage.otherwise
                    assert stage.otherwise != stage.runs


@pytest.mark.parametrize(
    ("atoms", "forces", "wanted"),
    [
        (15, True, None),  # one launch
        (22, True, None),
        (166, True, "opposite edges"),
        (3000, True, "opposite edges, readout"),
        (3000, False, "readout"),
    ],
)
def test_the_plan_says_what_runs_in_branches(atoms, forces, wanted):
    found = planned(TensorNet2Config(), replace(Workload.usual(atoms), forces=forces), "H100")
    (*_, last) = found.stages
    assert (last.why.removeprefix("independent of the rest: ") if last.name == "branches" else None) == wanted

"""Every kernel of the fused chains is compiled for Hopper GPUs, most also for others; none is needed for that.

The interpreter runs what the compiler refuses: a name that changes its type, say. Nothing is launched here.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchmdx.engines.plan import MACHINES

ROOT = Path(__file__).resolve().parents[3]
HOPPER = 90
# kB of shared memory that a program may have, by compute capability.
MOST_SHARED = {80: 163, 86: 99, 89: 99, HOPPER: 227, 100: 227, 120: 99}

SCRIPT = Path(__file__).with_name("compile_kernels.py")

UNCERTAINTY = ("multiply_inputs", "sum_inputs")  # of potentials with an uncertainty
EXPECTED = {
    ("tensornet", "few"): {"embed", "layer", "layer_gradient", "forces", "sum_systems"},
    ("tensornet", "some"): {"embed", "layer", "layer_gradient"},
    ("tensornet", "many"): {
        *("messages", "messages_gradient", "multiply", "multiply_parts", "update", "update_gradient", "element_sums"),
        "read_energies",
    },
    ("tensornet", "large"): {
        *("messages", "messages_gradient", "mix_in_gradient", "multiply_sums", "element_sums_gradient"),
    },
    ("tensornet", "domain"): {
        *("messages", "messages_gradient", "multiply", "multiply_parts", "update", "forces", "multiply_sums_back"),
    },
    ("tensornet", "slabs"): {
        *("place_edges", "surroundings", "standardised_norms", "gated", "read_norms", "read_features_gradient"),
        *("surroundings_mix_gradient", "surroundings_gradient"),
        "check_reach",
        "messages",
        "messages_gradient",
        "element_sums_gradient",
    },
    ("pairs", "float32"): {
        *("_all_pairs", "_clear_unused", "_messages_edges", "_messages_pairs", "_part_sums", "_products", "_reverse"),
        *("_row_products", "_row_scale", "_scale_parts", "_step", "_sum_pairs", "_sum_rows", "_surroundings_atoms"),
        *("_surroundings_directions", "_surroundings_filters", "_surroundings_rows", "_to_atoms", "_to_edges"),
        *("_to_pairs", "messages_rows_kernel", "_both", "_scaled_rows", "_rows_gradients", "_rows_gradients_again"),
    },
    ("ensemble", "spread"): {"combine"},
    ("dynamics", "steps"): {
        *("advance", "advance_langevin", "begin", "commit_cell", "commit_spread", "compare", "complete", "decide"),
        *("hand_over", "rank", "rescale", "rescale_cell", "scale"),
    },
    ("dynamics", "restraints"): {"evaluate_terms", "add_terms"},
    ("gated", "domain"): {"multiply_halves", "gated_energies"},
    ("gated", "few"): {"embed", "layer", "layer_gradient", *UNCERTAINTY},
    ("gated", "many"): {"multiply", "multiply_halves", "gated_energies", *UNCERTAINTY},
    ("tensornet2", "few"): {"multiply_rows", "multiply_rows_back", "equilibrate", "equilibrate_gradient", "shares"},
    ("charged", "few"): {
        "embed",
        "layer",
        "layer_gradient",
        "first_maps",
        "charges_gradient",
        "last_map_gradient",
    },
    ("charged", "priors"): {"embed", "layer", "output_gradient", "layer_gradient", "equilibrate_alone"},
    ("headed", "few"): {"embed", "layer", *UNCERTAINTY},
    ("headed", "many"): {"read_energies", *UNCERTAINTY},
    ("step", "float32"): {"_prepare", "_finish", *UNCERTAINTY},
    ("priors", "damped"): {
        "sum_pairs",
        *("every_pair", "within_cutoff", "count_near", "copy_near", "pad_near"),
        *("lattices", "places", "waves", "structure_factors", "amplitudes", "fields", "collect"),
        *("weigh", "spread", "convolve", "gather"),
    },
    ("priors", "switched"): {"every_pair", "within_cutoff"},
    ("step", "float64"): {"_prepare", "_finish", *UNCERTAINTY},
    ("search", "1"): {"count_bins", "start_bins", "spread", "order_bins", "find_pairs", "start_rows", "write_edges"},
    ("search", "3"): {"moved_too_far", "find_pairs", "write_edges"},
    ("search", "pairs"): {"brute_force"},
    ("training", "float32"): {
        "_multiply",
        "_sum_products",
        "_add_shares",
        "_scaled",
        "_normalise_second",
        "_product_second",
        "_update_second",
        "_first",
        "_second",
        "_values",
        "_gradient",
        "_change",
    },
    ("tensornet2", "many"): {
        *("charge_norms", "shares_gradient"),
        "multiply_rows",
        "multiply_rows_back",
        "sum_parts",
        "first_values",
        "first_gradient",
        "charged_read_gradient",
        "charged_mix_in_gradient",
    },
}


# Cases that one process looks at, one after the other: each process takes seconds to start.
TOGETHER = [
    ("tensornet",),
    ("tensornet2", "charged", "step", "priors"),
    ("gated", "headed", "search", "training", "pairs", "ensemble", "dynamics"),
]


# Of each family of kernels a case that other GPUs compile too: few and many atoms, parts of the atoms, slabs, little
# memory, other heads, TensorNet2, and what is not of a network.
FAMILIES = [
    ("tensornet", "few"),
    ("tensornet", "many"),
    ("tensornet", "domain"),
    ("tensornet", "slabs"),
    ("tensornet", "large"),
    ("gated", "many"),
    ("tensornet2", "many"),
    ("charged", "few"),
    ("step", "float32"),
    ("priors", "damped"),
    ("search", "1"),
    ("search", "pairs"),
    ("training", "float32"),
    ("pairs", "float32"),
    ("ensemble", "spread"),
    ("dynamics", "steps"),
    ("dynamics", "restraints"),
]
# 86, with the least shared memory, compiles all of some that use most of it, and 100, whose instructions for products
# are others, what has most products; of the other families, each card compiles one kernel. With the environment
# variable EVERY_CARD all of them compile all.
PRODUCTS = [("tensornet", "many"), ("tensornet2", "many")]
OTHERS = {80: [], 86: [*PRODUCTS, ("tensornet", "few"), ("tensornet", "large"), ("training", "float32")], 89: []}
OTHERS |= {100: PRODUCTS, 120: []}
# Of a multiprocessor, of every GPU above, in registers of 32 bits: a program cannot have more.
MOST_REGISTERS = 65536


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kinds", TOGETHER, ids="-".join)
def test_every_kernel_compiles(kinds):
    shared = compiled(HOPPER, [case for case in EXPECTED if case[0] in kinds])
    for case, names in EXPECTED.items():
        assert case[0] not in kinds or names <= shared["/".join(case)].keys()


@pytest.mark.nightly
@pytest.mark.parametrize("capability", OTHERS)
def test_every_family_of_kernels_compiles_for_other_gpus(capability):
    chosen = FAMILIES if "EVERY_CARD" in os.environ else OTHERS[capability]
    for case, kernels in compiled(capability, chosen).items():
        assert EXPECTED[tuple(case.split("/"))] <= kernels.keys()
    if others := [case for case in FAMILIES if case not in chosen]:
        assert all(compiled(capability, others, "--first").values())


def test_every_family_and_every_known_card_is_compiled_for():
    assert {case for case, _ in FAMILIES} == {case for case, _ in EXPECTED} - {"headed"}  # as "many", with more layers
    cards = [machine for machine in MACHINES.values() if machine.is_gpu]
    assert {10 * machine.capability[0] + machine.capability[1] for machine in cards} == MOST_SHARED.keys()
    assert OTHERS.keys() | {HOPPER} == MOST_SHARED.keys()
    for machine in cards:
        capability = 10 * machine.capability[0] + machine.capability[1]
        assert machine.shared_bytes == MOST_SHARED[capability] * 1024


def test_every_kernel_that_is_launched_is_compiled():
    """By name: a new kernel needs a case here."""
    cases = set().union(*EXPECTED.values())
    assert launched() - cases == set()


def launched():
    """Names of functions that Triton compiles and the package launches, NAME[grid](...)."""
    sources = {path: path.read_text() for path in (ROOT / "torchmdx").rglob("*.py")}
    trees = {path: ast.parse(source) for path, source in sources.items() if "triton" in source}
    called = {
        part.attr if isinstance(part := node.func.value, ast.Attribute) else getattr(part, "id", None)
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    }
    kernels = {
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
    }
    return kernels & called


def compiled(capability, cases, *options):
    """{case: {kernel: bytes of shared memory}}, which a GPU of this capability has, as it has the registers."""
    pytest.importorskip("triton")
    if not cases:
        return {}
    most, names = MOST_SHARED[capability] * 1024, ["/".join(case) for case in cases]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(capability), *options, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = {name: {} for name in names}
    for line in done.stdout.splitlines():
        case, kernel, shared, registers, _ = line.split()
        found[case][kernel] = int(shared)
        assert int(shared) <= most, line
        assert int(registers) <= MOST_REGISTERS, line
    return found


def test_no_case_is_left_out():
    assert sorted(kind for kinds in TOGETHER for kind in kinds) == sorted({what for what, _ in EXPECTED})

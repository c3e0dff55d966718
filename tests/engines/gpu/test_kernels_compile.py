"""Every kernel of the fused chains is compiled for Hopper GPUs, most also for others; none is needed for that.

The interpreter runs what the compiler refuses: a name that changes its type, say. Nothing is launched here.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HOPPER = 90
# kB of shared memory that a program may have, by compute capability.
MOST_SHARED = {80: 163, 86: 99, 89: 99, HOPPER: 227, 100: 227, 120: 99}

SCRIPT = Path(__file__).with_name("compile_kernels.py")

EXPECTED = {
    ("tensornet", "few"): {"embed", "layer", "layer_gradient", "forces", "sum_systems"},
    ("tensornet", "some"): {"embed", "layer", "layer_gradient"},
    ("tensornet", "many"): {"messages", "messages_gradient", "multiply", "multiply_parts", "update", "element_sums"},
    ("tensornet", "domain"): {"messages", "messages_gradient", "multiply", "multiply_parts", "update", "forces"},
    ("half", "many"): {"messages", "messages_gradient", "multiply_parts", "update_gradient"},
    ("half", "large"): {"messages", "messages_gradient", "mix_in_gradient", "multiply_sums", "element_sums_gradient"},
    ("half", "domain"): {"messages", "messages_gradient", "multiply_sums_back"},
    ("tf32", "many"): {"multiply", "multiply_parts", "read_energies"},
    ("gated", "domain"): {"multiply_halves", "gated_energies"},
    ("gated", "few"): {"embed", "layer", "layer_gradient"},
    ("gated", "many"): {"multiply", "multiply_halves", "gated_energies"},
    ("tensornet2", "few"): {"multiply_rows", "multiply_rows_back", "equilibrate", "equilibrate_gradient", "shares"},
    ("charged", "few"): {"embed", "layer", "layer_gradient", "first_maps", "charges_gradient", "last_map_gradient"},
    ("charged", "priors"): {"embed", "layer", "output_gradient", "layer_gradient", "equilibrate_alone"},
    ("headed", "few"): {"embed", "layer"},
    ("headed", "many"): {"read_energies"},
    ("step", "float32"): {"_prepare", "_finish"},
    ("priors", "damped"): {
        *("every_pair", "within_cutoff", "count_near", "copy_near", "pad_near"),
        *("lattices", "places", "waves", "structure_factors", "amplitudes", "fields", "collect"),
        *("weigh", "spread", "convolve", "gather"),
    },
    ("priors", "switched"): {"every_pair", "within_cutoff"},
    ("step", "float64"): {"_prepare", "_finish"},
    ("search", "1"): {"count_bins", "start_bins", "spread", "order_bins", "find_pairs", "start_rows", "write_edges"},
    ("search", "3"): {"find_pairs", "write_edges"},
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
    ("half", "tf32"),
    ("gated", "headed"),
    ("tensornet2", "charged"),
    ("step", "priors"),
    ("search", "training"),
]


# Of other GPUs. Those of the least shared memory (86) and of other tensor cores (100) compile few and many atoms, a
# part of the atoms, half precision in little memory, and TensorNet2. Sizes of launches are the same for all, and 80, 89
# and 120 have the instructions of 86 and no less memory: of each, what differs most, and cases that no other has.
EVERY = [
    ("tensornet", "few"),
    ("tensornet", "many"),
    ("tensornet", "domain"),
    ("half", "large"),
    ("tensornet2", "many"),
]
OTHERS = {
    80: [("tensornet", "few"), ("tf32", "many")],
    86: [*EVERY, ("half", "many"), ("search", "1"), ("search", "pairs")],
    89: [("gated", "many"), ("tensornet2", "few"), ("charged", "few")],
    100: [*EVERY, ("search", "1"), ("step", "float32"), ("priors", "damped")],
    120: [("half", "large"), ("search", "1"), ("step", "float32"), ("training", "float32"), ("priors", "damped")],
}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kinds", TOGETHER, ids="-".join)
def test_every_kernel_compiles(kinds):
    shared = compiled(HOPPER, [case for case in EXPECTED if case[0] in kinds])
    for case, names in EXPECTED.items():
        assert case[0] not in kinds or names <= shared["/".join(case)].keys()


@pytest.mark.nightly
@pytest.mark.parametrize("capability", OTHERS)
def test_kernels_compile_for_other_gpus(capability):
    shared = compiled(capability, OTHERS[capability])
    for case, kernels in shared.items():
        assert EXPECTED[tuple(case.split("/"))] <= kernels.keys()


def compiled(capability, cases):
    """{case: {kernel: bytes of shared memory}}, which a GPU of this capability has."""
    pytest.importorskip("triton")
    most, names = MOST_SHARED[capability] * 1024, ["/".join(case) for case in cases]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(capability), *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = {name: {} for name in names}
    for line in done.stdout.splitlines():
        case, kernel, shared = line.split()
        found[case][kernel] = int(shared)
        assert int(shared) <= most, line
    return found


def test_no_case_is_left_out():
    assert sorted(kind for kinds in TOGETHER for kind in kinds) == sorted({what for what, _ in EXPECTED})

"""Tests stand where the module they test stands: torchmdx/a/b.py has tests/a/test_b.py.

Test files have unique names: if several folders have a module b, its test may be tests/a/test_a_b.py.
"""

from pathlib import Path

import torchmdx

TESTS = Path(__file__).parent
PACKAGE = Path(torchmdx.__file__).parent

# Modules without a test of their own: the test file that runs each of them, then the modules of one folder. They are
# tested through the module that uses them. The list may only shrink: a new module needs a test at its own place.
TESTED_ELSEWHERE = """
engines/gpu/test_slabs.py           engines/gpu: chain_walks slab_layout slab_windows
engines/gpu/test_slabs.py           engines/gpu/triton: slab_edges
checkpoints/test_save_load.py       checkpoints: energy_check prepare
checkpoints/test_save_load.py       checkpoints/formats: own reading
checkpoints/formats/test_formats_ensemble.py   checkpoints: run_folder
checkpoints/formats/test_formats_ensemble.py   checkpoints/formats: zipped
commands/test_data.py               commands: reading_options
commands/test_cli.py                         commands: convert energy info options
commands/demo_run/test_demo.py                   commands: demo
report/test_cli_evaluate.py         commands: evaluate
commands/test_relax.py              commands: relax_checks
datasets/labelling/test_cli_label.py         commands: label
commands/md_openmm/test_cli_md.py   commands: md
training/test_training_run.py       commands: train
evaluation/conformance/test_check.py           evaluation: check_structures
evaluation/conformance/test_check.py           evaluation/conformance: contract geometry
commands/test_data.py               datasets: blocks
datasets/test_conversion.py         datasets: checks plausible
datasets/test_readers.py            datasets: index_files units
datasets/test_store.py              datasets: frames
commands/demo_run/test_demo.py                   commands/demo_run: pictures run
engines/test_choose.py              engines: engine
engines/conformance/test_contract.py  engines: exact
engines/conformance/test_contract.py  engines/conformance: check subject
engines/conformance/test_contract.py  engines/cpu: with_priors
engines/cpu/test_pair_forms.py      engines/cpu: build edge_values threads
engines/gpu/test_gpu_tensornet.py   engines/gpu: buffers few_atoms
engines/gpu/test_gpu_tensornet2.py  engines/gpu: charged charged_weights
engines/gpu/test_element_sums.py  engines/gpu/triton: element_sums
engines/gpu/test_kernels.py       engines/gpu/triton: activations forces nine
engines/gpu/test_gpu_tensornet.py   engines/gpu/triton: edge_geometry edge_walk embedding embedding_sum
engines/gpu/test_gpu_tensornet.py   engines/gpu/triton: interaction layer_norm messages
engines/gpu/test_gpu_tensornet.py   engines/gpu/triton: one_atom one_atom_maps readout
engines/gpu/test_gpu_tensornet2.py  engines/gpu/triton: charge_equilibration edge_mlp
engines/pairs/test_coulomb.py       engines/gpu/triton: coulomb near_list
engines/pairs/test_energy.py        engines/pairs: engine filters messages network pair_list products silu
engines/pairs/test_energy_tensornet2.py engines/pairs: edge_values near_list
models/test_priors.py               engines/pairs: prior_geometry
engines/pairs/test_energy.py        engines/pairs/kernels: multilinear silu
engines/pairs/test_energy_tensornet2.py engines/pairs/kernels: edge_values
engines/pairs/test_coulomb.py       engines/pairs/kernels: coulomb
datasets/labelling/test_sampling.py          datasets/labelling: conformers dynamics normal_modes
datasets/labelling/test_calculators.py       datasets/labelling: geometry
datasets/labelling/test_workers.py           datasets/labelling: serve work
datasets/labelling/test_cli_label.py         datasets/labelling: ledger output run stages
commands/md_openmm/test_cli_md.py   commands/md_openmm: run
commands/md_openmm/test_cli_md_restart.py   commands/md_openmm: checkpoint recorder simulation
models/test_tensornet.py            models: embedding energy_head interaction skeleton
models/test_tensornet2.py           models: charge_equilibration
engines/test_ensemble.py            models: ensemble
models/test_priors.py               models/priors: base
models/priors/test_priors_coulomb.py   models/priors: open_pairs
neighbors/test_images.py            neighbors: capacity grid
neighbors/test_tracing.py           neighbors: operator
neighbors/test_search.py            neighbors: reverse
neighbors/test_neighbors_choose.py          neighbors/backends: frame
neighbors/test_search.py            neighbors/kernels: bins look_back reverse single_pass still_good
openmm/test_add.py            openmm: references
openmm/test_mixed.py          openmm: mixed_bonded mixed_pairs
openmm/test_native_session.py openmm: native_audit transport_native
openmm/test_transport_python.py   openmm: settings
openmm/native/test_native.py  openmm/native: build
report/test_errors.py               report: composition moments scales
report/test_hints.py                report: environment
report/test_plots.py                report: style
report/test_write.py                report: page sections sources tables
training/test_training_run.py       report: history
test_damaged_files.py               runtime: damaged_file
step/test_interrupted.py            runtime: interrupt
dynamics/run/test_run_progress.py   runtime: progress_line
step/test_captured_step.py          step: atom_order change graph report results
step/test_captured_step.py           step: buffer_storage device_memory state
step/test_audit.py                  step: findings
step/test_buffer_kernels.py         step: buffers
engines/test_ensemble.py            step: spread_limit
checkpoints/formats/torchmdnet/test_reader.py  checkpoints/formats/torchmdnet: archive container
checkpoints/formats/torchmdnet/test_reader.py  checkpoints/formats/torchmdnet: priors settings weights
training/test_config.py             training: config_file
training/test_step.py               training: labelled pending_steps
training/test_parts.py              training: epoch_means
training/test_training_run.py       training: state
training/test_optimizer.py          training: optimizer_kernel
"""

MOST_ELSEWHERE = 150  # lower it as the list shrinks


def elsewhere() -> dict[str, str]:
    """The test file of each module of the list."""
    found = {}
    for line in TESTED_ELSEWHERE.strip().splitlines():
        places, modules = line.split(": ")
        test, folder = places.split()
        for module in modules.split():
            name = (Path(folder) / module).as_posix()
            assert name not in found, f"{name} is listed twice"
            found[name] = test
    return found


def mirrored(module: Path) -> bool:
    """If there is a test at the place of the module's own."""
    names = (f"test_{module.name}.py", f"test_{module.parent.name}_{module.name}.py")
    return any((TESTS / module.parent / name).exists() for name in names)


def modules() -> list[Path]:
    paths = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    return [path.relative_to(PACKAGE).with_suffix("") for path in paths]


def test_every_module_has_a_test_at_its_place():
    untested = {module.as_posix() for module in modules() if not mirrored(module)} - set(elsewhere())
    assert not untested, f"add tests/FOLDER/test_MODULE.py for {', '.join(sorted(untested))}"


def test_the_list_of_modules_tested_elsewhere_holds_no_other():
    unneeded = set(elsewhere()) - {module.as_posix() for module in modules() if not mirrored(module)}
    assert len(elsewhere()) <= MOST_ELSEWHERE, f"TESTED_ELSEWHERE may only shrink, got {len(elsewhere())} modules"
    assert not unneeded, f"remove {', '.join(sorted(unneeded))} from TESTED_ELSEWHERE"
    missing = {test for test in elsewhere().values() if not (TESTS / test).exists()}
    assert not missing, f"TESTED_ELSEWHERE names files that do not exist: {', '.join(sorted(missing))}"


def test_names_of_test_files_are_unique():
    names = [path.name for path in TESTS.rglob("test_*.py")]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"pytest needs unique names, got several {', '.join(twice)}"

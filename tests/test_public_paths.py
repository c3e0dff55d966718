"""Every import path that README, documentation and examples have shown still leads to the same thing."""

import pickle
from importlib import import_module

import pytest

import torchmdx
from torchmdx.runtime.former_paths import MOVED

PUBLIC = """
torchmdx Batch Calculator CapturedStep EdgeSearch Ensemble Potential Result StepPool System TensorNet2Config
torchmdx TensorNetConfig evaluate load load_ensemble register_model register_prior save
torchmdx.ase.calculator Calculator
torchmdx.structures.cell volume wrap
torchmdx.checkpoint load load_ensemble load_one located read save
torchmdx.commands.cli main
torchmdx.evaluation.conformance Check Conformance check
torchmdx.datasets.convert Broken ConvertReport convert
torchmdx.datasets.frames Frames
torchmdx.datasets.splits read_split split write_split
torchmdx.datasets.statistics Statistics statistics
torchmdx.datasets.store Store StoreWriter
torchmdx.datasets.labelling.calculators Choice
torchmdx.datasets.labelling.ledger Failure
torchmdx.datasets.labelling.run Crew Summary label
torchmdx.datasets.labelling.sampling Sampling
torchmdx.datasets.labelling.sources StructureFiles
torchmdx.models.priors.base Geometry Prior PriorConfig
torchmdx.models.priors.coulomb CoulombConfig
torchmdx.models.priors.d2 D2Config
torchmdx.models.priors.d3 D3Config
torchmdx.models.priors.zbl ZBLConfig
torchmdx.models.registry ModelConfig
torchmdx.models.tensornet TensorNetConfig
torchmdx.neighbors.capacity CapacityError
torchmdx.neighbors.edges Edges
torchmdx.openmm PotentialForce add_potential create_mixed_system load_plugin
torchmdx.openmm_parts.evaluator Spread
torchmdx.report.predict Predictions Predictor predict
torchmdx.report.style FAINT INK PALETTE legend picture tidy
torchmdx.report.write write_report
torchmdx.step_report StepReport
torchmdx.step_result AuditError GraphRefused NonFiniteError OutOfDeviceMemory SpreadError StepError StepResult
torchmdx.training.config Config
torchmdx.training.config_file make_config read_config
torchmdx.training.run train
torchmdx.structures.units BOHR BOLTZMANN FORCE_TO_ACCELERATION HARTREE KCAL_PER_MOL KJ_PER_MOL
"""
NAMES = [(module, name) for line in PUBLIC.strip().splitlines() for module, *names in [line.split()] for name in names]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_a_public_name_is_where_it_was(module, name):
    assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize("path", MOVED)
def test_a_former_path_is_the_module_of_today(path):
    if path.endswith("openmmml"):  # openmm-ml loads this module when it is imported itself, so it has to come first
        pytest.importorskip("openmmml")
    today = import_module(MOVED[path])
    assert import_module(path) is today
    assert today.__name__ == MOVED[path]
    assert today.__spec__.name == MOVED[path]


def test_objects_of_former_paths_are_those_of_today():
    former = import_module("torchmdx.step_result")
    assert issubclass(former.SpreadError, torchmdx.step.results.StepError)
    assert isinstance(pickle.loads(pickle.dumps(former.NonFiniteError("atom 3"))), former.NonFiniteError)


def test_other_names_are_still_missing():
    with pytest.raises(ModuleNotFoundError, match=r"torchmdx\.step_results"):
        import_module("torchmdx.step_results")


def test_openmm_ml_finds_the_potential_by_its_entry_point():
    from importlib.metadata import EntryPoint
    from pathlib import Path

    tomllib = pytest.importorskip("tomllib")
    pytest.importorskip("openmmml")
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    value = settings["project"]["entry-points"]["openmmml.potentials"]["torchmdx"]
    factory = EntryPoint("torchmdx", value, "openmmml.potentials").load()
    assert factory.__name__ == "PotentialFactory"

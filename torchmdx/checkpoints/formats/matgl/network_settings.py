"""Conversion of a matgl model.json to torchmdx's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchmdx.checkpoints.formats.reading import Report, UnsupportedCheckpoint
from torchmdx.models.tensornet import TensorNetConfig

# matgl's head has three hidden layers.
NUM_HEAD_LAYERS = 2
# matgl's radial bases to torchmdx's.
BASES = {"SphericalBessel": "bessel", "Gaussian": "gauss", "ExpNorm": "expnorm"}
VERSIONS = (1, 2)
# The modules of matgl's TensorNet: of matgl 1 (DGL) and 4 (PyG) the first, of the versions between both the others.
MODULES = tuple(
    f"matgl.models.{name}" for name in ("_tensornet", "_tensornet_dgl", "_tensornet_pyg", "_tensornetwarp_pyg")
)
OF_DGL = MODULES[:2]
# The modules of matgl's QET, a TensorNet with charge equilibration, version 1: of matgl 2 (DGL) and of matgl 4 (PyG).
# Between both, `_qet_pyg` was written with two forms of its TensorNet.
QET_DGL, QET_PYG = "matgl.models._qet_dgl", "matgl.models._qet"
# A setting must have one of these values or be absent: any other value would change the energy.
_NETWORK_VALUES: dict[str, tuple[Any, ...]] = {
    "rbf_type": tuple(BASES),
    "activation_type": ("swish",),
    "equivariance_invariance_group": ("O(3)", "SO(3)"),
    "is_intensive": (False,),
    "ntargets": (1,),
    "task_type": ("regression",),
    "include_state": (False,),
}
_POTENTIAL_VALUES: dict[str, tuple[Any, ...]] = {"calc_repuls": (False,)}
_REQUIRED = ("element_types", "units", "nblocks", "cutoff", "rbf_type", "is_intensive")
# Settings that the reader uses besides those above.
_USED = {"num_rbf", "max_n", "use_smooth", "width"}
# Settings of a QET alone.
_OF_QET: dict[str, tuple[Any, ...]] = {"include_magmom": (False,), "return_features": (False,)}
_USED_BY_QET = {"is_hardness_envs", "is_sigma_train"}
# Settings that do not affect the energy of such a model.
_WITHOUT_EFFECT = {
    *("ntypes_state", "dim_state_embedding", "dim_state_feats", "max_l", "dtype", "readout_type", "field"),
    *("use_warp", "niters_set2set", "nlayers_set2set"),
}
_POTENTIAL_WITHOUT_EFFECT = {
    *("model", "data_mean", "data_std", "element_refs", "calc_forces", "calc_stresses", "calc_hessian", "calc_magmom"),
    *("calc_charge", "zbl_trainable", "debug_mode", "compile_model", "compile_mode"),
}


@dataclass(frozen=True)
class NetworkForm:
    """What module and version of a TensorNet say about its formulas, which its settings do not.

    Attributes:
        messages: As in TensorNetConfig. Until version 2, layers on DGL summed the messages of an atom's own tensors.
        target_first: Pairs of elements are (target, source), and vectors lead to the source. Until version 2, the
            embedding summed at the other end of each edge.
    """

    messages: str
    target_first: bool
    name: str  # in reports


def form_of(network: dict[str, Any], origin: str) -> NetworkForm:
    """The form of a TensorNet in a model.json. Raises UnsupportedCheckpoint for an unknown module or version."""
    module, version = network.get("@module"), network.get("@model_version")
    if is_qet(network):
        if version != 1 or isinstance(version, bool):
            raise UnsupportedCheckpoint(f"{origin!r}: @model_version of the QET must be 1, got {version!r}")
        if module not in (QET_DGL, QET_PYG):
            raise UnsupportedCheckpoint(f"{origin!r}: @module of a QET must be {QET_DGL} or {QET_PYG}, got {module!r}")
        new = module == QET_PYG
        return NetworkForm("source" if new else "target", new, f"{module}, version {version}")
    if version not in VERSIONS or isinstance(version, bool):
        raise UnsupportedCheckpoint(f"{origin!r}: @model_version of the TensorNet must be 1 or 2, got {version!r}")
    if module not in MODULES:
        raise UnsupportedCheckpoint(f"{origin!r}: @module must be {' or '.join(MODULES)}, got {module!r}")
    own = version == 1 and module in OF_DGL
    return NetworkForm("target" if own else "source", version != 1, f"{module}, version {version}")


def network_of(description: Any, origin: str) -> tuple[dict[str, Any], NetworkForm]:
    """Settings and form of the TensorNet that a model.json describes, once every value is supported.

    Raises:
        ValueError: For a file of another kind.
        UnsupportedCheckpoint: Naming model or setting.
    """
    _require_class(description, ("Potential",), origin)
    options = description["kwargs"]
    network = options.get("model")
    _require_class(network, ("TensorNet", "QET"), origin)
    settings, form = network.get("init_args"), form_of(network, origin)
    if not isinstance(settings, dict):
        raise ValueError(f"{origin!r} must hold the init_args of its {network['@class']}, got {settings!r}")
    of_qet = is_qet(network)
    missing = [name for name in _REQUIRED if name not in settings and not (of_qet and name == "is_intensive")]
    if missing:
        raise ValueError(f"{origin!r} lacks the settings {', '.join(missing)}")
    values_of_network = _NETWORK_VALUES | (_OF_QET if of_qet else {})
    for given, allowed in ((options, _POTENTIAL_VALUES), (settings, values_of_network)):
        for name, values in allowed.items():
            if name in given and given[name] not in values:
                raise UnsupportedCheckpoint(
                    f"{origin!r}: {name} must be {' or '.join(map(repr, values))}, got {given[name]!r}"
                )
    known = {*_REQUIRED, *values_of_network, *_USED, *_WITHOUT_EFFECT, *(_USED_BY_QET if of_qet else ())}
    unknown = sorted(settings.keys() - known) + sorted(
        options.keys() - {*_POTENTIAL_VALUES, *_POTENTIAL_WITHOUT_EFFECT}
    )
    if unknown:
        raise UnsupportedCheckpoint(f"{origin!r}: torchmdx does not know the settings {', '.join(unknown)}")
    if settings["rbf_type"] == "SphericalBessel" and settings.get("use_smooth") is not True:
        raise UnsupportedCheckpoint(
            f"{origin!r}: use_smooth must be True for spherical Bessel functions, got {settings.get('use_smooth')!r}"
        )
    return settings, form


def is_qet(network: Any) -> bool:
    """Whether the network of a description is a QET."""
    return isinstance(network, dict) and network.get("@class") == "QET"


def _require_class(description: Any, names: tuple[str, ...], origin: str) -> None:
    found = description.get("@class") if isinstance(description, dict) else None
    if found is None:
        raise ValueError(f"{origin!r} is not the description of a matgl model: it needs @class")
    if found not in names:
        raise UnsupportedCheckpoint(f"{origin!r}: @class must be {' or '.join(map(repr, names))}, got {found!r}")
    if found == "Potential" and not isinstance(description.get("kwargs"), dict):
        raise ValueError(f"{origin!r} must hold the kwargs of its Potential, got {description.get('kwargs')!r}")


def atomic_numbers_of(settings: dict[str, Any], origin: str) -> list[int]:
    """The atomic number of each row of the embedding. Raises ValueError unless element_types are distinct symbols."""
    from ase.data import atomic_numbers

    symbols = settings["element_types"]
    if not isinstance(symbols, list) or not symbols or not all(isinstance(symbol, str) for symbol in symbols):
        raise ValueError(f"{origin!r}: element_types must be a list of symbols, got {symbols!r}")
    unknown = [symbol for symbol in symbols if not atomic_numbers.get(symbol)]
    if unknown or len(set(symbols)) < len(symbols):
        raise ValueError(f"{origin!r}: element_types must be distinct elements, got {', '.join(unknown or symbols)}")
    return [atomic_numbers[symbol] for symbol in symbols]


def config_of(settings: dict[str, Any], form: NetworkForm, numbers: list[int], report: Report) -> TensorNetConfig:
    """The configuration. Raises ValueError for values that are out of range."""
    smooth = settings["rbf_type"] == "SphericalBessel"
    size = "max_n" if smooth else "num_rbf"
    if size not in settings:
        raise ValueError(f"{report.source!r} lacks the setting {size}")
    report.read.append(f"TensorNet of {settings['nblocks']!r} blocks, {len(numbers)} elements")
    carried = "the neighbour's tensors" if form.messages == "source" else "the atom's own tensors"
    report.read.append(f"{form.name}: messages carry {carried}")
    cutoff = settings["cutoff"]
    return TensorNetConfig(
        num_channels=settings["units"],
        num_layers=settings["nblocks"],
        num_radial=settings[size],
        radial_basis=BASES[settings["rbf_type"]],
        cutoff=float(cutoff) if isinstance(cutoff, int) and not isinstance(cutoff, bool) else cutoff,
        max_z=max(numbers),
        group=settings.get("equivariance_invariance_group", "O(3)"),
        num_head_layers=NUM_HEAD_LAYERS,
        head="gated",
        messages=form.messages,
        self_message=False,
        readout_activation=False,
        charge_factor=False,
    )

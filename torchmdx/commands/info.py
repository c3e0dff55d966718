"""`torchmdx info`: lists installed and missing packages, or describes a checkpoint."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torchmdx
from torchmdx.checkpoints.potentials import DEFAULT_POTENTIAL, shipped
from torchmdx.commands.released import lines_of_machines, released_lines, usual_work
from torchmdx.runtime.c_library import c_library, c_library_state
from torchmdx.runtime.wording import counted

if TYPE_CHECKING:
    from torchmdx.models.model_card import Card
    from torchmdx.models.potential import Potential
    from torchmdx.models.priors.base import PriorConfig
    from torchmdx.models.registry import ModelConfig

# (distribution, purpose, how to install it)
REQUIRED = (
    ("numpy", "arrays", "pip install numpy"),
    ("ase", "reading structures; the ASE calculator", "pip install ase"),
    ("safetensors", "checkpoints", "pip install safetensors"),
    ("vesin", "compiled neighbour search on the CPU", "pip install vesin"),
)
OPTIONAL = (
    ("triton", "GPU kernels", "comes with torch's CUDA builds"),
    ("openmm", "molecular dynamics in OpenMM", "pip install 'torchmdx[openmm]'"),
    ("pydantic", "training: configurations", "pip install 'torchmdx[train]'"),
    ("h5py", "training data in HDF5", "pip install 'torchmdx[train]'"),
    ("matplotlib", "plots of runs and reports", "pip install 'torchmdx[train]'"),
    ("plotly", "interactive pages of runs and structures", "pip install 'torchmdx[view]'"),
    ("tensorboard", "training curves in TensorBoard", "pip install 'torchmdx[train]'"),
    ("tblite", "labels from GFN2-xTB", "pip install 'torchmdx[label]'"),
    ("rdkit", "conformers from SMILES", "pip install 'torchmdx[label]'"),
    ("torch-cluster", "radius graphs of torch-cluster", "pip install 'torchmdx[cluster]'"),
    ("torch-dftd", "D3 dispersion", "pip install 'torchmdx[dispersion]'"),
    ("spglib", "relaxation with fixed symmetry", "pip install 'torchmdx[symmetry]'"),
    ("ipi", "path integrals in i-PI", "pip install 'torchmdx[ipi]'"),
    ("huggingface_hub", "released potentials by name", "pip install 'torchmdx[hub]'"),
)

USUAL_ATOMS = (22, 2500)  # for which `info CHECKPOINT` says what runs
# (library, purpose)
COMPILED = (
    ("tensornet", "TensorNet and TensorNet2 on the CPU"),
    ("tensornet_double", "the same in float64"),
    ("kernels", "training on the CPU"),
    ("cell_list", "neighbour search on the CPU"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "info",
        help="list installed packages and potentials, or describe a checkpoint",
        description="Lists versions, devices, installed and missing packages, and potentials available by name; or "
        "describes a checkpoint and says which kernels evaluate it, on this machine or on another.",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", nargs="?", help="potential to describe: a file or a name")
    parser.add_argument(
        "--atoms", type=int, metavar="N", help="say what runs for this number of atoms (default: 22 and 2500)"
    )
    parser.add_argument("--card", metavar="NAME", help="say what runs on this card, such as H100, or on a CPU")
    parser.add_argument(
        "--periodic",
        action="store_true",
        help="say it for a periodic structure, with stress (default: for a molecule)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.checkpoint:
        from torchmdx.checkpoints.save_load import read_any

        if released := released_lines(options.checkpoint):
            print("\n".join(released), flush=True)  # before what may need a network
        read = read_any(options.checkpoint)
        readings = read if isinstance(read, list) else [read]
        plans = _plans_of([r.potential for r in readings], options.atoms, options.card, options.periodic)
        print("\n\n".join("\n".join([describe(r.potential), *r.report.conversion()]) for r in readings))
        what = "one periodic structure with its stress" if options.periodic else "one molecule"
        print(f"\nwhat runs in float32, for {what}, whose atoms have up to 48 neighbours:\n" + "\n".join(plans))
        if released:
            print("\nand on other machines:\n" + "\n".join(lines_of_machines(readings[0].potential, options.periodic)))
        return 0
    if options.atoms is not None or options.card is not None or options.periodic:
        raise ValueError("--atoms, --card and --periodic need a CHECKPOINT, got none")
    print(f"torchmdx {torchmdx.__version__}, Python {platform.python_version()}, {platform.platform()}")
    broken = _print_torch()
    for title, parts in (("required", REQUIRED), ("optional", OPTIONAL)):
        print(f"\n{title}:")
        for name, purpose, remedy in parts:
            version = _version(name)
            mark = "ok " if version else "-- "
            state = version or f"missing: {remedy}"
            print(f"  {mark} {name:<14} {state:<42} {purpose}")
            broken |= version is None and title == "required"
    print("\ncompiled code:")
    for name, purpose in COMPILED:
        there = c_library(name) is not None
        state = c_library_state(name) if there else f"slower: {c_library_state(name)}"
        print(f"  {'ok ' if there else '-- '} {name:<16} {state:<42} {purpose}")
    if (found := one_launch_state()) is not None:
        there, state = found
        print(f"  {'ok ' if there else '-- '} {'one_launch':<16} {state:<42} few atoms on a GPU, in one launch")
    print("\npotentials:")
    for name, there, note in _potentials():
        print(f"  {'ok ' if there else '-- '} {name:<37} {note}")
    broken |= DEFAULT_POTENTIAL not in shipped()
    print("\nthe installation is " + ("incomplete" if broken else "complete"))
    return 1 if broken else 0


def _plans_of(members: list[Potential], atoms: int | None, card: str | None, periodic: bool) -> list[str]:
    """What evaluates a potential, or the members of an ensemble, on a card or on this machine."""
    import torch

    from torchmdx.engines.plan import Machine, Network, machine_named, plan
    from torchmdx.engines.plan.members import plan_of_members
    from torchmdx.engines.registry import registered

    if atoms is not None and atoms < 0:
        raise ValueError(f"--atoms must be >= 0, got {atoms}")
    if card is not None:
        machine = machine_named(card)
    else:
        machine = Machine.of(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))
    potential, priors = members[0], bool(members[0].prior_configs)
    network = replace(Network.of(potential), dtype="float32")
    found = []
    for count in USUAL_ATOMS if atoms is None else (atoms,):
        work = replace(usual_work(potential, count, periodic), alone=len(members) == 1)
        facts = (potential.config, potential.prior_configs, work, "float32", machine, network)
        planned = plan(*facts, registered=registered())
        found.append(str(planned if len(members) == 1 else plan_of_members(len(members), planned, priors=priors)))
    return found


def one_launch_state() -> tuple[bool, str] | None:
    """Whether the first GPU evaluates few atoms in one launch, and why it does not; None without a GPU."""
    import torch

    if not torch.cuda.is_available() or _version("triton") is None:
        return None
    from torchmdx.engines.gpu.one_launch import ARCHITECTURE, CAPABILITY
    from torchmdx.runtime.compile_cache import CompileError
    from torchmdx.runtime.cuda_source import nvrtc

    if torch.cuda.get_device_capability() != CAPABILITY:
        return False, f"slower: it needs a GPU of {ARCHITECTURE}"
    try:
        nvrtc()
    except CompileError as error:
        return False, f"slower: {error}"
    return True, "compiled by NVRTC on first use"


def _potentials() -> list[tuple[str, bool, str]]:
    """Name, availability and a one-line description of each potential."""
    from torchmdx.checkpoints.hub import RELEASES, copy_in_mirror
    from torchmdx.checkpoints.mirror_folder import Copy
    from torchmdx.checkpoints.save_load import load_one
    from torchmdx.models.model_card import symbols

    rows = []
    if DEFAULT_POTENTIAL not in shipped():
        rows.append((DEFAULT_POTENTIAL, False, "missing: reinstall torchmdx"))
    for name, file in shipped().items():
        card = load_one(file).card
        known = "" if card.elements is None else f" ({symbols(card.elements)})"
        rows.append((name, True, f"{'the default; ' if name == DEFAULT_POTENTIAL else ''}{card.description}{known}"))
    remedy = "" if _version("huggingface_hub") else "; needs pip install 'torchmdx[hub]'"
    copies: dict[str, Copy | None] = {}
    try:
        copies |= {name: copy_in_mirror(name, release) for name, release in RELEASES.items()}
    except FileNotFoundError as error:
        rows.append(("a mirror folder", False, str(error)))
    for name, release in RELEASES.items():
        about = f"{release.description}; " if release.description else ""
        copied = copies.get(name)
        found = f"downloaded on first use from {release.page}" if copied is None else f"in the mirror {copied.folder}"
        note = f"{about}{found}; licence: {release.licence}{remedy if copied is None else ''}"
        rows.append((name, copied is not None or not remedy, note))
    return rows


def describe(potential: Potential) -> str:
    """A short description: card, architecture, size, cutoff, reference energies, priors."""
    config = potential.config
    weights = sum(parameter.numel() for parameter in potential.parameters())
    known = potential.reference_energies.nonzero().flatten().tolist()
    lines = [
        _architecture(config),
        f"cutoff {config.cutoff} Å, elements up to {config.max_z}, {weights:,} weights in "
        f"{str(potential.dtype).removeprefix('torch.')}",
        f"scale {float(potential.scale):g} eV, shift {float(potential.shift):g} eV, "
        + (f"reference energies for {counted(len(known), 'element')}" if known else "no reference energies"),
    ]
    lines = [*_facts(potential.card), *lines]
    for prior in potential.prior_configs:
        lines += [f"prior {prior.name}: {_settings(prior)}", *_electrostatics(prior)]
    return "\n".join(lines)


def _facts(card: Card) -> list[str]:
    """The lines of the card."""
    from torchmdx.models.model_card import symbols

    lines = [line for line in (": ".join(filter(None, (card.name, card.description))),) if line]
    trained = [] if card.elements is None else [symbols(card.elements)]
    if card.charges is not None:
        trained.append(f"charges {', '.join(f'{charge:+g}' if charge else '0' for charge in card.charges)}")
    if trained:
        kinds = ["closed shells"] * card.closed_shell + ["no periodic structures"] * (card.periodic is False)
        lines.append("trained on " + "; ".join([*trained, *kinds]))
    return [*lines, *([f"licence: {card.licence}"] if card.licence else [])]


def _electrostatics(prior: PriorConfig) -> list[str]:
    """How a Coulomb energy treats periodic systems."""
    from torchmdx.models.priors.coulomb import CoulombConfig

    if not isinstance(prior, CoulombConfig):
        return []
    truncated = f"truncated at {prior.cutoff:g} Å, with a reaction field"
    summed = f"summed over all images, with a relative error of forces of {prior.accuracy:g}"
    return [f"Coulomb energy of periodic systems: {summed if prior.sums_lattice else truncated}"]


def _settings(prior: PriorConfig) -> str:
    """The settings that are set, in one line; of tables only the length."""
    shown = []
    for field in fields(prior):
        value = getattr(prior, field.name)
        if isinstance(value, tuple) and len(value) > 2:
            shown.append(f"{field.name} ({len(value)} numbers)")
        elif value is not None:
            shown.append(f"{field.name} {value:.6g}" if isinstance(value, float) else f"{field.name} {value}")
    return ", ".join(shown)


def _architecture(config: ModelConfig) -> str:
    """Type and size of the network; for a registered model its name and settings."""
    from torchmdx.models.qet import QETConfig
    from torchmdx.models.registry import model_to_dict
    from torchmdx.models.tensornet import TensorNetConfig
    from torchmdx.models.tensornet2 import TensorNet2Config

    if type(config) not in (TensorNetConfig, TensorNet2Config, QETConfig):
        settings = model_to_dict(config)
        return f"{settings.pop('model')}: " + ", ".join(f"{name} {value}" for name, value in settings.items())
    assert isinstance(config, TensorNetConfig)
    kind, charges = "TensorNet", ""
    if isinstance(config, QETConfig):
        kind, charges = "QET", f"charges by linear equilibration (hardness of the {config.hardness}), "
    if isinstance(config, TensorNet2Config):
        kind, charges = "TensorNet2", f"{counted(config.num_charges, 'charge')} a layer, "
    head = "" if config.head == "scalar" else f", {config.head} head"
    own = "" if config.messages == "source" else ", messages of the atom's own tensors"
    radial = counted(config.num_radial, f"{config.radial_basis} radial function")
    return (
        f"{kind}, {counted(config.num_layers, 'layer')}, {counted(config.num_channels, 'channel')}, {charges}{radial}, "
        f"{config.activation}, {config.group}{head}{own}"
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print_torch() -> bool:
    """Prints torch and its devices; returns whether something is wrong."""
    import torch

    print(f"torch {torch.__version__}, built for {'CUDA ' + torch.version.cuda if torch.version.cuda else 'the CPU'}")
    print(f"CPU: {counted(os.cpu_count() or 1, 'core')}, torch uses {counted(torch.get_num_threads(), 'thread')}")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            print(f"GPU {index}: {device.name}, {device.total_memory / 2**30:.0f} GiB, sm_{device.major}{device.minor}")
        return False
    if torch.version.cuda:
        print("GPU: none found, although this torch supports CUDA; check the driver with nvidia-smi")
    else:
        print("GPU: none (this is a CPU build of torch; for a CUDA build see https://pytorch.org/get-started)")
    return False

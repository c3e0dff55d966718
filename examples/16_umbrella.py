"""Free energy over φ of alanine dipeptide at 300 K: umbrella windows in one batch and replica exchange, with MBAR.

`python examples/16_umbrella.py --time 20` makes a picture as in docs/dynamics.md, in ten minutes on one core of a CPU.
"""

import argparse
from pathlib import Path

import ase.io
import numpy as np
import torch
from matplotlib.figure import Figure

import torchmdx
from torchmdx.dynamics import Langevin, Torsion
from torchmdx.dynamics.reweighting import agreement, profile_with_error
from torchmdx.structures.units import BOLTZMANN, KCAL_PER_MOL

OUT, EDGES, THERMAL = Path("out"), np.linspace(-180, 180, 37), 300 * BOLTZMANN
WINDOWS, LADDER = np.arange(-180.0, 180.0, 15.0), np.geomspace(300, 1000, 8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--time", type=float, default=0.6, help="ps of each window and each replica")
    steps = round(parser.parse_args().time * 1000 / 1.5)
    atoms, systems = ase.io.read(Path(__file__).parent / "data" / "alanine_dipeptide.pdb"), []
    potential = torchmdx.load(dtype=torch.float32, device="cuda" if torch.cuda.is_available() else "cpu")
    settings = dict(integrator=Langevin(friction=2.0), timestep=1.5, hydrogen_mass=3.0)
    for angle in WINDOWS:
        atoms.set_dihedral(4, 6, 8, 14, angle, indices=range(8, 22))
        systems.append(torchmdx.System.from_ase(atoms))
    phi = Torsion((4, 6, 8, 14), WINDOWS, stiffness=2.0)
    umbrella = torchmdx.Dynamics(potential, systems, restraints=[phi], seed=1, **settings)
    angles = np.array([phi.values(frame) for frame in umbrella.snapshots(steps, every=20)])[steps // 100 :]
    bias = np.moveaxis(phi.energy(angles[..., None]), -1, 0) / THERMAL
    curves = {"umbrella windows": profile_with_error(angles, bias, np.zeros_like(angles), EDGES)}
    replicas = torchmdx.Dynamics(potential, systems[:1] * 8, temperature=LADDER, exchange_every=40, seed=2, **settings)
    frames = list(replicas.snapshots(steps, every=40))[steps // 200 :]
    energies, angles = np.array([frame.energy for frame in frames]), np.array([phi.values(frame) for frame in frames])
    thermal = BOLTZMANN * LADDER[:, None, None]
    curves["replica exchange"] = profile_with_error(angles, energies / thermal, energies / THERMAL, EDGES)
    rows = np.array([(EDGES[1:] + EDGES[:-1]) / 2, *(THERMAL / KCAL_PER_MOL * np.concatenate([*curves.values()]))])
    OUT.mkdir(exist_ok=True)
    np.savetxt(OUT / "umbrella.csv", rows.T, "%.3f", ",", header="φ, windows, error, exchange, error")
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    panel = figure.subplots()
    for name, y, error in zip(curves, rows[1::2], rows[2::2], strict=True):
        y[(error > 1.5) | (y > 9)] = np.nan
        panel.errorbar(rows[0], y, error, marker=".", capsize=2, label=name)
    panel.legend(frameon=False, fontsize=8)
    panel.set(xlabel="φ / degrees", ylabel="free energy / kcal/mol", xticks=range(-180, 181, 60), ylim=(-0.5, 9))
    figure.savefig(OUT / "umbrella.png", dpi=150)
    print(f"{np.nanmean(replicas.exchange.acceptance):.0%} of exchanges were accepted; wrote {OUT / 'umbrella.png'}")
    print("difference over its standard error: {:.1f}, r.m.s. of {} bins".format(*agreement(rows[1:3], rows[3:5])))


if __name__ == "__main__":
    main()

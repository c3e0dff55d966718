"""Relaxes 1,000 crystals with their cells and runs 256 molecules in torch-sim; on a CPU a few. Needs Python 3.12."""

import importlib.util
import time

import ase.build
import numpy as np

RANDOM = np.random.default_rng(1)


def distorted_diamond() -> ase.Atoms:
    """A cubic cell of eight atoms, strained by 2 % and with displaced atoms."""
    crystal = ase.build.bulk("C", "diamond", a=3.567, cubic=True)
    strain = RANDOM.normal(0, 0.02, (3, 3))
    crystal.set_cell(crystal.cell.array @ (np.eye(3) + (strain + strain.T) / 2), scale_atoms=True)
    crystal.rattle(0.03, seed=int(RANDOM.integers(2**31)))
    return crystal


def main() -> None:
    if importlib.util.find_spec("torch_sim") is None:
        print("needs torch-sim, and with it Python 3.12 or newer: pip install 'torchmdx[torch-sim]'")
        return
    import torch_sim
    from torch_sim.autobatching import InFlightAutoBatcher

    from torchmdx.torch_sim import TorchmdxModel

    model = TorchmdxModel("organic-1")
    on_gpu = model.device.type == "cuda"
    given = [distorted_diamond() for _ in range(1000 if on_gpu else 8)]
    crystals = torch_sim.initialize_state(given, model.device, model.dtype)
    most = model.max_memory_scaler(crystals[:4]) if on_gpu else 4 * 8  # four at a time, swapped as they converge
    start = time.perf_counter()
    relaxed = torch_sim.optimize(
        crystals,
        model,
        optimizer=torch_sim.Optimizer.fire,
        init_kwargs=dict(cell_filter=torch_sim.CellFilter.frechet),
        convergence_fn=torch_sim.generate_force_convergence_fn(force_tol=0.05, include_cell_forces=True),
        autobatcher=InFlightAutoBatcher(model, memory_scales_with="n_atoms", max_memory_scaler=most),
        max_steps=500,
    )
    edges = relaxed.volume.abs() ** (1 / 3)
    print(
        f"{len(edges)} crystals in {time.perf_counter() - start:.1f} s: edge {edges.mean():.3f} ± {edges.std():.3f} Å"
    )

    molecules = [ase.build.molecule("CH3CH2OH")] * (256 if on_gpu else 8)
    options = dict(integrator=torch_sim.Integrator.nvt_langevin, temperature=300, timestep=0.0005, n_steps=200)
    start = time.perf_counter()
    final = torch_sim.integrate(molecules, model, **options)
    temperature = torch_sim.calc_temperature(masses=final.masses, momenta=final.momenta, system_idx=final.system_idx)
    print(f"{len(molecules)} molecules in {time.perf_counter() - start:.1f} s: {temperature.mean():.0f} K")


if __name__ == "__main__":
    main()

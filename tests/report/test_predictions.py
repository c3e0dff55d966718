"""Frames in a batch."""

import torch
from frame_sets import frames_of

from torchmdx import System, evaluate
from torchmdx.report.predictions import pack


def test_padding_has_no_neighbours_and_changes_nothing(potential, mixed):
    """What a GPU gets: shapes of its own, filled with atoms far apart."""
    frames = frames_of(mixed)
    batch = pack(frames, 1300, 16, potential.cutoff)
    assert (batch.num_atoms, batch.num_systems) == (1300, 16)
    counts = batch.counts().tolist()
    assert counts[: len(mixed)] == [len(atoms) for atoms in mixed]
    assert counts[len(mixed) :] == [512, 512, 1300 - 1024 - frames.num_atoms, 0, 0, 0, 0, 0, 0]
    grid = batch.positions[frames.num_atoms :]
    distances = torch.cdist(grid, grid, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    assert float(distances.min()) > potential.cutoff
    found = evaluate(potential, batch)
    alone = [evaluate(potential, System.from_ase(atoms)) for atoms in mixed]
    torch.testing.assert_close(found.energy[: len(mixed)], torch.cat([one.energy for one in alone]), rtol=0, atol=1e-10)
    forces = torch.cat([one.forces for one in alone])
    torch.testing.assert_close(found.forces[: frames.num_atoms], forces, rtol=0, atol=1e-10)

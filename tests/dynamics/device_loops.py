"""The loop on a GPU, or under Triton's interpreter, beside the loop on the host, at the same start."""

import numpy as np

from torchmdx import CapturedStep, Dynamics

FIELDS = ("positions", "velocities", "forces", "energy")


def loops(potential, systems, *, steps_per_replay=3, mode="auto", skin=0.0, **options):
    """(loop on the host, loop on the device). options: of `Dynamics`, also a fast potential."""
    from torchmdx.dynamics.device_loop import DeviceLoop
    from torchmdx.dynamics.host_loop import HostLoop

    dynamics = Dynamics(potential, systems, **{"timestep": 0.25, "seed": 4, **options})
    batch, start, fast, found = dynamics.batch, dynamics.snapshot(), options.get("fast"), []
    stress, cell = dynamics.motion.barostat is not None, batch.cell.numpy()
    for kind, extra in ((HostLoop, {}), (DeviceLoop, dict(steps_per_replay=steps_per_replay, mode=mode))):
        step = CapturedStep(potential, batch, mode="eager", stress=stress, skin=skin)
        extra["fast"] = None if fast is None else CapturedStep(fast, batch, mode="eager", skin=skin)
        found.append(kind(step, dynamics.motion, start.positions, start.velocities, cell, **extra))
    return found


def at(loop, step):
    return next(loop.snapshots(iter([step])))


def assert_same(one, two):
    assert one.step == two.step
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))

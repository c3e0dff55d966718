"""Faults that tests put into the fast path of a step."""

from dataclasses import replace


def through_the_engine(step):
    """Makes a step of few atoms call its engine, as others do, in place of one launch that does everything."""
    if hasattr(step.engine, "model"):
        step.engine.alone, step.engine.model.one_launch = False, None
    return step.engine


def change_outputs(step, change):
    """Makes the fast path of a step give `change(outputs)` in place of its outputs."""
    run = through_the_engine(step).run
    step.engine.run = lambda *inputs, **options: change(run(*inputs, **options))


def spoil(step, factor=1.01):
    """Makes the forces of a step wrong by a factor."""
    change_outputs(step, lambda outputs: replace(outputs, forces=factor * outputs.forces))

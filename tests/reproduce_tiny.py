"""`quell reproduce` with everything as small as it goes: `python reproduce_tiny.py OUT ARGS…`."""

import sys
from dataclasses import replace

from quell_cli import main as cli
from quell_paper.config import (
    CONTEXT_FREE,
    EXPERIMENTS,
    FULL,
    LITERAL,
    OWN,
    QUICK,
    Dynamic,
    OrderBias,
    Sampling,
    Static,
    StepTime,
    Traces,
)

_SMALL = (CONTEXT_FREE, (4,))
TINY = replace(
    QUICK["logistic"],
    seeds=2,
    looks=1,
    experiments=EXPERIMENTS,
    sampling=Sampling(batches=4, draws=2),
    static=Static(
        frozen_after=(2,),
        measured_after=(1, 3),
        networks=_SMALL,
        settings=((FULL, 1e-2),),
        others=(),
    ),
    dynamic=Dynamic(
        measured_after=(2, 3),
        other_bases=(),
        criteria=("squared_difference",),
        networks=((4,),),
        procedures=(LITERAL,),
    ),
    order_bias=OrderBias(
        learned_for=(3,),
        sampling=Sampling(batches=4, draws=2),
        networks=((4,),),
        scales=(FULL,),
    ),
    traces=Traces(
        num_steps=4,
        nelbo_every=2,
        criteria=("squared_difference",),
        networks=(CONTEXT_FREE,),
        procedures=(LITERAL, OWN),
    ),
    step_time=StepTime(
        repetitions=2, runs=2, criteria=("squared_difference",), networks=(CONTEXT_FREE,)
    ),
)


def reproduce(out, experiment="all", *more):
    """Run the command; its exit code."""
    QUICK["logistic"] = TINY
    args = ["reproduce", experiment, "--quick", "--model", "logistic", "--out", str(out)]
    return cli.main([*args, *more])


if __name__ == "__main__":
    sys.exit(reproduce(*sys.argv[1:]))

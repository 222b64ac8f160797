"""Many fits in one process: neither memory nor traces grow."""

import ctypes
import gc
import itertools
import resource
import time
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import quell
from quell import coefficients
from quell import estimators as est
from quell.types import Estimator

NUM_DATA, DIM, BATCH, NUM_STEPS = 20_000, 10, 20, 200

ESTIMATORS = {
    "plain": quell.monte_carlo,
    "antithetic": quell.antithetic,
    "closed form": quell.closed_form,
    "svrg": quell.svrg,
    "taylor": est.taylor,
    "recognition network": lambda: est.controlled(
        coefficients.recognition_network((8,), optax.adam(1e-2))
    ),
}


def one_fit(place: int, estimator: Estimator) -> int:
    """A fit of a new objective to new data; how often its loss was traced."""
    key = jax.random.key(place)
    x = jax.random.normal(key, (NUM_DATA, DIM))
    data = {"x": x, "y": jnp.sign(x @ jnp.ones(DIM))}
    family, traces = quell.mean_field(DIM), []

    def log_likelihood(w, row):
        traces.append(1)
        return -jnp.logaddexp(0.0, -row["y"] * w @ row["x"])

    objective = quell.negative_elbo(log_likelihood, family, num_data=NUM_DATA)
    quell.fit(
        key,
        objective,
        family.init(),
        data,
        optax.adam(1e-2),
        num_steps=NUM_STEPS,
        batch_size=BATCH,
        estimator=estimator,
        hooks=[quell.silent],
    )
    return len(traces)


def soak(minutes: float, rounds: int | None = None) -> dict:
    """Fit with every estimator in turn, until the time or the rounds are over.

    Returns:
      The number of fits; live arrays after the first round and at the end; memory after a fifth of
      the fits and at the end, and its slope since; traces of a fit in the first and the last round.
    """
    began, memory, arrays, traces = time.monotonic(), [], [], []
    for place in itertools.count():
        if place == rounds or time.monotonic() - began > 60 * minutes:
            break
        traces.append(
            [one_fit(1000 * place + i, make()) for i, make in enumerate(ESTIMATORS.values())]
        )
        gc.collect()
        arrays.append(len(jax.live_arrays()))
        memory.append(_resident())
        print(f"round {place}: {arrays[-1]} arrays, {memory[-1] / 1e6:.0f} MB", flush=True)
    early = len(memory) // 5
    later = memory[early:]
    per_round = np.polyfit(np.arange(len(later)), later, 1)[0] if len(later) > 1 else 0.0
    return {
        "fits": len(ESTIMATORS) * len(memory),
        "estimators": len(ESTIMATORS),
        "seconds": time.monotonic() - began,
        "arrays": [arrays[0], arrays[-1]],
        "megabytes": [memory[early] / 1e6, memory[-1] / 1e6],
        "kilobytes_per_fit": per_round / len(ESTIMATORS) / 1e3,
        "traces": [sum(traces[0]), sum(traces[-1])],
    }


def _resident() -> float:
    """Bytes of memory in use now, or the most so far where the system does not say."""
    with suppress(AttributeError, OSError):  # glibc keeps what was freed, in pieces, for later
        ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

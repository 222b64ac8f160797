"""Runs that are killed at random moments, and what is left of them when they go on.

The process that asks imports everything and computes nothing, so that a child is a fork: it begins
at once, and `kill -9` finds it starting, training or in the middle of a save. A chain is one run
that is killed and begun again until it ends; its result must be, bit for bit, that of a run that
nobody disturbed.
"""

import hashlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax._src import xla_bridge

import quell
from quell.types import Estimator, Hook

NUM_STEPS, EVERY, BATCH, NUM_DATA, DIM = 3000, 50, 10, 200, 3
RESULT = "result"
RACE = Path(__file__).parents[1] / "benchmarks"

ESTIMATORS = {
    "plain": quell.monte_carlo,
    "recognition network": lambda: quell.estimators.controlled(
        quell.coefficients.recognition_network((8,), optax.adam(1e-2))
    ),
    "closed form": quell.closed_form,
    "svrg": lambda: quell.svrg(every=100),
}


class Case(NamedTuple):
    """Something to kill: `run(directory)` leaves a file `result` there, however often it begins."""

    name: str
    run: Callable[[Path], None]


class Chain(NamedTuple):
    """What became of a run that was killed again and again."""

    kills: int
    in_a_save: int  # the kills that left half of a file behind
    completed: int
    lost: int  # results that were not those of an undisturbed run


def trained(
    make: Callable[[], Estimator], seeds: int, directory: Path, hooks: Sequence[Hook] = ()
) -> None:
    """A checkpointed `fit` of a logistic regression; a digest of its result is left."""
    key = jax.random.key(7)
    x = jax.random.normal(key, (NUM_DATA, DIM))
    data = {"x": x, "y": jnp.sign(x @ jnp.arange(1.0, DIM + 1) + 0.1)}
    family = quell.full_covariance(DIM)
    objective = quell.negative_elbo(
        lambda w, row: -jnp.logaddexp(0.0, -row["y"] * w @ row["x"]), family, num_data=NUM_DATA
    )
    result = quell.fit(
        jax.random.split(key, seeds) if seeds > 1 else key,
        objective,
        family.init(),
        data,
        optax.adam(1e-2),
        num_steps=NUM_STEPS,
        batch_size=BATCH,
        estimator=make(),
        hooks=[*hooks, quell.checkpoint(directory / "run", every=EVERY), quell.silent],
    )
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(result):
        digest.update(np.asarray(leaf).tobytes())
    _leave(directory, digest.hexdigest())


def reproduced(experiment: str, directory: Path) -> None:
    """`quell reproduce --quick` of a tiny plan."""
    from reproduce_tiny import reproduce  # computes when it is imported, which forks do not survive

    assert reproduce(directory / "out", experiment) == 0
    _leave(directory, (directory / "out" / f"{experiment}.csv").read_text())


class Ticks:
    """A clock that goes on by 2^-7 s at every look, so that all times of a race are the same."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 2**-7  # no rounding, however often
        return self.now

    process_time = perf_counter


def raced(directory: Path) -> None:
    """The race of three contestants on titanic, tuned, timed and replayed: every number of it.

    A race depends on its clock: what is tuned, and how long a run is. Under `Ticks` it does not.
    """
    sys.path.insert(0, str(RACE))
    import race
    from _race import experts, runs

    runs.time = experts.time = Ticks()
    places = ["--out", str(directory / "out"), "--docs", str(directory / "docs")]
    who = ["--contestants", "closed form, natural", "pairs, Adam", "L-BFGS, exact bound"]
    compiled = ["--cache", jax.config.jax_compilation_cache_dir]
    race.main(["--only", "titanic", "--quick", *places, *who, *compiled])
    files = [f for f in sorted(directory.rglob("*")) if f.suffix in (".json", ".npz")]
    lines = [f"{f.relative_to(directory)} {_digest_of_file(f)}" for f in files]
    _leave(directory, "\n".join(lines))


def _digest_of_file(path: Path) -> str:
    """Of the numbers: an archive of arrays also has the time at which it was written."""
    digest = hashlib.sha256()
    if path.suffix == ".npz":
        for name, array in sorted(np.load(path).items()):
            digest.update(name.encode() + array.tobytes())
    else:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _leave(directory: Path, content: str) -> None:
    (directory / "result.new").write_text(content)
    os.rename(directory / "result.new", directory / RESULT)


def fits(seeds: tuple[int, ...] = (1, 10)) -> list[Case]:
    return [
        Case(
            f"{name}, {n} {'seed' if n == 1 else 'seeds'}", lambda d, m=make, n=n: trained(m, n, d)
        )
        for name, make in ESTIMATORS.items()
        for n in seeds
    ]


def commands() -> list[Case]:
    return [
        Case(f"quell reproduce {name}", lambda d, name=name: reproduced(name, d))
        for name in ("static", "orders")
    ] + [Case("the race", raced)]


def forked(run: Callable[[Path], None], directory: Path) -> int:
    """A child that runs; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    assert not xla_bridge.backends_are_initialized(), "a process that has computed cannot fork"
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with (directory / "log").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            jax.config.update("jax_disable_most_optimizations", True)
            # Compiled once, by the undisturbed run: kills are to find training, not compilation.
            jax.config.update("jax_compilation_cache_dir", str(directory.parent / "compiled"))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
            run(directory)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def undisturbed(case: Case, directory: Path) -> tuple[str, float]:
    """The result of a run that is not killed, and its seconds."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RESULT).unlink(missing_ok=True)
    began = time.monotonic()
    if os.waitpid(forked(case.run, directory), 0)[1]:
        raise RuntimeError(f"{case.name} fails by itself:\n{(directory / 'log').read_text()}")
    return (directory / RESULT).read_text(), time.monotonic() - began


def chain(
    case: Case,
    directory: Path,
    undisturbed: tuple[str, float],
    most: int,
    chance: random.Random,
) -> Chain:
    """Kill runs at random moments, so many times in all, and let each of them end.

    Args:
      undisturbed: the result of a run that is not killed, and its seconds.
    """
    expected, seconds = undisturbed
    kills = in_a_save = lost = completed = 0
    while kills < most:
        here = Path(tempfile.mkdtemp(dir=directory))
        completed += 1
        before, began = kills, time.monotonic()
        while not (here / RESULT).exists():
            child = forked(case.run, here)
            if kills < most and _killed(child, here, seconds, chance):
                kills += 1
                in_a_save += any(here.rglob("*.part"))
            elif os.waitpid(child, 0)[1] and not (here / RESULT).exists():
                lost += 1
                break
        else:
            lost += (here / RESULT).read_text() != expected
        if kills == before:  # it was over before it was to be killed: the machine is quicker now
            seconds = time.monotonic() - began
        print(f"{case.name}: {kills} kills, {in_a_save} in a save, {lost} lost", flush=True)
    return Chain(kills, in_a_save, completed, lost)


def _killed(child: int, directory: Path, seconds: float, chance: random.Random) -> bool:
    """Kill a child: at any moment, or soon after it has written; False if it ended before."""
    first = chance.random() < 0.75  # wait for a file: else most would be killed while they compile
    known, after = _files(directory), chance.uniform(0, 0.3 * seconds)
    moment = None if first else time.monotonic() + chance.uniform(0, seconds)
    while _alive(child):
        if moment is None and _files(directory) != known:
            moment = time.monotonic() + after
        if moment is not None and time.monotonic() >= moment:
            os.kill(child, signal.SIGKILL)  # it has not been waited for: the number is still its
            os.waitpid(child, 0)
            return True
        time.sleep(0.002)
    return False


def _files(directory: Path) -> set[str]:
    """The names of what has been saved."""
    places = (place for place in os.walk(directory) if place[0] != str(directory))
    return {name for _, inside, files in places for name in (*inside, *files) if name != "lock"}


def _alive(child: int) -> bool:
    """Whether a child still runs; one that has ended is left for `waitpid`."""
    found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is None

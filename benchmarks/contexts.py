"""What the coefficients may look at: how much of the draws' variance each context map leaves."""

import argparse
from pathlib import Path

import _timing
import jax
import optax

import quell
from quell import bases, coefficients, contexts, criteria, estimators
from quell._measure import full_gradient, noisiness
from quell.experiments.field import contest

KEY = jax.random.key(0)
PLAIN = estimators.monte_carlo()
MODELS = {
    "standardised": lambda: coefficients.least_squares(draws=contexts.standardised()),
    "adaptive": lambda: coefficients.least_squares(draws=contexts.adaptive()),
    "at_zero": lambda: coefficients.least_squares(draws=contexts.at_zero()),
    "learned_trunk": lambda: coefficients.learned_trunk(),
}


def draws_left(name, num_steps, batch_size=10, seconds=2.0):
    """Train logistic regression on titanic with a control of the draws; what it leaves of them."""
    problem = contest("logistic", "titanic")
    objective, data = problem.objective, problem.data
    control = quell.control_variate(
        bases.linear(),
        MODELS[name](),
        criteria.partial_gradients,
        noise=objective.noise,
        context=data,
        key=KEY,
        at_zero=objective.at_zero,
    )
    make = estimators.controlled(PLAIN, control)
    end = quell.fit(
        objective, data, params=problem.init, optimizer=optax.adam(1e-2), num_steps=num_steps,
        batch_size=batch_size, key=KEY, estimator=make,
    )  # fmt: skip
    reference = full_gradient(KEY, objective, end.params, data, seconds=0.3)
    ours, theirs = (
        noisiness(
            KEY, estimator(objective), end.params, data, batch_size=batch_size, state=state,
            reference=reference, seconds=seconds,
        ).parts.draws_given_points.value
        for estimator, state in ((make, end.estimator_state), (PLAIN, ()))
    )  # fmt: skip
    return ours / theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="*", default=[200, 1000])
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"), help="where JSON goes")
    args = parser.parse_args()
    results = {name: {str(n): draws_left(name, n) for n in args.steps} for name in MODELS}
    print("titanic, linear basis, batch 10: share of the draws' variance left after training")
    for name, left in results.items():
        print(f"  {name:14s}" + "".join(f"  {n} steps: {share:.4f}" for n, share in left.items()))
    _timing.save(args.out / "contexts.json", results)


if __name__ == "__main__":
    main()

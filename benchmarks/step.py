"""The cost of control: the factorised correction against the dense one, and a step of each kind."""

import statistics

import _timing
import jax
import jax.numpy as jnp
import optax
from jax import lax

import quell
from quell import coefficients, criteria, datasets
from quell._mlp import apply_layers, init_layers
from quell.criteria import Evidence, mean_features
from quell.diagnostics.timing import in_turns
from quell.estimators._types import batch_of
from quell.models import logistic_regression
from quell_cli.benchmarks import Section, ratio, turn_of

KEY = jax.random.key(0)
BATCH, STEPS, DISPATCHED = 10, 2000, 200
TURN = 0.15  # seconds
HIDDEN = (128, 128, 128)


def corrections(P=2100, D=5, C=6):
    """The correction and the gradient of the squared difference, factorised and dense, over B."""
    H = HIDDEN[-1] + 1

    def problem(B):
        keys = jax.random.split(KEY, 5)
        weights = init_layers(keys[0], (C, *HIDDEN)), jax.random.normal(keys[1], (D * H, P))
        y = jax.random.normal(keys[2], (B, C))
        w = jax.random.normal(keys[3], (B, D))
        return weights, y, w, jax.random.normal(keys[4], (P,))

    def h_of(layers, y):
        features = apply_layers(layers, y, jax.nn.relu, activate_last=True)
        return jnp.concatenate([jnp.ones((y.shape[0], 1)), features], axis=1)

    @jax.jit
    def factorised(weights, y, w, total):
        evidence = Evidence(w, (), y, total, None, (P,), False, False, jnp.array(True))

        def value(weights):
            return criteria.squared_difference.value(weights[1], h_of(weights[0], y), evidence)

        correction = mean_features(w, h_of(weights[0], y)) @ weights[1]
        return correction, jax.grad(value)(weights)

    @jax.jit
    def dense(weights, y, w, total):
        def correction(weights):  # c [B, P, D], as the network gives it
            theta = weights[1].reshape(D, H, P)
            c = jnp.einsum("bh,dhp->bpd", h_of(weights[0], y), theta)
            return jnp.einsum("bpd,bd->p", c, w) / w.shape[0]

        gradient = jax.grad(lambda weights: ((total - correction(weights)) ** 2).sum())(weights)
        return correction(weights), gradient

    return problem, factorised, dense


def against_dense(rounds):
    """Time and memory of one correction with its learning gradient."""
    problem, factorised, dense = corrections()
    turns, memory = {}, {}
    for B in (10, 100, 1000):
        for name, f in (("factorised", factorised), ("dense", dense)):
            arguments = problem(B)
            turns[f"{name}, B = {B}"] = turn_of(lambda f=f, arguments=arguments: f(*arguments))
            analysis = f.lower(*arguments).compile().memory_analysis()
            memory[f"{name}, B = {B}"] = int(analysis.temp_size_in_bytes)
    times = in_turns(turns, rounds=rounds)
    rows = [
        (name, statistics.median(own) * 1e6, min(own) * 1e6, memory[name] / 2**20)
        for name, own in times.items()
    ]
    header = ("correction + gradient", "median µs", "least µs", "temporary MiB")
    section = Section("P = 2100, D = 5, hidden (128, 128, 128)", header, rows)
    speedup = {
        B: ratio(times[f"dense, B = {B}"], times[f"factorised, B = {B}"]) for B in (10, 100, 1000)
    }
    print(section)
    print("  dense / factorised:", {B: round(r, 2) for B, r in speedup.items()})
    return {"rows": section.to_json()["rows"], "dense_over_factorised": speedup}


def estimators():
    """Estimators of the titanic logistic regression, by name."""
    free = coefficients.context_free(optax.adam(1e-2))
    network = coefficients.recognition_network(HIDDEN)
    return {
        "plain": quell.monte_carlo(),
        "context-free, squared difference": quell.controlled(free),
        "context-free, gradient sum": quell.controlled(free, criterion=criteria.gradient_sum),
        "amortised, squared difference": quell.controlled(network),
        "amortised, gradient sum": quell.controlled(network, criterion=criteria.gradient_sum),
        "amortised, partial gradients": quell.controlled(
            network, criterion=criteria.partial_gradients
        ),
        "closed form": quell.closed_form(),
    }


def turns_of(estimator, objective, params, data):
    """Turns of training steps in a compiled loop, and dispatched from Python one by one."""
    optimizer = optax.adam(1e-2)
    started = estimator.start(KEY, objective, params, data)
    start = (params, optimizer.init(params), started.init(KEY, params))

    def step(carried, inputs):
        params, optimizer_state, state = carried
        indices, key = inputs
        found = started.estimate(key, objective, params, batch_of(data, indices), state)
        updates, optimizer_state = optimizer.update(found.gradient, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state, found.state), found.value

    indices = jax.random.randint(KEY, (STEPS, BATCH), 0, objective.num_data)
    inputs = indices, jax.random.split(KEY, STEPS)
    compiled = jax.jit(lambda start, inputs: lax.scan(step, start, inputs))
    one = jax.jit(step)
    each = [jax.tree.map(lambda x, i=i: x[i], inputs) for i in range(DISPATCHED)]

    def dispatched():
        carried = start
        for i in range(DISPATCHED):
            carried, _ = one(carried, each[i])
        return carried

    whole = turn_of(lambda: compiled(start, inputs), STEPS, least=TURN)
    return whole, turn_of(dispatched, DISPATCHED, least=TURN)


def step_cost(rounds):
    """Time per training step in a compiled loop, and dispatched from Python one by one."""
    data, model = datasets.titanic().data, logistic_regression(4)
    problem = (model.objective(len(data["y"])), model.init(KEY), data)
    turns = {}
    for name, estimator in estimators().items():
        turns[name], turns[name, "dispatched"] = turns_of(estimator, *problem)
    times = in_turns(turns, rounds=rounds)
    header = ("step", "median µs", "least µs", "× plain", "dispatched µs", "dispatched / compiled")
    rows = [
        (
            name,
            statistics.median(times[name]) * 1e6,
            min(times[name]) * 1e6,
            ratio(times[name], times["plain"]),
            statistics.median(times[name, "dispatched"]) * 1e6,
            ratio(times[name, "dispatched"], times[name]),
        )
        for name in estimators()
    ]
    section = Section(f"Logistic regression, titanic, batch {BATCH}", header, rows)
    print(section)
    return {"rows": section.to_json()["rows"]}


def main():
    args = _timing.parser(__doc__).parse_args()
    results = {"factorised": against_dense(args.rounds), "step": step_cost(args.rounds)}
    _timing.save(args.out / "step.json", results)


if __name__ == "__main__":
    main()

"""What control costs: the factorised correction against the dense one, and a step of each kind."""

import _timing
import jax
import jax.numpy as jnp
import optax
from jax import lax

from quell import bases, coefficients, contexts, control_variate, criteria, datasets, estimators
from quell._features import Evidence, mean_features
from quell.coefficients._network import multilayer, with_one
from quell.models import logistic_regression

KEY = jax.random.key(0)
BATCH, STEPS, DISPATCHED = 10, 2000, 200
TURN = 0.15  # seconds
HIDDEN = (128, 128, 128)


def corrections(P=2100, D=5, C=6):
    """The correction and the gradient of the squared difference, factorised and dense, over B."""
    trunk = multilayer(HIDDEN)
    H = HIDDEN[-1] + 1

    def problem(B):
        keys = jax.random.split(KEY, 5)
        weights = trunk.init(keys[0], jnp.zeros((1, C))), jax.random.normal(keys[1], (P, D * H))
        y = jax.random.normal(keys[2], (B, C))
        w = jax.random.normal(keys[3], (B, D))
        return weights, y, w, jax.random.normal(keys[4], (P,))

    def h_of(params, y):
        return with_one(trunk.apply(params, y))

    @jax.jit
    def factorised(weights, y, w, total):
        evidence = Evidence(w, y, total, None, (P,), False, False, jnp.array(True))

        def value(weights):
            return criteria.squared_difference.value(weights[1].T, h_of(weights[0], y), evidence)

        correction = weights[1] @ mean_features(w, h_of(weights[0], y))
        return correction, jax.grad(value)(weights)

    @jax.jit
    def dense(weights, y, w, total):
        def correction(weights):  # c [B, P, D], as the network gives it
            theta = weights[1].reshape(P, D, H)
            c = jnp.einsum("bh,pdh->bpd", h_of(weights[0], y), theta)
            return jnp.einsum("bpd,bd->p", c, w) / w.shape[0]

        gradient = jax.grad(lambda weights: ((total - correction(weights)) ** 2).sum())(weights)
        return correction(weights), gradient

    return problem, factorised, dense


def against_dense(rounds):
    """Time and memory of one correction with its learning gradient."""
    problem, factorised, dense = corrections()
    runs, memory = {}, {}
    for B in (10, 100, 1000):
        for name, f in (("factorised", factorised), ("dense", dense)):
            arguments = problem(B)
            runs[f"{name}, B = {B}"] = lambda f=f, arguments=arguments: f(*arguments)
            analysis = f.lower(*arguments).compile().memory_analysis()
            memory[f"{name}, B = {B}"] = int(analysis.temp_size_in_bytes)
    timings = _timing.side_by_side(runs, rounds=rounds)
    rows = [
        (name, t.median * 1e6, t.least * 1e6, memory[name] / 2**20) for name, t in timings.items()
    ]
    header = ("correction + gradient", "median µs", "least µs", "temporary MiB")
    title = "P = 2100, D = 5, hidden (128, 128, 128)"
    _timing.print_table(title, header, rows)
    speedup = {
        B: _timing.ratio(timings, f"dense, B = {B}", f"factorised, B = {B}")
        for B in (10, 100, 1000)
    }
    print("  dense / factorised:", {B: round(r, 2) for B, r in speedup.items()})
    return {"rows": [dict(zip(header, row)) for row in rows], "dense_over_factorised": speedup}


def logistic_steps():
    """Estimators of the titanic logistic regression, by name."""
    data = datasets.titanic().data
    model = logistic_regression(4)
    objective = model.objective(len(data["y"]))
    context = contexts.as_matrix(data)

    def control(model, criterion):
        made = control_variate(
            bases.linear(), model, criterion, noise=objective.noise, context=context, key=KEY
        )
        return estimators.controlled(estimators.monte_carlo(), made)

    adam = optax.adam(1e-2)
    free = coefficients.context_free(adam)
    network = coefficients.recognition_network(HIDDEN)
    exact = coefficients.recognition_network(HIDDEN, optax.adam(1e-3))
    makers = {
        "plain": estimators.monte_carlo(),
        "context-free, squared difference": control(free, criteria.squared_difference),
        "context-free, gradient sum": control(free, criteria.gradient_sum),
        "amortised, squared difference": control(network, criteria.squared_difference),
        "amortised, squared difference, a step each": control(exact, criteria.squared_difference),
        "amortised, gradient sum": control(network, criteria.gradient_sum),
        "amortised, partial gradients": control(network, criteria.partial_gradients),
        "closed form": estimators.closed_form(KEY, objective, model.init(KEY), data),
    }
    return data, model.init(KEY), {name: make(objective) for name, make in makers.items()}


def step_cost(rounds):
    """Time per training step in a compiled loop, and dispatched from Python one by one."""
    data, params, made = logistic_steps()
    optimizer = optax.adam(1e-2)
    runs, per = {}, {}
    for name, estimator in made.items():
        start = (params, optimizer.init(params), estimator.init(KEY, params, data))

        def step(carried, inputs, estimator=estimator):
            params, optimizer_state, state = carried
            rows, key = inputs
            batch = jax.tree.map(lambda y: y[rows], data)
            gradient, value, state = estimator.estimate(key, params, batch, state)
            updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
            return (optax.apply_updates(params, updates), optimizer_state, state), value

        rows = jax.random.randint(KEY, (STEPS, BATCH), 0, len(data["y"]))
        inputs = rows, jax.random.split(KEY, STEPS)
        compiled = jax.jit(lambda start, inputs, step=step: lax.scan(step, start, inputs))
        one = jax.jit(step)
        each = [jax.tree.map(lambda x, i=i: x[i], inputs) for i in range(DISPATCHED)]

        def dispatched(one=one, start=start, each=each):
            carried = start
            for i in range(DISPATCHED):
                carried, _ = one(carried, each[i])
            return carried

        runs[name], per[name] = lambda c=compiled, s=start, i=inputs: c(s, i), STEPS
        runs[f"{name}, dispatched"], per[f"{name}, dispatched"] = dispatched, DISPATCHED
    timings = _timing.side_by_side(runs, rounds=rounds, per=per, turn=TURN)
    header = ("step", "median µs", "least µs", "× plain", "dispatched µs", "dispatched / compiled")
    rows = [
        (
            name,
            timings[name].median * 1e6,
            timings[name].least * 1e6,
            _timing.ratio(timings, name, "plain"),
            timings[f"{name}, dispatched"].median * 1e6,
            _timing.ratio(timings, f"{name}, dispatched", name),
        )
        for name in made
    ]
    _timing.print_table(f"Logistic regression, titanic, batch {BATCH}", header, rows)
    return {"rows": [dict(zip(header, row)) for row in rows]}


def main():
    args = _timing.parser(__doc__).parse_args()
    results = {
        "factorised": against_dense(args.rounds),
        "step": step_cost(args.rounds),
    }
    _timing.save(args.out / "step.json", results)


if __name__ == "__main__":
    main()

"""What is run: every number the experiments depend on, in one place.

The defaults are what the paper fixes. Where it is silent the choice is ours and says so. The same
classes describe the paper's models, `PAPER`, and their shortened forms, `QUICK`.
"""

from dataclasses import dataclass, replace

CONTEXT_FREE: tuple[int, ...] = ()
DEEPEST = (128, 128, 128)
# Narrow and wide, shallow and deep: every size differs from another in one respect.
_EXTREMES = (CONTEXT_FREE, DEEPEST)
NETWORKS = (CONTEXT_FREE, (16,), (128,), (16, 16, 16), DEEPEST)


@dataclass(frozen=True)
class Sampling:
    """How variances are measured: fresh batches and, for each, fresh draws.

    The paper samples 100 gradients; nested in batches they tell draws from points apart.
    """

    batches: int = 50
    draws: int = 4


@dataclass(frozen=True)
class FigureOne:
    """One weight, two points. The paper names neither data nor parameters: these are ours.

    Attributes:
      harm: what the common variate must leave of one point's variance, at least.
      served: what its own variate may leave of either point's, at most.
    """

    num_data: int = 60
    train_steps: int = 150
    draws: int = 4000
    harm: float = 1.5
    served: float = 0.2


@dataclass(frozen=True)
class Static:
    """Section 5.2: the model stands still, its coefficients learn.

    Attributes:
      networks: sizes for the paper's main setting, linear basis and squared difference.
      other_networks: sizes for the other bases and criteria.
      partial_gradients_rates: learning rates for the criterion that the paper did not run.
    """

    frozen_after: tuple[int, ...] = (10, 200, 1000)
    measured_after: tuple[int, ...] = (1, 10, 30, 100, 300, 1000)
    bases: tuple[str, ...] = ("linear", "quadratic")
    criteria: tuple[str, ...] = ("squared_difference", "gradient_sum", "partial_gradients")
    networks: tuple[tuple[int, ...], ...] = NETWORKS
    other_networks: tuple[tuple[int, ...], ...] = NETWORKS
    learning_rates: tuple[float, ...] = (1e-2, 1e-3)
    partial_gradients_rates: tuple[float, ...] = (1e-2, 1e-3)

    def rates_for(self, criterion: str) -> tuple[float, ...]:
        """The coefficients' learning rates that are run with a criterion."""
        partial = criterion == "partial_gradients"
        return self.partial_gradients_rates if partial else self.learning_rates

    def networks_for(self, basis: str, criterion: str) -> tuple[tuple[int, ...], ...]:
        """The sizes that are run with a basis and a criterion."""
        main = (basis, criterion) == ("linear", "squared_difference")
        return self.networks if main else self.other_networks


@dataclass(frozen=True)
class Dynamic:
    """Section 5.3: model and coefficients learn together."""

    measured_after: tuple[int, ...] = (10, 200, 1000)
    bases: tuple[str, ...] = ("linear", "quadratic")
    criteria: tuple[str, ...] = ("squared_difference", "gradient_sum", "partial_gradients")
    networks: tuple[tuple[int, ...], ...] = (CONTEXT_FREE, DEEPEST)
    learning_rates: tuple[float, ...] = (1e-2, 1e-3)
    orders: tuple[str, ...] = ("apply_then_learn", "learn_then_apply")


@dataclass(frozen=True)
class Orders:
    """What the paper's order of learning and applying costs: its bias at frozen models.

    Attributes:
      learned_for: coefficient steps before the measurement.
      sampling: more than for variances, since a bias is smaller than what it hides in.
    """

    learned_for: tuple[int, ...] = (10, 100, 1000)
    sampling: Sampling = Sampling(batches=200, draws=8)
    criteria: tuple[str, ...] = ("squared_difference", "gradient_sum")
    networks: tuple[tuple[int, ...], ...] = (CONTEXT_FREE, DEEPEST)


@dataclass(frozen=True)
class Traces:
    """Section 5.4: the bound on the whole data while training; always the linear basis."""

    num_steps: int = 2000
    nelbo_draws: int = 100
    nelbo_every: int = 1
    criteria: tuple[str, ...] = ("squared_difference", "gradient_sum")
    networks: tuple[tuple[int, ...], ...] = (CONTEXT_FREE, DEEPEST)
    orders: tuple[str, ...] = ("apply_then_learn", "learn_then_apply")


@dataclass(frozen=True)
class TableOne:
    """The time of a step: repetitions of some steps, dispatched singly and in a compiled loop."""

    repetitions: int = 100
    runs: int = 10
    criteria: tuple[str, ...] = ("squared_difference", "gradient_sum")
    networks: tuple[tuple[int, ...], ...] = (CONTEXT_FREE, DEEPEST)


@dataclass(frozen=True)
class Plan:
    """Everything about one model's experiments.

    Attributes:
      learning_rate: of the model's Adam.
      main_learning_rate: of the coefficients' Adam in the paper's main figures, and in the traces.
      seeds: independent runs of everything random.
    """

    model: str
    main_learning_rate: float
    seeds: int = 10
    batch_size: int = 10
    learning_rate: float = 1e-2
    sampling: Sampling = Sampling()
    static: Static = Static()
    dynamic: Dynamic = Dynamic()
    orders: Orders = Orders()
    traces: Traces = Traces()
    table_one: TableOne = TableOne()


EXPERIMENTS = ("figure-1", "static", "dynamic", "orders", "traces", "table-1")

PAPER = {
    "logistic": Plan("logistic", main_learning_rate=1e-2, sampling=Sampling(batches=100, draws=8)),
    "deep-gp": Plan(
        "deep-gp",
        main_learning_rate=1e-3,
        # A last layer of [5·129, 2100] takes milliseconds to learn where logistic regression takes
        # microseconds. So the two orders are compared in the traces and by their bias alone, and
        # partial gradients, the dearest criterion, learn at the main rate alone.
        static=Static(partial_gradients_rates=(1e-3,)),
        dynamic=Dynamic(orders=("apply_then_learn",)),
        orders=Orders(
            learned_for=(10, 1000),
            sampling=Sampling(batches=50, draws=4),
            criteria=("squared_difference",),
        ),
        traces=Traces(nelbo_draws=10),
    ),
}

QUICK = {
    "logistic": replace(
        PAPER["logistic"],
        seeds=3,
        static=Static(
            frozen_after=(10, 1000),
            measured_after=(10, 100, 1000),
            bases=("linear",),
            learning_rates=(1e-2,),
            partial_gradients_rates=(1e-2,),
            other_networks=_EXTREMES,
        ),
        dynamic=Dynamic(
            bases=("linear",),
            criteria=("squared_difference", "gradient_sum"),
            learning_rates=(1e-2,),
            orders=("apply_then_learn",),
        ),
        orders=Orders(learned_for=(10, 1000), criteria=("squared_difference",)),
        traces=Traces(num_steps=1000, orders=("apply_then_learn",)),
        table_one=TableOne(repetitions=10),
    ),
    "deep-gp": replace(
        PAPER["deep-gp"],
        seeds=2,
        sampling=Sampling(batches=20, draws=4),
        static=Static(
            frozen_after=(10, 1000),
            measured_after=(10, 100, 1000),
            bases=("linear",),
            criteria=("squared_difference",),
            networks=_EXTREMES,
            learning_rates=(1e-3,),
        ),
        dynamic=Dynamic(
            bases=("linear",),
            criteria=("squared_difference",),
            learning_rates=(1e-3,),
            orders=("apply_then_learn",),
        ),
        orders=Orders(criteria=()),  # logistic regression shows it
        traces=Traces(
            num_steps=500,
            nelbo_draws=10,
            nelbo_every=10,
            criteria=("squared_difference",),
            orders=("apply_then_learn",),
        ),
        table_one=TableOne(repetitions=5),
    ),
}

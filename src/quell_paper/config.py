"""The settings of the experiments: every number behind a result, in one place.

The defaults are the paper's. If the paper is silent, the choice is ours and a comment says so.
The same classes describe the paper's experiments, `PAPER`, and their shortened forms, `QUICK`.
"""

from dataclasses import dataclass, replace

EXPERIMENTS = ("figure-1", "static", "dynamic", "orders", "traces", "table-1")
CRITERIA = ("squared_difference", "gradient_sum", "partial_gradients")
APPLY_FIRST = "apply_then_learn"  # unbiased
LEARN_FIRST = "learn_then_apply"  # the paper's order
BOTH_ORDERS = (APPLY_FIRST, LEARN_FIRST)
_MAIN, _TWO_CRITERIA, _UNBIASED = CRITERIA[:1], CRITERIA[:2], BOTH_ORDERS[:1]

Network = tuple[int, ...]  # the widths of the hidden layers
CONTEXT_FREE: Network = ()
DEEPEST: Network = (128, 128, 128)
EXTREMES = (CONTEXT_FREE, DEEPEST)
# Narrow and wide, shallow and deep: every network differs from another in one respect alone.
NETWORKS = (CONTEXT_FREE, (16,), (128,), (16, 16, 16), DEEPEST)


def network_name(hidden: Network) -> str:
    """The name of a network in records: `128-128-128`, or `none` without hidden layers.

    >>> network_name((16, 16)), network_name(())
    ('16-16', 'none')
    """
    return "-".join(map(str, hidden)) or "none"


AMORTISED = network_name(DEEPEST)


@dataclass(frozen=True)
class Variate:
    """A control variate of the paper, by the names of its parts.

    Attributes:
      hidden: the recognition network; `CONTEXT_FREE` for coefficients that see no context.
    """

    basis: str
    criterion: str
    hidden: Network
    order: str = APPLY_FIRST

    @property
    def network(self) -> str:
        """The name of the network in records; `plain` without a control variate."""
        return "plain" if self == PLAIN else network_name(self.hidden)

    @property
    def unlearned(self) -> "Variate":
        """The variate that represents all criteria and orders as long as nothing is learned."""
        return self if self == PLAIN else Variate(self.basis, "squared_difference", self.hidden)


PLAIN = Variate("linear", "none", CONTEXT_FREE, "none")
"""The absence of a control variate: plain Monte Carlo gradients."""


@dataclass(frozen=True)
class Sampling:
    """The design of a variance estimate: fresh batches, and fresh draws for each batch.

    The paper takes 100 gradients; draws nested in batches separate the two sources of noise.
    """

    batches: int = 50
    draws: int = 4


@dataclass(frozen=True)
class Illustration:
    """Figure 1: one weight, two points. Data and parameters are ours: the paper names neither.

    Attributes:
      harm: the least share of one point's variance that remains under the common variate.
      served: the largest share of either point's variance that remains under its own variate.
    """

    num_data: int = 60
    train_steps: int = 150
    draws: int = 4000
    harm: float = 1.5
    served: float = 0.2


@dataclass(frozen=True)
class Static:
    """Section 5.2: the model is frozen and its coefficients learn.

    Attributes:
      networks: networks for the paper's main setting, linear basis and squared difference.
      other_networks: networks for the other bases and criteria.
      partial_gradients_rates: learning rates for the criterion that the paper did not run.
    """

    frozen_after: tuple[int, ...] = (10, 200, 1000)
    measured_after: tuple[int, ...] = (1, 10, 30, 100, 300, 1000)
    bases: tuple[str, ...] = ("linear", "quadratic")
    criteria: tuple[str, ...] = CRITERIA
    networks: tuple[Network, ...] = NETWORKS
    other_networks: tuple[Network, ...] = NETWORKS
    learning_rates: tuple[float, ...] = (1e-2, 1e-3)
    partial_gradients_rates: tuple[float, ...] = (1e-2, 1e-3)

    def rates_for(self, criterion: str) -> tuple[float, ...]:
        """The learning rates of the coefficients that are run with a criterion."""
        partial = criterion == "partial_gradients"
        return self.partial_gradients_rates if partial else self.learning_rates

    def networks_for(self, basis: str, criterion: str) -> tuple[Network, ...]:
        """The networks that are run with a basis and a criterion."""
        main = (basis, criterion) == ("linear", "squared_difference")
        return self.networks if main else self.other_networks


@dataclass(frozen=True)
class Dynamic:
    """Section 5.3: model and coefficients learn together."""

    measured_after: tuple[int, ...] = (10, 200, 1000)
    bases: tuple[str, ...] = ("linear", "quadratic")
    criteria: tuple[str, ...] = CRITERIA
    networks: tuple[Network, ...] = EXTREMES
    learning_rates: tuple[float, ...] = (1e-2, 1e-3)
    orders: tuple[str, ...] = BOTH_ORDERS


@dataclass(frozen=True)
class OrderBias:
    """The bias of the paper's order of learning and applying, at frozen models.

    Attributes:
      learned_for: coefficient steps before the measurement.
      sampling: larger than for variances, because a bias is smaller than the noise around it.
    """

    learned_for: tuple[int, ...] = (10, 100, 1000)
    sampling: Sampling = Sampling(batches=200, draws=8)
    criteria: tuple[str, ...] = _TWO_CRITERIA
    networks: tuple[Network, ...] = EXTREMES


@dataclass(frozen=True)
class Traces:
    """Section 5.4: the bound on the whole data during training; always the linear basis."""

    num_steps: int = 2000
    nelbo_draws: int = 100
    nelbo_every: int = 1
    criteria: tuple[str, ...] = _TWO_CRITERIA
    networks: tuple[Network, ...] = EXTREMES
    orders: tuple[str, ...] = BOTH_ORDERS


@dataclass(frozen=True)
class StepTime:
    """Table 1: repetitions of `runs` dispatched steps, and of a compiled loop."""

    repetitions: int = 100
    runs: int = 10
    criteria: tuple[str, ...] = _TWO_CRITERIA
    networks: tuple[Network, ...] = EXTREMES


@dataclass(frozen=True)
class Plan:
    """All experiments on one model.

    Attributes:
      learning_rate: the rate of the model's Adam.
      main_learning_rate: the rate of the coefficients' Adam in the main figures and the traces.
      seeds: the number of independent runs.
    """

    model: str
    main_learning_rate: float
    seeds: int = 10
    batch_size: int = 10
    learning_rate: float = 1e-2
    sampling: Sampling = Sampling()
    static: Static = Static()
    dynamic: Dynamic = Dynamic()
    order_bias: OrderBias = OrderBias()
    traces: Traces = Traces()
    step_time: StepTime = StepTime()


PAPER = {
    "logistic": Plan("logistic", main_learning_rate=1e-2, sampling=Sampling(batches=100, draws=8)),
    "deep-gp": Plan(
        "deep-gp",
        main_learning_rate=1e-3,
        # A step on the last layer of [5·129, 2100] takes milliseconds; for logistic regression,
        # microseconds. So the two orders are compared in the traces and by their bias alone, and
        # partial gradients, the dearest criterion, learn at the main rate alone.
        static=Static(partial_gradients_rates=(1e-3,)),
        dynamic=Dynamic(orders=_UNBIASED),
        order_bias=OrderBias((10, 1000), Sampling(batches=50, draws=4), _MAIN),
        traces=Traces(nelbo_draws=10),
    ),
}

_SHORT = Static(
    frozen_after=(10, 1000),
    measured_after=(10, 100, 1000),
    bases=("linear",),
    other_networks=EXTREMES,
    learning_rates=(1e-2,),
    partial_gradients_rates=(1e-2,),
)
_SHORT_DYNAMIC = Dynamic(bases=("linear",), learning_rates=(1e-2,), orders=_UNBIASED)
QUICK = {
    "logistic": replace(
        PAPER["logistic"],
        seeds=3,
        static=_SHORT,
        dynamic=replace(_SHORT_DYNAMIC, criteria=_TWO_CRITERIA),
        order_bias=OrderBias(learned_for=(10, 1000), criteria=_MAIN),
        traces=Traces(num_steps=1000, orders=_UNBIASED),
        step_time=StepTime(repetitions=10),
    ),
    "deep-gp": replace(
        PAPER["deep-gp"],
        seeds=2,
        sampling=Sampling(batches=20, draws=4),
        static=replace(_SHORT, criteria=_MAIN, networks=EXTREMES, learning_rates=(1e-3,)),
        dynamic=replace(_SHORT_DYNAMIC, criteria=_MAIN, learning_rates=(1e-3,)),
        order_bias=OrderBias(criteria=()),  # logistic regression shows the bias
        traces=Traces(500, nelbo_draws=10, nelbo_every=10, criteria=_MAIN, orders=_UNBIASED),
        step_time=StepTime(repetitions=5),
    ),
}

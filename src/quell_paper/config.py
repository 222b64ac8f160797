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
_MAIN, _TWO_CRITERIA = CRITERIA[:1], CRITERIA[:2]
BATCH_SIZE = 10

FULL = "N/|B| Σ g"  # the gradient of the objective, and raw coefficients
SUM = "Σ g"  # the sum over the batch, and raw coefficients
UNIT = "unit"  # the library's way: centred, each leaf at unit spread, outliers clipped
SCALES = (FULL, SUM, UNIT)

Procedure = tuple[str, str]  # the scale of the targets, and the order of learning and applying
LITERAL: Procedure = (FULL, LEARN_FIRST)
OWN: Procedure = (UNIT, APPLY_FIRST)
PROCEDURES = (LITERAL, (SUM, LEARN_FIRST), OWN)

Network = tuple[int, ...]  # the widths of the hidden layers
CONTEXT_FREE: Network = ()
DEEPEST: Network = (128, 128, 128)
EXTREMES = (CONTEXT_FREE, DEEPEST)
# Narrow and wide, shallow and deep, and pairs of about the same number of weights.
NETWORKS = (CONTEXT_FREE, (16,), (128,), (512,), (16, 16, 16), (64, 64, 64), DEEPEST)


def network_name(hidden: Network) -> str:
    """The name of a network in records: `128-128-128`, or `none` without hidden layers.

    >>> network_name((16, 16)), network_name(())
    ('16-16', 'none')
    """
    return "-".join(map(str, hidden)) or "none"


AMORTISED = network_name(DEEPEST)


@dataclass(frozen=True)
class Variate:
    """A control variate of the paper, by the names of its parts; or another way to take gradients.

    Attributes:
      hidden: the recognition network; `CONTEXT_FREE` for coefficients that see no context.
      scale: the scale of the gradients from which coefficients learn.
      other: the name of an estimator that is not one of the paper's variates; otherwise empty.
    """

    basis: str
    criterion: str
    hidden: Network
    scale: str = FULL
    order: str = APPLY_FIRST
    other: str = ""

    @property
    def network(self) -> str:
        """The name of the network in records, or of the other estimator."""
        return self.other or network_name(self.hidden)

    @property
    def unlearned(self) -> "Variate":
        """The variate that represents all criteria and orders as long as nothing is learned."""
        if self.other:
            return self
        return Variate(self.basis, "squared_difference", self.hidden, self.scale)


def _other(name: str) -> Variate:
    return Variate("none", "none", CONTEXT_FREE, "none", "none", name)


PLAIN = _other("plain")
"""The absence of a control variate: plain Monte Carlo gradients."""
PAIRS = _other("pairs")
"""Two mirrored draws of each example, without a control variate."""
CLOSED_FORM = _other("closed-form")
"""The library's own best estimator, which takes pairs of draws."""


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
      settings: pairs of a target scale and a learning rate for these networks.
      all_stages: whether all of these networks learn at all stages; otherwise the two extremes
        alone, in the first setting, and the rest at the last stage.
      others: pairs of a basis and a criterion that run with the two extremes, in the first setting,
        at the last stage.
    """

    frozen_after: tuple[int, ...] = (10, 200, 1000)
    measured_after: tuple[int, ...] = (1, 10, 30, 100, 300, 1000)
    networks: tuple[Network, ...] = NETWORKS
    settings: tuple[tuple[str, float], ...] = ((FULL, 1e-2),)
    all_stages: bool = True
    others: tuple[tuple[str, str], ...] = (
        ("linear", "gradient_sum"),
        ("linear", "partial_gradients"),
    )

    def stages(self, main: bool, hidden: Network, setting: tuple[str, float]) -> tuple[int, ...]:
        """The stages at which a network learns."""
        shown = hidden in EXTREMES and setting == self.settings[0]
        return self.frozen_after if main and (self.all_stages or shown) else self.frozen_after[-1:]


@dataclass(frozen=True)
class Dynamic:
    """Section 5.3: model and coefficients learn together.

    Attributes:
      other_bases: bases beside the linear basis, with squared difference and the literal procedure.
    """

    measured_after: tuple[int, ...] = (10, 200, 1000)
    other_bases: tuple[str, ...] = ("quadratic",)
    criteria: tuple[str, ...] = _TWO_CRITERIA
    networks: tuple[Network, ...] = EXTREMES
    procedures: tuple[Procedure, ...] = PROCEDURES


@dataclass(frozen=True)
class OrderBias:
    """The bias of the paper's order of learning and applying, at frozen models.

    Attributes:
      learned_for: coefficient steps before the measurement.
      sampling: larger than for variances, because a bias is smaller than the noise around it.
    """

    learned_for: tuple[int, ...] = (10, 100, 1000)
    sampling: Sampling = Sampling(batches=200, draws=4)
    networks: tuple[Network, ...] = EXTREMES
    scales: tuple[str, ...] = (FULL, UNIT)


@dataclass(frozen=True)
class Traces:
    """Section 5.4: the bound on the whole data during training; always the linear basis.

    Attributes:
      nelbo_draws: draws for each point; 0 for exact quadrature, if one direction of noise matters.
    """

    num_steps: int = 2000
    nelbo_draws: int = 0
    nelbo_every: int = 1
    criteria: tuple[str, ...] = _TWO_CRITERIA
    networks: tuple[Network, ...] = EXTREMES
    procedures: tuple[Procedure, ...] = (*PROCEDURES, (UNIT, LEARN_FIRST))


@dataclass(frozen=True)
class StepTime:
    """Table 1: repetitions of `runs` dispatched steps, and of a compiled loop."""

    repetitions: int = 100
    runs: int = 10
    criteria: tuple[str, ...] = _TWO_CRITERIA
    networks: tuple[Network, ...] = EXTREMES


@dataclass(frozen=True)
class Plan:
    """All experiments on one model, for one batch of seeds.

    Attributes:
      learning_rate: the rate of the model's Adam.
      main_learning_rate: the rate of the coefficients' Adam in the main figures and the traces.
      seeds: the number of independent runs in a batch.
      looks: the most batches of seeds that a claim may take; after each, undecided claims are
        judged again, and their intervals account for it.
      batch: the number of this batch, from 0.
      experiments: the experiments that are run on the model.
    """

    model: str
    main_learning_rate: float
    seeds: int = 10
    looks: int = 4
    batch: int = 0
    learning_rate: float = 1e-2
    sampling: Sampling = Sampling()
    static: Static = Static()
    dynamic: Dynamic = Dynamic()
    order_bias: OrderBias = OrderBias()
    traces: Traces = Traces()
    step_time: StepTime = StepTime()
    experiments: tuple[str, ...] = EXPERIMENTS

    @property
    def seed_range(self) -> range:
        """The seeds of this batch; no two batches share a seed."""
        return range(self.batch * self.seeds, (self.batch + 1) * self.seeds)


_RATES = (1e-2, 1e-3)
# A step on the last layer of [5·129, 2100] takes milliseconds; for logistic regression,
# microseconds. So the deep GP runs fewer seeds and settings: what tells least is left out.
_DEEP = Plan(
    "deep-gp",
    main_learning_rate=1e-3,
    seeds=5,
    looks=3,
    static=Static(
        networks=tuple(network for network in NETWORKS if network != (512,)),
        settings=((FULL, 1e-3), (FULL, 1e-2), (UNIT, 1e-3)),
        all_stages=False,
    ),
    dynamic=Dynamic(other_bases=(), criteria=_MAIN, procedures=(LITERAL, OWN)),
    traces=Traces(nelbo_draws=10, nelbo_every=10, procedures=(LITERAL,)),
    experiments=("static", "dynamic", "traces", "table-1"),
)
PAPER = {
    "logistic": Plan(
        "logistic",
        main_learning_rate=1e-2,
        sampling=Sampling(batches=100, draws=8),
        static=Static(settings=tuple((scale, rate) for scale in SCALES for rate in _RATES)),
    ),
    "deep-gp": _DEEP,
    "deep-gp-1": replace(_DEEP, model="deep-gp-1", experiments=("static", "dynamic", "traces")),
}

# Compilation takes most of the time of the quick forms: they leave out the jobs that tell least,
# and keep the seeds.
_SHORT_DEEP = replace(
    _DEEP,
    seeds=4,
    looks=1,
    sampling=Sampling(batches=20, draws=4),
    static=Static((10, 1000), (10, 100, 1000), EXTREMES, ((FULL, 1e-3),), others=()),
    dynamic=replace(_DEEP.dynamic, procedures=(LITERAL,)),
    traces=Traces(500, 10, 10, criteria=_MAIN, procedures=(LITERAL,)),
    step_time=StepTime(repetitions=5, criteria=_MAIN),
)
QUICK = {
    # A part of the full run's jobs, with the same looks: what they decide, the full run decides.
    "logistic": replace(
        PAPER["logistic"],
        static=Static(settings=tuple((scale, 1e-2) for scale in (FULL, UNIT))),
        dynamic=Dynamic(other_bases=(), criteria=_MAIN, procedures=(LITERAL,)),
        traces=Traces(procedures=(LITERAL, (UNIT, LEARN_FIRST))),  # the starts differ: claim 7
        step_time=StepTime(criteria=_MAIN),
        experiments=tuple(name for name in EXPERIMENTS if name != "orders"),
    ),
    "deep-gp": _SHORT_DEEP,
    "deep-gp-1": replace(_SHORT_DEEP, model="deep-gp-1", experiments=("dynamic",)),
}

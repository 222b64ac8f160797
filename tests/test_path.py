"""A batch crosses few files on its way through the library; docs/architecture.md walks them."""

import sys
from pathlib import Path

import jax
import optax
import pytest
from conformance import problem

import quell
from quell.training.loop import compiled_loop, run_keys

ROOT = Path(quell.__file__).parent


class Crossed:
    """The files of the package in which a function ran, in the order of the first call."""

    def __init__(self):
        self.files = []

    def __enter__(self):
        self.before = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_):
        sys.setprofile(self.before)

    def _profile(self, frame, event, arg):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            name = path.relative_to(ROOT).as_posix()
            if name not in self.files:
                self.files.append(name)


@pytest.fixture
def setting():
    return problem(jax.random.key(0), dim=2, num_data=64)


def chain_route(objective, params, data) -> list[str]:
    """The files that a batch crosses from its draws to the update, with a recognition network."""
    network = quell.recognition_network((4,))
    control = quell.control_variate(jax.random.key(1), objective, params, data, network)
    optimizer = optax.chain(control, optax.sgd(0.1))
    state = optimizer.init(params)

    def step(key, params, state, batch):
        noise = objective.sample_noise(key, batch_size=8)
        grads = objective.gradient(params, noise, batch)
        return optimizer.update(grads, state, params, noise=noise, batch=batch)

    batch = jax.tree.map(lambda leaf: leaf[:8], data)
    with Crossed() as crossed:
        jax.eval_shape(step, jax.random.key(2), params, state, batch)
    return crossed.files


def fit_route(objective, params, data) -> list[str]:
    """The files that a batch crosses in one chunk of `fit` with the closed form."""
    key = jax.random.key(1)
    started = quell.closed_form().start(key, objective, params, data)
    settings = {"batch_size": 8, "length": 4}
    loop = compiled_loop(started, objective, optax.sgd(0.1), quell.reshuffle, **settings)
    keys = run_keys(key)
    carried = loop.start(keys, params)
    with Crossed() as crossed:
        jax.eval_shape(loop.advance, keys, carried, data, 0, 4)
    return ["training/fit.py", *crossed.files]  # fit calls the chunk


def test_a_batch_crosses_at_most_ten_files_on_the_optax_chain(setting):
    files = chain_route(*setting)
    assert len(files) <= 10, files


def test_a_batch_crosses_at_most_thirteen_files_in_fit_with_the_closed_form(setting):
    files = fit_route(*setting)
    assert len(files) <= 13, files


def test_the_architecture_page_walks_exactly_these_files(setting):
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text()
    for heading, route in (
        ("optax chain", chain_route(*setting)),
        ("`fit` with the closed form", fit_route(*setting)),
    ):
        _, _, rest = page.partition(f"### {heading}")
        section = rest.partition("\n#")[0]
        assert sorted(route) == sorted(f for f in route if f"`{f}`" in section)

"""Seeds from the test's own name, and float64 for a test that asks for it."""

import zlib

import jax
import pytest
from hypothesis import settings

settings.register_profile("default", max_examples=10, deadline=None, derandomize=True)
settings.load_profile("default")


# Long to compile: these of its rows stand for the others in the short run.
_TRUNK_ROWS = ("unbiased[linear-learned_trunk-partial_gradients]", "dtypes_are", "bad_shapes_are")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if "learned_trunk" in item.name and not any(row in item.name for row in _TRUNK_ROWS):
            item.add_marker("slow")


@pytest.fixture
def key(request):
    """A key that differs from test to test and never from run to run."""
    return jax.random.key(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def quick():
    """Compile in a hurry: for what runs but a few times."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def x64(quick):
    """float64 for the duration of one test."""
    with jax.enable_x64(True):
        yield

"""Seeds from the test's own name, and float64 for a test that asks for it."""

import os
import zlib

import jax
import pytest
from hypothesis import settings

settings.register_profile("default", max_examples=10, deadline=None, derandomize=True)
settings.register_profile(
    "long",
    parent=settings.get_profile("default"),
    max_examples=int(os.environ.get("QUELL_EXAMPLES", 1000)),
)
settings.load_profile("default")


# Long to compile: these of their rows stand for the others in the short run.
_STAND_INS = {
    "recognition_network_paper": (
        "unbiased[linear-",
        "vmap_over_seeds",
        "one_trace_serves",
        "mean_over_mini_batches",
    ),
}


# Long too: their neighbours of the same test stand for them in the short run.
_LONG_ROWS = (
    "test_after_a_kill_the_rest_is_done_and_the_result_is_the_same",
    "test_the_deep_gp_trains_with_and_without_hyperparameters",
    "test_python_blocks_run[natural_gradient.md]",
    "test_a_finished_run_is_returned_and_can_be_extended",
    "test_chain_partition_and_hyperparameters_give_the_same_steps",
    "test_bad_values_give_a_result_or_one_clear_sentence[recommend]",
    "test_bad_values_give_a_result_or_one_clear_sentence[measure]",
    "test_bad_values_give_a_result_or_one_clear_sentence[compare]",
    "test_python_blocks_run[recipes.md]",
    "test_a_fit_is_the_loop_written_out[with_replacement]",
    "test_partial_gradients_has_the_least_noise[at_the_start-centred]",
    "test_partial_gradients_has_the_least_noise[once_learned-centred]",
    "test_vmap_over_seeds_changes_nothing[hermite]",
    "test_one_trace_serves_a_thousand_steps_and_a_restored_state[recognition_network]",
    "test_shapes[3-noise2]",
    "test_shapes[2-noise1]",
    "test_any_inner_size_trains[2-4-True]",
    "test_vmap_over_seeds_changes_nothing[least_squares]",
    "test_vmap_over_seeds_changes_nothing[recognition_network]",
    "test_compositions_train[ensemble of svrg + taylor]",
    "test_compositions_train[svrg + controlled]",
    "test_titanic_is_within_a_hundredth_of_the_best_linear_model[full_covariance]",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        stood_for = any(
            model in item.name and not any(row in item.name for row in rows)
            for model, rows in _STAND_INS.items()
        )
        if stood_for or item.name in _LONG_ROWS:
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

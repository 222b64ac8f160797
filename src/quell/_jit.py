"""Compilations for work that takes less time than compiling it well."""

from functools import partial

import jax

quick_jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)
"""Compile in less than half of the time: for work that is neither timed nor long."""

rare_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
"""Compile in three quarters of the time, and run as fast: for loops and products that are rare."""

"""The commands: modules with NAME, HELP, add_arguments(parser) and run(args) -> exit code.

A module imports JAX when its command runs, so that `quell --help` answers at once.
"""

COMMANDS = ("reproduce", "compare", "bench")

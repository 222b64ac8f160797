"""The command line of quell: a parser, and modules with NAME, HELP, add_arguments and run.

Nothing of quell, and so no JAX, is imported before a command runs: `quell --help` answers at once.
"""

COMMANDS = ("reproduce", "compare", "bench")

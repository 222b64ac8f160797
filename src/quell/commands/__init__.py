"""The commands. Each module has NAME, HELP, add_arguments(parser) and run(args) -> exit code."""

from types import ModuleType

COMMANDS: tuple[ModuleType, ...] = ()

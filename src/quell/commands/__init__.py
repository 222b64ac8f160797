"""The commands: modules with NAME, HELP, add_arguments(parser) and run(args) -> exit code."""

from types import ModuleType

from quell.commands import bench, compare, reproduce

COMMANDS: tuple[ModuleType, ...] = (reproduce, compare, bench)

"""The command line as a module: `python -m quell`."""

import sys

from quell_cli.main import main

if __name__ == "__main__":
    sys.exit(main())

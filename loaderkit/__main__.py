"""`python -m loaderkit`: the command line."""

import sys

from loaderkit.cli.command import main

if __name__ == "__main__":
    sys.exit(main())

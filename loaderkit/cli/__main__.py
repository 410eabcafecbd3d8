"""`python -m loaderkit.cli`."""

import sys

from loaderkit.cli.command import main

sys.exit(main())

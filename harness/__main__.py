"""`python -m harness`: the sessions' plain interface, also where nox isn't installed."""

import sys

from harness.cli import main

sys.exit(main())

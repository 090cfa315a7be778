"""Entry point of ``python -m semistream.cli``."""

import sys

from semistream.cli import main

sys.exit(main())

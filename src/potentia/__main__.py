"""`python -m potentia`."""

import sys

from .cli import main

sys.exit(main())

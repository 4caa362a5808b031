"""`python -m deepstack_harness`."""

import sys

from deepstack_harness.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

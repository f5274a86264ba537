"""Runs the command `verify` for `python -m verify`."""

import sys

from verify.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""Runs the command `verify` for `python -m verify`."""

import sys

if not sys.flags.safe_path and __name__ == "__main__":
    sys.path.pop(0)  # the current folder: a file copy.py there is not Python's

from verify.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""Where the modules of some targets come from, as one line of JSON: module to file.

Start: python -m verify.sources BACKEND TARGET... (BACKEND may be empty). Targets that cannot be imported are left
out: whoever runs them hears of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys


def main(arguments: list[str]) -> int:
    """Import the targets and say which files that loaded."""
    from verify import backends
    from verify.declaration import Target, load
    from verify.errors import UsageError

    requested, *targets = arguments
    backends.activate(backends.select(requested or None))
    for target in targets:
        with contextlib.suppress(UsageError):
            load(Target.parse(target))
    # some modules that are made at run time name a file that is not there, such as torch's "_classes.py"
    files = {
        name: file
        for name, module in list(sys.modules.items())
        if isinstance(file := getattr(module, "__file__", None), str) and os.path.isabs(file)
    }
    print("\n" + json.dumps(files))  # on a line of its own, whatever the modules print
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

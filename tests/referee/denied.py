"""Runs a command as a container would: `python denied.py WORD... -- COMMAND`.

`unshare` and `landlock` deny these system calls; `user` gives up root.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

CALLS = {"unshare": ((272, 1),), "landlock": ((444, 38), (445, 38), (446, 38))}  # of x86_64, with the error
NOBODY = 65534


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def main(words: list[str], command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if "user" in words:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    steps = [(0x20, 0, 0, 0)]
    for number, error in (each for word in words for each in CALLS.get(word, ())):
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error)]
    code = b"".join(struct.pack("HBBI", *each) for each in [*steps, (0x06, 0, 0, 0x7FFF0000)])
    program = _Program(len(steps) + 1, ctypes.cast(ctypes.create_string_buffer(code), ctypes.c_void_p).value)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
    os.execvp(command[0], command)


if __name__ == "__main__":
    place = sys.argv.index("--")
    main(sys.argv[1:place], sys.argv[place + 1 :])

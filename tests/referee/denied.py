"""Runs a command as a container would: `python denied.py WORD... -- COMMAND`.

`docker` denies what the default profile of Docker denies, and `landlock` landlock's system calls; `user` gives up root.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

EPERM, ENOSYS = 1, 38
# numbers of x86_64: unshare, mount, umount2, pivot_root, setns, chroot, keys, bpf, perf, userfaultfd, handles, modules,
# the clock, swap, reboot, kexec, quota, io_uring, the newer mounts; then clone3, whose flags no filter can read
DOCKER = (272, 165, 166, 155, 308, 248, 249, 250, 321, 298, 323, 304, 175, 313, 176, 227, 159, 167, 168, 169, 246, 179)
DOCKER += (101, 310, 311, 312, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442)
CALLS = {
    "docker": [*((number, EPERM) for number in DOCKER), (435, ENOSYS)],
    "landlock": [(number, ENOSYS) for number in (444, 445, 446)],
}
CLONE, NAMESPACES = 56, 0x7E020000  # the flags of clone that make namespaces
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
    if "docker" in words:
        flags = [(0x20, 0, 0, 16), (0x45, 0, 1, NAMESPACES), (0x06, 0, 0, 0x50000 | EPERM)]
        steps += [(0x15, 0, len(flags), CLONE), *flags]
    code = b"".join(struct.pack("HBBI", *each) for each in [*steps, (0x06, 0, 0, 0x7FFF0000)])
    program = _Program(len(steps) + 1, ctypes.cast(ctypes.create_string_buffer(code), ctypes.c_void_p).value)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
    os.execvp(command[0], command)


if __name__ == "__main__":
    place = sys.argv.index("--")
    main(sys.argv[1:place], sys.argv[place + 1 :])

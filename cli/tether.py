"""Runs a command that dies with its parent: `python tether.py PARENT-PID COMMAND…`. Used by `supervisor.py`.

A small program of its own rather than code between fork and exec, which is unsafe in a process with threads. On Linux
the kernel then kills the command when the parent ends, however it ends (`prctl(PR_SET_PDEATHSIG)`); elsewhere it just
runs it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for the signal, make sure that the parent has not died before that, and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has ended")
    try:
        os.execvp(command[0], command)  # noqa: S606 — the supervisor's own command lines
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()

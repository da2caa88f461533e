"""Runs NVIDIA's control program of MPS, one command at a time, in a worker. The program may hang or print anything."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import suppress

from vfioctl.environment import OF_COMMANDS
from vfioctl.kernel.mps import MOST_OUTPUT, PROGRAM

SECONDS = 20.0
"""For one command. A daemon answers in milliseconds, but a busy host may start the program late."""
NOT_FOUND, NO_ANSWER = 127, 124
_PART = 1 << 14


def talk(pipes: str, command: str, *options: str, seconds: float = SECONDS) -> tuple[int, str]:
    """The exit code of the program, and what it printed: to `command` on its stdin, which is all that it gets. `pipes`:
    the directory of the daemon's pipes; empty for none. NOT_FOUND without the program; NO_ANSWER if it was killed."""
    environment = {**OF_COMMANDS, **({"CUDA_MPS_PIPE_DIRECTORY": pipes} if pipes else {})}
    try:
        process = subprocess.Popen(
            [PROGRAM, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return NOT_FOUND, f"{PROGRAM}: {error.strerror}"
    try:
        output, is_whole = _exchange(process, f"{command}\n" if command else "", time.monotonic() + seconds)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it may have left behind
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()
        code = process.wait()
    return (code if is_whole else NO_ANSWER), output.decode("utf-8", "replace").strip()


def _exchange(process: subprocess.Popen[bytes], text: str, until: float) -> tuple[bytes, bool]:
    """What the program prints until it ends, and whether it has ended: not after `until`, or MOST_OUTPUT bytes."""
    assert process.stdin
    assert process.stdout
    with suppress(BrokenPipeError):  # a program that does not read it says why
        process.stdin.write(text.encode())
        process.stdin.close()
    output = b""
    while len(output) < MOST_OUTPUT:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return output, False
        part = os.read(process.stdout.fileno(), _PART)
        if not part:
            break
        output += part
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.05, until - time.monotonic()) if len(output) < MOST_OUTPUT else 0.05)
        return output[:MOST_OUTPUT], True
    return output[:MOST_OUTPUT], len(output) >= MOST_OUTPUT

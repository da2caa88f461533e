"""vfioctl's command line in a forked child: exit code and streams as of the installed command.

Starting Python and importing takes seconds in the lab; a child that has all of it already takes none.
"""

import importlib
import os
import pkgutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import IO, NamedTuple

import pyudev  # noqa: F401 - a worker imports it

import vfioctl as package
from vfioctl.app import main, places
from vfioctl.console.lazy import built, subcommands

LONGEST_SECONDS = 400.0

for _module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    # a command imports what it needs; each child would begin with that anew
    importlib.import_module(_module.name)
_group = built(places())
for _name, _place in _group.places.items():
    # and so is what typer makes of it
    for _word in ("", *subcommands(importlib.import_module(_place.module))):
        _group.load(_name, [_word])


class Answer(NamedTuple):
    """What a command said, and its exit code; minus the signal's number where one ended it."""

    returncode: int
    stdout: str
    stderr: str


class Running:
    """A command under way. `begin`: the moment of `time.monotonic` at which it begins."""

    def __init__(self, ledger: Path, *words: str, begin: float = 0.0) -> None:
        self._out, self._err = _unnamed(), _unnamed()
        self.pid = os.fork()
        if self.pid == 0:
            _become(["--ledger", str(ledger), *words], self._out, self._err, begin=begin)

    def answer(self) -> Answer:
        """Waits for its end; kills it, and raises TimeoutError, when it takes too long."""
        until = time.monotonic() + LONGEST_SECONDS
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.kill(self.pid, 9)
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"still running after {LONGEST_SECONDS} s: {_text(self._err)}")
            time.sleep(0.005)
        return Answer(os.waitstatus_to_exitcode(ended[1]), _text(self._out), _text(self._err))


def vfioctl(ledger: Path, *words: str) -> Answer:
    """One command line, from its beginning to its end."""
    return Running(ledger, *words).answer()


def _unnamed() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _text(stream: IO[bytes]) -> str:
    with stream:
        stream.seek(0)
        return stream.read().decode()


def _become(words: list[str], out: IO[bytes], err: IO[bytes], *, begin: float) -> None:
    code = 70
    try:
        os.setsid()
        for number, descriptor in enumerate((os.open("/dev/null", os.O_RDONLY), out.fileno(), err.fileno())):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        while time.monotonic() < begin:
            pass
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - a bug is told too, and never reaches the rest of the test in this child
        os.write(2, traceback.format_exc().encode())
    os._exit(code)

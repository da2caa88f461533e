"""What QEMU would get: libvirt's command lines for documents, and a small reader of them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

DRIVER = Path(__file__).with_name("native_driver.py")
_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so")
_PROGRAMS = ("unshare", "mount", "qemu-system-x86_64")
SECONDS = 240


def why_not() -> str:
    """Return what libvirt's driver needs and this machine does not have; empty if it can be asked."""
    if os.geteuid() != 0:
        return "needs root, for a mount namespace of its own"
    if not _LIBRARY.exists():
        return "needs the Debian package libvirt-daemon-driver-qemu"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    return f"needs {', '.join(missing)}" if missing else "" if os.access("/dev/kvm", os.R_OK) else "needs /dev/kvm"


class Native(NamedTuple):
    """What libvirt answered. `version`: 1000000 * major + 1000 * minor + release."""

    version: int
    answers: Mapping[str, Mapping[str, str]]
    """`command`, or `refused`, for each document."""


def native(documents: Mapping[str, str], folder: Path) -> Native:
    """Ask libvirt for the command lines of documents. `folder`: an empty one, which stays."""
    home = folder / "libvirt"
    home.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, str(DRIVER), str(home)],
        input=json.dumps(documents),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={"PATH": f"{home}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home), "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Native(**json.loads(done.stdout))


class Argument(NamedTuple):
    """An option of QEMU and its value: JSON, or words and key=value, with the first word as `driver`."""

    option: str
    says: Mapping[str, Any]


def arguments(command: str) -> list[Argument]:
    """Read a command line as libvirt writes one: variables, the program, options."""
    words = shlex.split(command)
    return [Argument(option[1:], _says(value)) for option, value in pairwise(words) if option.startswith("-")]


def _says(value: str) -> dict[str, Any]:
    if value.startswith("{"):
        found: dict[str, Any] = json.loads(value)
        return found
    first, *rest = value.split(",")
    said = dict(each.partition("=")[::2] for each in rest)
    return said | (dict([first.partition("=")[::2]]) if "=" in first else {"driver": first})

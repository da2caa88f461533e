"""A private stage: a synthetic host mounted over /sys where only this program and its children see it.

The mounts live in a mount namespace that ends with its last process, whatever happens to the program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import synthetic
from bench.topology import Planned

_MARK = "VFIOCTL_BENCH_OUTSIDE"


def enter(module: str, arguments: Sequence[str]) -> None:
    """Returns inside a private mount namespace; outside of one, runs the module in one and exits with its status."""
    outside = os.environ.get(_MARK)
    if outside is None:
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        command = ["unshare", "--mount", "--propagation", "private", *as_root, sys.executable, "-m", module, *arguments]
        environment = {**os.environ, _MARK: _namespace()}
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    if outside == _namespace():
        sys.exit("no private mount namespace: nothing is mounted over the machine's own /sys")


def _namespace() -> str:
    return os.readlink("/proc/self/ns/mnt")


@contextmanager
def no_modules() -> Iterator[None]:
    """Inside `host`: a kernel without a module index, as in a container."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="vfioctl-bench-"))
        _mount(stack, "--bind", folder, "/lib/modules")
        yield


@contextmanager
def host(functions: int) -> Iterator[Sequence[Planned]]:
    """A host with so many functions in the place of this machine's /sys, module index and command line."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vfioctl-bench-")))
        _mount(stack, "-t", "tmpfs", "-o", "size=8g,nr_inodes=0", "vfioctl-bench", str(folder))
        planned = synthetic.write(folder / "host", functions)
        for place in ("/lib/modules", "/proc/cmdline", "/sys"):
            _mount(stack, "--bind", f"{folder}/host{place}", place)
        yield planned


def _mount(stack: ExitStack, *arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
    stack.callback(subprocess.run, ["umount", "--lazy", arguments[-1]], check=True)

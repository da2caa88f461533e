"""Root's vfioctl where another user chose its surroundings: umask, PATH, directory, variables, open descriptors.

Each is one that `su`, a careless sudoers file or a script of root's lets through.
"""

import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vfioctl as package
from tests.lab.inside import pci
from tests.lab.inside.topology import Topology

NOBODY = 65534
COMMAND = Path(sys.executable).with_name("vfioctl")
MOST_DESCRIPTORS = 256
TOOLS = ("modprobe", "systemctl", "sriov-manage", "mdevctl", "udevadm", "ldconfig", "gcc", "ld", "sh", "env")
MODULES = ("json.py", "sqlite3.py", "pydantic.py", "rich.py", "sitecustomize.py", "vfioctl/__init__.py")
DEFINITIONS = Path("/etc/vfioctl")
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A directory of another user's, with commands and modules named like those that vfioctl uses."""
    place = tmp_path / "theirs"
    (place / "vfioctl").mkdir(parents=True)
    for name in TOOLS:
        (place / name).write_text(f"#!/bin/sh\necho {name} >> {place}/ran\n")
        (place / name).chmod(0o755)
    for name in MODULES:
        (place / name).write_text(f"open({str(place / 'ran')!r}, 'a').write({name!r})\n")
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    return place


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """The directory of root's ledger, which the umask of a careless caller does not reach."""
    place = tmp_path / "ours"
    place.mkdir()
    place.chmod(0o755)
    return place


@pytest.fixture
def definitions() -> Iterator[Path]:
    assert not DEFINITIONS.exists()
    yield DEFINITIONS
    shutil.rmtree(DEFINITIONS, ignore_errors=True)


def vfioctl(theirs: Path, ours: Path, line: str, mask: int) -> None:
    """One command line of the installed command; fails unless it succeeds and nothing of theirs has run."""
    environment = {
        "PATH": f"{theirs}:.:/usr/local/bin",
        "PYTHONPATH": str(Path(package.__file__).parents[1]),
        "BASH_ENV": str(theirs / "sh"),
        "ENV": str(theirs / "sh"),
        "TMPDIR": str(theirs),
        "MODPROBE_OPTIONS": "--dry-run",
    }
    done = subprocess.run(
        [str(COMMAND), "--ledger", str(ours / "ledger.db"), *line.split()],
        cwd=theirs,
        env=environment,
        umask=mask,
        preexec_fn=_use_all_descriptors,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (theirs / "ran").exists(), (theirs / "ran").read_text()


def _use_all_descriptors() -> None:
    """Leaves a few for the interpreter to start with."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS))
    for fd in range(12, MOST_DESCRIPTORS):
        os.dup2(0, fd, inheritable=True)


def writable_by_others(place: Path) -> list[str]:
    return [str(path) for path in (place, *place.rglob("*")) if path.stat().st_mode & WRITABLE_BY_OTHERS]


def test_a_card_goes_and_comes_back(lab: Topology, theirs: Path, ours: Path) -> None:
    """With vfio-pci not loaded, so that modprobe has to be found, and found in the right place."""
    subprocess.run(["modprobe", "--remove", "vfio-pci"], check=False, capture_output=True, timeout=60)
    assert not (pci.DRIVERS / "vfio-pci").exists()
    before = pci.driver_of(lab.display)
    vfioctl(theirs, ours, f"bind {lab.display} --yes", 0o000)
    assert {pci.driver_of(address) for address in lab.card} == {"vfio-pci"}
    vfioctl(theirs, ours, f"unbind {lab.display} --yes", 0o000)
    assert pci.driver_of(lab.display) == before
    assert (ours / "ledger.db").exists()
    assert writable_by_others(ours) == []


def test_what_is_kept_over_a_reboot_is_roots(lab: Topology, theirs: Path, ours: Path, definitions: Path) -> None:
    """All can read it, and only root can write it, whatever umask root came with."""
    vfioctl(theirs, ours, f"sriov set {lab.nvme} 2 --persistent --yes", 0o077)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (definitions, *definitions.rglob("*"))}
    assert set(found.values()) == {0o755, 0o644}
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o755}
    assert writable_by_others(ours) == []

"""Builds the packages that these tests install, once for all of them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from vfioctl import __version__

ROOT = Path(__file__).parents[3]
EARLIER = "0.1.9"


class Built(NamedTuple):
    """What the tests install."""

    wheel: Path
    sdist: Path
    wheels: Path
    """Those of the libraries."""
    deb: Path
    earlier: Path
    """A package of an earlier version, with a command that is no more, and another unit."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    out, wheels = tmp_path_factory.mktemp("built"), ROOT / "dist/wheels"
    assert (wheels / "made").exists(), "make dist/wheels/made"
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    command = [sys.executable, "packaging/deb/build.py", str(wheel), str(wheels), str(out), "--compress", "gzip"]
    subprocess.run(command, cwd=ROOT, check=True)
    (deb,) = out.glob("*.deb")
    return Built(wheel, sdist, wheels, deb, _earlier(deb, out / "earlier"))


def _earlier(deb: Path, folder: Path) -> Path:
    tree = folder / "tree"
    folder.mkdir()
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    site = tree / "opt/vfioctl/lib/python3.11/site-packages"
    for file in (
        tree / "DEBIAN/control",
        site / "vfioctl/__init__.py",
        tree / "usr/lib/systemd/system/vfioctl-early.service",
    ):
        text = file.read_text()
        assert __version__ in text or file.suffix == ".service"
        file.write_text(text.replace(__version__, EARLIER).replace("TimeoutStartSec=10\n", "TimeoutStartSec=11\n"))
    for retired in (site / "vfioctl/commands/retired.py", site / "vfioctl/retired/__init__.py"):
        retired.parent.mkdir(exist_ok=True)
        retired.write_text("")
    shutil.copy(tree / "usr/share/man/man1/vfioctl-man.1.gz", tree / "usr/share/man/man1/vfioctl-retired.1.gz")
    package = folder / re.sub(r"_[0-9.]+-", f"_{EARLIER}-", deb.name)
    command = ["dpkg-deb", "-Zgzip", "--root-owner-group", "--build", str(tree), str(package)]
    subprocess.run(command, check=True, capture_output=True)
    return package

"""What several tests of the kernel's package need."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from vfioctl.kernel.feeds import Feed, Lost

SOURCE = Path(__file__).resolve().parents[2] / "standin" / "nvml.c"


@pytest.fixture(scope="module")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the stand-in for NVML is in, compiled from tests/standin/nvml.c."""
    assert shutil.which("gcc"), "the stand-in for NVML is compiled: apt-get install gcc libc6-dev"
    folder = tmp_path_factory.mktemp("nvml")
    command = ["gcc", "-D_GNU_SOURCE", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(SOURCE)]
    subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1")], check=True)
    return folder


def lost(feed: Feed, seconds: float = 30.0) -> Lost:
    """What the feed ends with, which has no notices until then."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            assert feed.read() == []
        except Lost as reason:
            return reason
        time.sleep(0.02)
    pytest.fail("it is still followed")

"""Fixtures of the tests in the lab, and the guard that keeps them off any machine that is not the lab."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.inside import holder, mdev, pci, topology

IN_LAB = Path("/run/lab/sources").is_mount() and "VFIOCTL_LAB_RESULTS" in os.environ
# elsewhere these tests would take real devices from a real machine
collect_ignore_glob = [] if IN_LAB else ["*"]

PUT_BACK_SECONDS = 30
Hold = Callable[[str], "subprocess.Popen[str]"]
Load = Callable[..., None]
BindVfs = Callable[..., list[str]]
WriteApart = Callable[[Path, str], mdev.Writer]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A file named on the command line is collected all the same."""
    if not IN_LAB:
        pytest.skip("only in the lab: python tests/lab/boot.py")


def pytest_collection_finish() -> None:
    """Everything is imported: the collector need not look at it again, in this process or in those it forks."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def results() -> Path:
    """The folder whose files are on the build machine when the lab is gone."""
    return Path(os.environ["VFIOCTL_LAB_RESULTS"])


@pytest.fixture(scope="session")
def lab() -> topology.Topology:
    """The addresses of the lab's devices, by the part they play."""
    return topology.look_up()


@pytest.fixture(scope="session")
def original_drivers() -> dict[str, str | None]:
    """Every function and its driver as the machine booted."""
    return pci.drivers()


@pytest.fixture(autouse=True)
def drivers_put_back(original_drivers: dict[str, str | None]) -> Iterator[None]:
    """After each test every function is on its boot-time driver again, by plain sysfs writes, or the test errors."""
    yield
    pci.within(PUT_BACK_SECONDS, lambda: pci.put_back(original_drivers))


@pytest.fixture
def load(drivers_put_back: None) -> Iterator[Load]:
    """Inserts one of the lab's own modules, `load("mbochs", count=100)`; all of it goes with the test."""
    loaded: list[str] = []

    def insert(module: str, **parameters: object) -> None:
        mdev.load(module, **parameters)
        loaded.append(module)

    yield insert
    for module in reversed(loaded):
        if mdev.is_loaded(module):
            mdev.unload(module)


@pytest.fixture
def bind_vfs(lab: topology.Topology, load: Load) -> BindVfs:
    """Loads a stand-in and puts so many VFs on it, as the driver named nvidia."""

    def bind(module: str, count: int, **parameters: object) -> list[str]:
        load(module, **parameters)
        functions = mdev.enable_vfs(lab.nvme, count, autoprobe=False)
        for function in functions:
            pci.bind_to(function, "nvidia")
        return functions

    return bind


@pytest.fixture
def write_apart(load: Load) -> Iterator[WriteApart]:
    """Starts a sysfs write that may block. All have ended when the test has, after those that they wait for."""
    started: list[mdev.Writer] = []

    def start(path: Path, text: str) -> mdev.Writer:
        started.append(mdev.Writer(path, text))
        return started[-1]

    yield start
    for writer in started:
        writer.kill()
        assert writer.status(PUT_BACK_SECONDS) is not None, f"still blocked in:\n{writer.stack()}"


@pytest.fixture
def hold(write_apart: WriteApart) -> Iterator[Hold]:
    """Starts a process that holds an address or a UUID open through vfio; returns once it holds.

    All are ended with the test, before a module goes that they hold.
    """
    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-S", "-E", holder.__file__, name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()

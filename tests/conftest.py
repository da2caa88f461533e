"""What all tests share."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vfioctl.core.marks import Mark
    from vfioctl.host import Host


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported and collected stays: the collector need not look at it again and again.

    Tests that are alone count children and descriptors, which garbage of others may still have."""
    if session.config.option.markexpr == "alone":
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard() -> Iterator[None]:
    """A suite started in the background, or with nohup, inherits that signals are ignored; what it tests must not."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: the store syncs each transaction, thousands of times in some tests."""
    with memory(tmp_path) as folder:
        yield folder


@contextmanager
def memory(otherwise: Path | None = None) -> Iterator[Path]:
    """A new folder that is gone in the end, in memory where that can be."""
    shared = Path("/dev/shm")
    place = shared if os.access(shared, os.W_OK) else otherwise
    with tempfile.TemporaryDirectory(dir=place, prefix="vfioctl-test-") as folder:
        yield Path(folder)


@contextmanager
def no_descriptor_left_open() -> Iterator[None]:
    """What is opened meanwhile is closed in the end. Garbage of other tests closes its own before, or after."""
    gc.collect()
    gc.disable()
    try:
        before = set(os.listdir("/proc/self/fd"))
        yield
        assert set(os.listdir("/proc/self/fd")) - before == set()
    finally:
        gc.enable()


def marks_of(host: Host) -> Mapping[str, Mark]:
    """The wedged and dead devices of this boot, by address."""
    return host.session.journal.marks(boot_id=host.session.boot_id)

"""What local users and pods can do to the service: connect to nothing, and choose no owner of a claim."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from vfioctl.errors import BadSpec
from vfioctl.kubelet.model.device import Pod
from vfioctl.kubelet.serving.loop import Loop
from vfioctl.kubelet.serving.plugin import Plugin
from vfioctl.kubelet.serving.state import State


@pytest.fixture
def _umask() -> Iterator[None]:
    """As every command of root has it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_umask")
def test_only_root_may_connect(tmp_path: Path) -> None:
    """Connecting to a socket needs the permission to write it, unix(7)."""
    calls: Any = None
    with ThreadPoolExecutor(2) as threads, Loop() as loop:
        plugin = Plugin(tmp_path / "vfioctl-x.sock", calls, loop, threads)
        plugin.serve()
        mode = plugin.socket.stat().st_mode
        plugin.refuse_calls()
        plugin.end()
    assert stat.S_ISSOCK(mode)
    assert not mode & 0o022
    assert not plugin.socket.exists()


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_everybody_may_read_the_state_and_nobody_else_write_it(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        state = State(str(tmp_path / "run"), tmp_path / "ledger.db", ["nvidia.com/A100"])
        state.write()
    finally:
        os.umask(before)
    file = tmp_path / "run/kubelet.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o755
    state.remove()
    state.pods("a thread is late")
    assert not file.exists()


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\nb", "../x", "é", "x" * 300])
def test_the_name_of_a_pod_is_checked_before_it_owns_a_claim(name: str) -> None:
    assert Pod("default", "train-0", "main").owner == "pod/default/train-0/main"
    with pytest.raises(BadSpec):
        _ = Pod("default", name, "main").owner

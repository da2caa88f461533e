"""How a call that did not come back is told, and who has the lock that it left behind."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vfioctl.errors import Busy
from vfioctl.kernel.live.changes import _write_never_returned
from vfioctl.kernel.live.use import never_returned
from vfioctl.kernel.lock import held
from vfioctl.kernel.worker.stall import Unreturned

STACK = """[<0>] vfio_unregister_group_dev+0x9c/0x140 [vfio]
[<0>] vfio_pci_core_unregister_device+0x1e/0x70 [vfio_pci_core]
[<0>] pci_device_remove+0x3e/0xb0
[<0>] device_release_driver_internal+0x19f/0x200
[<0>] unbind_store+0xa4/0xb0
[<0>] kernfs_fop_write_iter+0x11f/0x1f0
[<0>] vfs_write+0x234/0x3e0
[<0>] __x64_sys_write+0x19/0x20"""


def late(**shown: str) -> Unreturned:
    """Of a worker that was never made, as the kernel would show it."""
    found = Unreturned(99_999_999, 30.0)
    found.state = shown
    return found


def test_a_write_names_its_file_and_where_in_the_kernel_it_is() -> None:
    error = _write_never_returned("/sys/x/unbind", "0000:41:00.0", late(stat="D", wchan="vfio_wait", stack=STACK))
    assert error.message == "writing '0000:41:00.0' to /sys/x/unbind did not return in 30 s"
    assert error.kernel_said == (
        "process 99999999 is in state D, in vfio_wait, called by vfio_unregister_group_dev <- "
        "vfio_pci_core_unregister_device <- pci_device_remove <- device_release_driver_internal <- unbind_store <- "
        "kernfs_fop_write_iter"
    )
    assert error.next_command == "vfioctl recover"
    assert (error.facts["path"], error.facts["pid"], error.facts["stack"]) == ("/sys/x/unbind", 99_999_999, STACK)


@pytest.mark.parametrize("stack", ["", "nonsense", "[<0>] 0xffffffff", "\n"])
def test_a_stack_that_cannot_be_read_is_left_out(stack: str) -> None:
    shown = {"stat": "D", "wchan": "0"} | ({"stack": stack} if stack else {})
    error = never_returned("modprobe vfio-pci", "a hint", late(**shown))
    assert error.kernel_said == "process 99999999 is in state D, in 0"
    assert (error.message, error.hint) == ("modprobe vfio-pci did not return in 30 s", "a hint")


def test_of_a_process_that_shows_nothing_it_says_so() -> None:
    error = never_returned("x", "", late())
    assert error.kernel_said == "process 99999999 is in state ?, in ?"
    assert error.facts["ticket"] == "99999999:", "it has ended"


class TestTheLock:
    def test_of_one_that_is_at_work_says_who(self, tmp_path: Path) -> None:
        with held(tmp_path / "lock", wait=0), pytest.raises(Busy) as caught, held(tmp_path / "lock", wait=0):
            pytest.fail("held twice")
        assert caught.value.message == f"another vfioctl is changing this host (process {os.getpid()})"
        assert caught.value.hint == "wait for it to finish"

    def test_of_one_that_has_gone_says_what_it_left(self, tmp_path: Path) -> None:
        lock = tmp_path / "lock"
        with subprocess.Popen([sys.executable, "-c", ""]) as gone:
            pass
        lock.write_text(f"{gone.pid}\n")
        fd = os.open(lock, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            with pytest.raises(Busy) as caught, held(lock, wait=0):
                pytest.fail("held twice")
        finally:
            os.close(fd)
        assert caught.value.message == (f"a write that process {gone.pid} started is still under way in the kernel")
        assert "recover" in caught.value.hint

    @pytest.mark.parametrize("text", ["", "x", "\0\0", "9" * 100])
    def test_of_nobody_knows_whom_is_just_held(self, tmp_path: Path, text: str) -> None:
        lock = tmp_path / "lock"
        lock.write_text(text)
        fd = os.open(lock, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            with pytest.raises(Busy), held(lock, wait=0):
                pytest.fail("held twice")
        finally:
            os.close(fd)

"""Expansion ROMs on a real kernel: enabled, read and disabled; unreadable ones with the reason."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.inside.pci import DEVICES, bind_to_vfio
from tests.lab.inside.topology import Topology
from vfioctl.binding.resources.rom import RomSwitch
from vfioctl.core.change import Change, JournalState
from vfioctl.errors import KernelRefused
from vfioctl.host import Host
from vfioctl.kernel.live.host import Live

MEMORY_DECODED = 0x2


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Reading a ROM is journaled."""
    return Host.live(tmp_path / "ledger.db")


def symbol(address: str) -> str:
    """What the kernel says of a plain read of the file `rom`."""
    try:
        (DEVICES / address / "rom").read_bytes()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


@contextmanager
def memory_off(address: str) -> Iterator[None]:
    """The function, deaf for its memory addresses."""
    command = (DEVICES / address / "config").read_bytes()[4:6]
    fd = os.open(DEVICES / address / "config", os.O_WRONLY)
    try:
        os.pwrite(fd, bytes([command[0] & ~MEMORY_DECODED, command[1]]), 4)
        yield
    finally:
        os.pwrite(fd, command, 4)
        os.close(fd)


def test_is_read_whole_judged_and_switched_off_again(host: Host, lab: Topology) -> None:
    assert symbol(lab.display) == "EINVAL", "it is off at first"
    data, rom = host.binding.rom(lab.display)
    assert rom.is_sound, rom.faults
    assert [(image.kind, image.checksum_holds, image.last) for image in rom.images] == [("x86", True, True)]
    assert rom.size == len(data) > 4096
    assert symbol(lab.display) == "EINVAL", "it is off again"
    assert [(entry.plan.intent.verb, entry.state) for entry in host.history()] == [("rom", JournalState.DONE)]


def test_one_that_was_left_on_is_switched_off_by_what_a_rollback_writes(lab: Topology) -> None:
    file = str(DEVICES / lab.display / "rom")
    change = Change(kind="rom", name=file, subject=lab.display, before="on", after="off")
    (off,) = RomSwitch().steps(change)
    Live().write(file, "1")
    try:
        assert symbol(lab.display) == ""
    finally:
        Live().write(off.target, off.value)
    assert symbol(lab.display) == "EINVAL"


def test_of_a_device_on_vfio_is_read_too(host: Host, lab: Topology) -> None:
    before, _ = host.binding.rom(lab.display)
    bind_to_vfio(lab.display)
    assert Live().rom(lab.display) == before


def test_does_not_answer_while_memory_is_not_decoded(host: Host, lab: Topology) -> None:
    with memory_off(lab.display), pytest.raises(KernelRefused) as caught:
        host.binding.rom(lab.display)
    assert caught.value.symbol == "EIO"
    assert "does not answer to its memory addresses" in caught.value.hint
    assert caught.value.facts["memory_decoded"] is False
    assert symbol(lab.display) == "EINVAL"
    assert host.history()[0].state == JournalState.BACK


def test_of_a_function_without_one(host: Host, lab: Topology) -> None:
    with pytest.raises(KernelRefused) as caught:
        host.binding.rom(lab.audio)
    assert caught.value.symbol == "ENOENT"
    assert "has no expansion ROM" in caught.value.hint
    assert host.history()[0].state == JournalState.BACK, "there is nothing to switch off"


def test_the_header_has_the_ids_that_sysfs_has(lab: Topology) -> None:
    for address in (lab.display, lab.audio, lab.nvme):
        header = Live().config(address)
        ids = [int((DEVICES / address / name).read_text(), 16) for name in ("vendor", "device")]
        assert [int.from_bytes(header[at : at + 2], "little") for at in (0, 2)] == ids
        assert len(header) == 64


def test_the_header_of_a_virtual_function_has_no_ids(lab: Topology) -> None:
    """All ones there, and the function is alive: what says that it is dead is the whole header."""
    (DEVICES / lab.nvme / "sriov_numvfs").write_text("1")
    vf = Path(os.path.realpath(DEVICES / lab.nvme / "virtfn0")).name
    header = Live().config(vf)
    assert header[:4] == b"\xff" * 4
    assert header.strip(b"\xff")

"""Configuration space and ROM: as sysfs wants to be asked, outlived when it blocks, and made up for a recorded host."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import copy, original, unhurried
from vfioctl.errors import HostError, KernelRefused, Stuck
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.live import use
from vfioctl.kernel.live import use as live_use
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.timeouts import Timeouts

GPU, ROM_HOLDER = "0000:0a:00.0", "0000:0b:00.0"


class Rom:
    """The file `rom` as the kernel has it: what is written switches it, and what is read is the ROM."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.written, self.read = path, list[tuple[bytes, int]](), os.pread
        monkeypatch.setattr(os, "pwrite", self._write)
        monkeypatch.setattr(os, "pread", self._read)

    @property
    def is_on(self) -> bool:
        """As the older kernels have it: off by two bytes that begin with 0 at offset 0, on by anything else."""
        return bool(self.written) and not (self.written[-1][0][:1] == b"0" and len(self.written[-1][0]) == 2)

    def _write(self, _fd: int, data: bytes, offset: int) -> int:
        self.written.append((data, offset))
        return len(data)

    def _read(self, fd: int, size: int, offset: int) -> bytes:
        if not self.is_on:
            raise OSError(errno.EINVAL, "off")
        return self.read(fd, min(size, 4096), offset)


@pytest.fixture
def rom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rom:
    (tmp_path / "rom").touch()
    return Rom(tmp_path / "rom", monkeypatch)


class TestReading:
    def test_config_is_its_first_64_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "config").write_bytes(bytes(range(256)))
        assert use.read_config(str(tmp_path / "config")) == bytes(range(64))

    def test_rom_is_on_while_it_is_read(self, rom: Rom) -> None:
        rom.path.write_bytes(bytes(range(256)) * 700)
        assert use.read_rom(str(rom.path)) == bytes(range(256)) * 700
        assert [offset for _, offset in rom.written] == [0, 0]
        assert not rom.is_on

    def test_rom_is_off_again_when_it_could_not_be_read(self, rom: Rom, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_fd: int, _size: int, _offset: int) -> bytes:
            raise OSError(errno.EIO, "no signature")

        monkeypatch.setattr(os, "pread", fail)
        with pytest.raises(OSError, match="no signature"):
            use.read_rom(str(rom.path))
        assert len(rom.written) == 2
        assert not rom.is_on

    def test_rom_is_no_more_than_a_bar_can_hold(self, rom: Rom) -> None:
        os.truncate(rom.path, 1 << 34)
        assert len(use.read_rom(str(rom.path))) == 16 << 20

    @pytest.mark.parametrize("read", [use.read_config, use.read_rom])
    def test_what_is_not_there_is_an_oserror(self, tmp_path: Path, read: Callable[[str], bytes]) -> None:
        with pytest.raises(FileNotFoundError):
            read(str(tmp_path / "none"))


class TestThisMachine:
    """Both files of a function in a directory that stands in for sysfs."""

    @pytest.fixture
    def device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(live_use, "PCI_DEVICES", str(tmp_path))
        (tmp_path / GPU).mkdir()
        return tmp_path / GPU

    def test_answers(self, device: Path) -> None:
        (device / "config").write_bytes(b"\xde\x10" * 128)
        assert Live().config(GPU) == b"\xde\x10" * 32
        (device / "rom").write_bytes(b"  what it holds")  # the switch is written over its first two bytes
        assert Live().rom(GPU) == b"1\nwhat it holds"

    def test_refused_says_why(self, device: Path) -> None:
        for ask, name in ((Live().config, "config"), (Live().rom, "rom")):
            with pytest.raises(KernelRefused) as caught:
                ask(GPU)
            assert (caught.value.symbol, caught.value.path) == ("ENOENT", str(device / name))

    def test_that_never_answers_is_stuck(self, device: Path) -> None:
        os.mkfifo(device / "config")
        with pytest.raises(Stuck, match=r"config did not return in 0\.3 s") as caught:
            Live(timeouts=Timeouts(default=0.3)).config(GPU)
        assert caught.value.facts["stat"] == "S"

    @pytest.mark.usefixtures("device")
    @pytest.mark.alone
    def test_whose_process_is_killed_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(use, "read_config", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(HostError, match="killed"):
            Live().config(GPU)

    def test_a_captured_directory_has_neither(self, tmp_path: Path) -> None:
        for ask in (Captured(str(tmp_path)).config, Captured(str(tmp_path)).rom):
            with pytest.raises(KernelRefused) as caught:
                ask(GPU)
            assert caught.value.symbol == "ENOENT"


class TestRecordedHost:
    def recorded(self, name: str = "workstation", **facts: str) -> Recorded:
        tree = copy(original(name))
        tree.properties[f"sim:{GPU}"] = facts
        return Recorded(tree, "")

    def test_config_has_the_ids(self) -> None:
        header = self.recorded().config(GPU)
        assert len(header) == 64
        assert header[:4] == bytes.fromhex("de108426")
        assert header[8:12] == bytes.fromhex("a1000003")  # revision, and the class from its end
        assert header[0x2C:0x30] == bytes.fromhex("de10f416")
        assert header[4] & 0x2, "memory is decoded: a driver has it"
        assert header[14] == 0x80, "one of several functions"

    def test_config_of_a_bridge_and_of_a_lone_function(self) -> None:
        assert self.recorded().config("0000:00:03.1")[14] == 0x81
        assert self.recorded().config("0000:01:00.0")[14] == 0

    def test_config_of_a_vf_has_no_ids_of_its_own(self) -> None:
        header = self.recorded("mi300x").config("0000:e5:02.0")
        assert header[:4] == b"\xff" * 4
        assert header[8:12] == bytes.fromhex("00000012")

    def test_a_dead_device_reads_as_ones(self) -> None:
        assert self.recorded(dead="1").config(GPU) == b"\xff" * 64
        assert self.recorded(dead="0").config(GPU) == self.recorded().config(GPU)

    @pytest.mark.parametrize("address", ["0000:ff:00.0", "..", "", "0000:0a:00.0/power"])
    def test_what_is_not_there_is_refused(self, address: str) -> None:
        for ask in (self.recorded(rom="55aa").config, self.recorded(rom="55aa").rom):
            with pytest.raises(KernelRefused) as caught:
                ask(address)
            assert caught.value.symbol == "ENOENT"

    def test_rom_is_what_the_file_says(self) -> None:
        assert self.recorded(rom="55aa 01").rom(GPU) == b"\x55\xaa\x01"

    @pytest.mark.parametrize(
        ("facts", "attribute", "symbol"),
        [
            ({}, {}, "ENOENT"),
            ({"rom": "55aa"}, {"power_state": "D3hot"}, "EIO"),
            ({"rom": "55aa"}, {"power_state": "D3cold"}, "EIO"),
            ({"rom": "55aa"}, {"enable": "0"}, "EIO"),
            ({"rom": "55aa", "dead": "1"}, {}, "EIO"),
            ({"rom": "not hexadecimal"}, {}, "EIO"),
        ],
    )
    def test_rom_is_refused_as_linux_would(self, facts: dict[str, str], attribute: dict[str, str], symbol: str) -> None:
        kernel = self.recorded(**facts)
        home = kernel.tree.resolve(f"/sys/bus/pci/devices/{GPU}")
        for name, text in attribute.items():
            kernel.tree.files[f"{home}/{name}"] = text
        with pytest.raises(KernelRefused) as caught:
            kernel.rom(GPU)
        assert caught.value.symbol == symbol

    @unhurried
    @given(st.dictionaries(st.sampled_from(["device", "class", "revision", "enable", "power_state"]), st.text()))
    def test_whatever_the_files_say_it_is_64_bytes(self, texts: dict[str, str]) -> None:
        tree = Tree()
        tree.put(f"/sys/bus/pci/devices/{GPU}/vendor", "0x10de")
        for name, text in texts.items():
            tree.put(f"/sys/bus/pci/devices/{GPU}/{name}", text)
        assert len(Recorded(tree, "").config(GPU)) == 64

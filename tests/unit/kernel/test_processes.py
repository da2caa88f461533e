"""What processes have open, asked of this machine: real processes, real device files, other paths to them."""

from __future__ import annotations

import errno
import mmap
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.hosts.machines import function, inventory_of
from vfioctl.errors import KernelRefused
from vfioctl.inventory.model.holders import HolderKind, Holders
from vfioctl.inventory.probe.holders import read_holders
from vfioctl.inventory.probe.processes import Processes
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.live import process_files, processes
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.open_nodes import Opened, OpenNode
from vfioctl.kernel.protocol import Descendant

pytestmark = pytest.mark.alone  # what it patches, workers have only where they are forked by a process with one thread

ZERO, FULL = "c 1:5", "c 1:7"


@contextmanager
def child(work: Callable[[], object]) -> Iterator[str]:
    """The pid of a process that has done `work`, keeps what it gave, and waits."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kept = [work()]
            os.write(writing, b"." * len(kept))
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"."
        yield str(pid)
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def node(path: Path, minor: int, original: str) -> Path:
    """A node of its own for a memory device; a link to the one in /dev where none may be made."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, minor))
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        path.unlink(missing_ok=True)
        path.symlink_to(original)
    return path


def mapping(path: Path | str, flags: int = mmap.MAP_PRIVATE) -> mmap.mmap:
    """Mapped, and open no longer: also the descriptor that Python keeps for itself is closed."""
    fd = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(fd, 4096, flags=flags, prot=mmap.PROT_READ)
    file = os.fstat(fd)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            if os.path.samestat(os.fstat(int(name)), file):
                os.close(int(name))
    return mapped


def of_number(found: Opened, number: str) -> list[OpenNode]:
    return [each for each in found.nodes if each.number == number]


class TestOpenFiles:
    def test_are_told_by_number_whatever_their_path(self, tmp_path: Path) -> None:
        odd = node(tmp_path / "a name, with\\odd \N{SNOWMAN} things", 7, "/dev/full")
        with child(lambda: os.open(odd, os.O_RDONLY)) as pid:
            assert of_number(Live().open_nodes(pid), FULL) == [OpenNode("open", os.path.realpath(odd), FULL, "")]

    def test_opened_with_o_path_do_not_hold_the_device(self) -> None:
        with child(lambda: os.open("/dev/full", os.O_PATH)) as pid:
            assert not of_number(Live().open_nodes(pid), FULL)

    def test_whose_path_has_gone_are_told_all_the_same(self, tmp_path: Path) -> None:
        path = node(tmp_path / "full", 7, "/dev/full")

        def work() -> int:
            fd = os.open(path, os.O_RDONLY)
            path.unlink()
            return fd

        with child(work) as pid:
            (found,) = of_number(Live().open_nodes(pid), FULL)
        assert found.how == "open"

    def test_that_are_no_device_files_are_passed_over(self, tmp_path: Path) -> None:
        def work() -> object:
            sockets = [each.detach() for each in socket.socketpair()]
            others = select.epoll(), os.memfd_create("memory"), os.pipe()
            return sockets, others, os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "file", os.O_CREAT)

        with child(lambda: None) as pid:
            before = Live().open_nodes(pid)
        with child(work) as pid:
            assert {each.number for each in Live().open_nodes(pid).nodes} == {each.number for each in before.nodes}

    def test_are_named_once_however_often_they_are_open(self) -> None:
        with child(lambda: [os.open("/dev/full", os.O_RDONLY) for _ in range(50)]) as pid:
            assert len(of_number(Live().open_nodes(pid), FULL)) == 1

    def test_are_a_name_that_json_can_hold(self, tmp_path: Path) -> None:
        odd = node(Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff\n")), 7, "/dev/full")
        with child(lambda: os.open(odd, os.O_RDONLY)) as pid:
            (found,) = of_number(Live().open_nodes(pid), FULL)
        found.path.encode()


@pytest.fixture
def older_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that tells mappings as text only."""
    monkeypatch.setattr(process_files, "_PROCMAP_QUERY", 0)


@pytest.mark.usefixtures("older_kernel")
class TestMappingsAsText:
    def test_are_told_when_the_file_is_closed(self, tmp_path: Path) -> None:
        path = node(tmp_path / "a zero", 5, "/dev/zero")
        with child(lambda: mapping(path)) as pid:
            assert of_number(Live().open_nodes(pid), ZERO) == [OpenNode("mapped", os.path.realpath(path), ZERO, "")]

    def test_are_told_by_path_where_only_that_is_permitted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        genuine = os.stat

        def unprivileged(path: bytes | str, *, dir_fd: int | None = None) -> os.stat_result:
            if isinstance(path, bytes) and b"map_files" in path:
                raise PermissionError(errno.EPERM, "no")
            return genuine(path, dir_fd=dir_fd)

        with child(lambda: mapping("/dev/zero")) as pid:
            monkeypatch.setattr(processes, "_numbers", {})
            monkeypatch.setattr(os, "stat", unprivileged)
            (found,) = of_number(Live().open_nodes(pid), ZERO)
        assert found.how == "mapped"

    def test_of_anonymous_memory_are_none(self) -> None:
        with child(lambda: mmap.mmap(-1, 1 << 20)) as pid:  # which the kernel calls `/dev/zero (deleted)`
            assert not of_number(Live().open_nodes(pid), ZERO)

    def test_of_low_addresses_are_called_as_the_kernel_calls_them_elsewhere(self) -> None:
        text = b"00400000-00401000 rw-s 0 00:06 4       /dev/nvidia0\n00000000-00001000 r--s 0 00:06 5 /dev/a b\n"
        assert [*process_files.in_text(text)] == [
            (b"400000-401000", b"00:06 4", b"/dev/nvidia0"),
            (b"0-1000", b"00:06 5", b"/dev/a b"),
        ]

    def test_of_vfio_devices_are_known_by_their_kind(self) -> None:
        lines = b"7f00-7f01 rw-s 10000000000 00:0e 1034      anon_inode:[vfio-device]\n7f02-7f03 rw-p 0 00:00 0 [heap]"
        assert [path for *_, path in process_files.in_text(lines)] == [b"anon_inode:[vfio-device]"]


class TestMappingsAskedFor:
    def test_are_told_when_the_file_is_closed(self) -> None:
        """Of a loop device: few that are everywhere can be mapped and shared."""
        if not os.access("/dev/loop0", os.R_OK):
            pytest.skip("no loop device that may be opened")
        with child(lambda: mapping("/dev/loop0", mmap.MAP_SHARED)) as pid:
            assert of_number(Live().open_nodes(pid), "b 7:0") == [OpenNode("mapped", "/dev/loop0", "b 7:0", "")]

    def test_are_those_of_the_text(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Shared files: range, path, and the same file for the same key."""
        (tmp_path / "a file").write_bytes(bytes(8192))
        with child(lambda: [mapping(tmp_path / "a file", mmap.MAP_SHARED) for _ in range(3)]) as pid:
            asked = [*process_files.file_mappings(pid)]
            monkeypatch.setattr(process_files, "_PROCMAP_QUERY", 0)
            told = {*((place, path) for place, _, path in process_files.file_mappings(pid))}
        ours = [each for each in asked if each[2] == os.fsencode(tmp_path / "a file")]
        assert len(ours) == 3
        assert len({key for _, key, _ in ours}) == 1
        assert {(place, path) for place, _, path in asked} <= told

    def test_of_what_has_no_memory_are_none(self) -> None:
        """A process that has ended, and was not waited for."""
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            with suppress(KernelRefused):  # to a user it is not readable
                assert Live().open_nodes(str(pid)) == Opened()
        finally:
            os.waitpid(pid, 0)


class TestRefusals:
    def test_a_process_that_has_ended(self) -> None:
        with child(lambda: None) as pid:
            pass
        with pytest.raises(KernelRefused) as caught:
            Live().open_nodes(pid)
        assert caught.value.symbol in ("ENOENT", "ESRCH")

    def test_a_process_of_another_user(self) -> None:
        found = os.fork()
        if found == 0:
            code = 1
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                Live().open_nodes(str(os.getppid()) if os.getppid() else "1")
            except KernelRefused as error:
                code = 42 if error.symbol == "EACCES" else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(found, 0)
        assert os.waitstatus_to_exitcode(status) == (42 if os.geteuid() == 0 else 1)

    def test_a_captured_device_node_is_not_opened(self, tmp_path: Path) -> None:
        node = tmp_path / "dev/vfio/7"
        node.parent.mkdir(parents=True)
        node.write_text("")
        with pytest.raises(KernelRefused) as caught:
            Captured(str(tmp_path)).viable(7)
        assert caught.value.symbol == "EROFS"

    def test_a_captured_directory_shows_nothing_of_this_machine(self, tmp_path: Path) -> None:
        captured = Captured(str(tmp_path))
        for ask, subject in ((captured.open_nodes, "1"), (captured.below, "/sys/devices"), (captured.claimed, "1:0")):
            with pytest.raises(KernelRefused):
                ask(subject)


class TestDevicesBelow:
    def test_with_their_subsystems_and_numbers_but_not_those_of_other_functions(self, tmp_path: Path) -> None:
        home = tmp_path / "0000:01:00.0"
        for place, subsystem, number in (
            ("drm/card0", "drm", "226:0"),
            ("drm/renderD128", "drm", "226:128"),
            ("nvme/nvme0", "nvme", "240:0"),
            ("nvme/nvme0/nvme0n1/nvme0n1p1", "block", "259:1"),
            ("net/eth0", "net", ""),
            ("0000:02:00.0/drm/card1", "drm", "226:1"),
            ("net/eth0/queues/rx-0", "queues", ""),
        ):
            (home / place).mkdir(parents=True, exist_ok=True)
            (home / place / "subsystem").symlink_to(f"../../../../class/{subsystem}")
            if number:
                (home / place / "dev").write_text(f"{number}\n")
        (home / "drm/card0/device").symlink_to("../..")
        (home / "subsystem").symlink_to("../../bus/pci")
        assert {(d.path.removeprefix(f"{home}/"), d.subsystem, d.number) for d in processes.below(str(home))} == {
            ("drm/card0", "drm", "226:0"),
            ("drm/renderD128", "drm", "226:128"),
            ("nvme/nvme0", "nvme", "240:0"),
            ("nvme/nvme0/nvme0n1/nvme0n1p1", "block", "259:1"),
            ("net/eth0", "net", ""),
        }

        captured = Captured(str(tmp_path)).below("/0000:01:00.0")
        assert captured == [d._replace(path=d.path.removeprefix(str(tmp_path))) for d in processes.below(str(home))], (
            "a captured directory shows its own, in the same order"
        )

    def test_of_a_captured_directory_may_not_lead_out_of_it(self, tmp_path: Path) -> None:
        for name in ("card0", "card1", "card2"):
            (tmp_path / "gpu" / name).mkdir(parents=True)
            (tmp_path / "gpu" / name / "subsystem").symlink_to("/sys/class/drm")
        (tmp_path / "gpu/card0/dev").symlink_to("/proc/version")
        os.mkfifo(tmp_path / "gpu/card1/dev")
        (tmp_path / "gpu/again").symlink_to("/gpu")
        deep = tmp_path / "gpu/card2"
        for _ in range(500):
            deep /= "d"
        os.makedirs(deep)
        found = Captured(str(tmp_path)).below("/gpu")
        assert [(d.path, d.subsystem, d.number) for d in found] == [
            (f"/gpu/{name}", "drm", "") for name in ("card0", "card1", "card2")
        ]

    def test_of_a_function_that_has_gone_are_refused(self, tmp_path: Path) -> None:
        for host in (Live(), Captured(str(tmp_path))):
            with pytest.raises(KernelRefused):
                host.below("/sys/bus/pci/devices/ffff:ff:1f.7")


class TestBlockDevices:
    def test_are_claimed_while_somebody_has_them_for_himself(self) -> None:
        if not os.access("/dev/loop7", os.R_OK):
            pytest.skip("no loop device that may be opened")
        assert not Live().claimed("7:7")
        with child(lambda: os.open("/dev/loop7", os.O_RDONLY | os.O_EXCL)):
            assert Live().claimed("7:7")
        assert not Live().claimed("7:7")

    def test_that_are_not_there_are_refused(self) -> None:
        with pytest.raises(KernelRefused):
            Live().claimed("999:999")


class TestUsers:
    def test_by_name_and_those_without_one_by_number(self) -> None:
        assert Live().user(0) == "root"
        assert Live().user(4_000_000_000) == "4000000000"


# -- put together --------------------------------------------------------------------------------------


class OneDevice(Live):
    """This machine, as if one memory device belonged to a function."""

    def below(self, path: str) -> Sequence[Descendant]:
        return [Descendant(f"{path}/drm/card0", "drm", FULL.removeprefix("c "))]


GPU = function("0000:01:00.0")


def look(kernel: Live) -> Holders:
    return read_holders(kernel, [GPU], inventory_of(GPU), Processes(kernel))


def test_a_process_is_found_with_its_name_and_user(tmp_path: Path) -> None:
    path = node(tmp_path / "card0", 7, "/dev/full")
    with child(lambda: os.open(path, os.O_RDONLY)) as pid:
        found = look(OneDevice())
    (holder,) = [holder for holder in found.holders if holder.pid == int(pid)]
    assert holder.kind == HolderKind.PROCESS
    assert holder.name == Path("/proc/self/comm").read_text().strip()
    assert holder.user == OneDevice().user(os.geteuid())
    assert (holder.path, holder.how) == (os.path.realpath(path), "open")
    assert found.read > 1


def test_a_process_that_does_not_answer_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def hung(pid: str) -> Opened:
        if pid == silent:
            time.sleep(60)
        return genuine(pid)

    genuine = processes.open_nodes
    with child(lambda: os.open("/dev/full", os.O_RDONLY)) as pid, child(lambda: None) as silent:
        usual = look(OneDevice())
        monkeypatch.setattr(processes, "open_nodes", hung)
        found = look(OneDevice(timeout=0.3))
    assert [holder.pid for holder in found.holders if holder.pid == int(pid)]
    assert found.unread == usual.unread + 1


def refusing(number: int) -> Callable[[str], Opened]:
    def refuse(_: str) -> Opened:
        raise OSError(number, os.strerror(number))

    return refuse


def test_processes_that_may_not_be_read_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "open_nodes", refusing(errno.EACCES))
    found = look(OneDevice())
    assert {holder.kind for holder in found.holders} == ({HolderKind.UNREAD} if os.geteuid() == 0 else set())
    assert (found.read, found.unread > 1) == (0, True)


def test_processes_that_end_meanwhile_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "open_nodes", refusing(errno.ESRCH))
    found = look(OneDevice())
    assert (found.read, found.unread) == (0, 0)

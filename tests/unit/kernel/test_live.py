"""A captured directory, hostile or not, and this machine's files as far as a temporary directory can be one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import HOSTS, NAMES, copy, original, unhurried, written
from tests.probing import read_inventory
from vfioctl import environment
from vfioctl.console.documents import document_text
from vfioctl.errors import BadDocument, Busy, HostError, KernelRefused, NotPermitted, Stuck, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.document import document_of
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel import files
from vfioctl.kernel.captured import host as captured_host
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.live import changes, hwdb
from vfioctl.kernel.live import host as live
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.lock import held
from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_DEVICES, Directory, Kernel, Prefixes, Unanswered, per_subject
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.timeouts import STEPS, Timeouts

pytestmark = pytest.mark.alone  # what it patches, workers have only where they are forked by a process with one thread

ReadFile = Callable[[str, int], str]
OUTSIDE = "not for vfioctl"
TARGETS = st.lists(st.sampled_from(["a", "b", "c", "..", ".", ""]), min_size=1, max_size=4).map("/".join)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory to be captured, with a secret just outside of it."""
    (tmp_path / "secret").write_text(OUTSIDE)
    (tmp_path / "root" / "sys").mkdir(parents=True)
    return tmp_path / "root"


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(KernelRefused) as caught:
        ask()
    return caught.value.symbol


@contextmanager
def at_once(seconds: float = 5) -> Iterator[None]:
    """Fails, instead of hanging, when what is inside takes long."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"it took more than {seconds} s"))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- links ---------------------------------------------------------------------------------------------


class TestLinksOfACapturedDirectory:
    @pytest.mark.parametrize(
        "target",
        [
            "../secret",
            "../../secret",
            "../../../../../../../secret",
            "{outside}/secret",
            "x/../../../secret",
            "/../secret",
            "/sys/../../secret",
            "./.././../secret",
        ],
    )
    def test_never_lead_outside(self, root: Path, target: str) -> None:
        (root / "sys" / "link").symlink_to(target.format(outside=root.parent))
        (root / "sys" / "folder").symlink_to(target.format(outside=root.parent).removesuffix("/secret") or "/")
        kernel = Captured(str(root))
        for path in ("/sys/link", "/sys/folder/secret", "/../secret", "/sys/../../secret", f"{root.parent}/secret"):
            assert refusal(lambda path=path: kernel.read(path)) == "ENOENT"  # type: ignore[misc] # bound at once
            assert not kernel.has(path)
        assert "secret" not in kernel.children("/sys/..")

    def test_with_an_absolute_target_start_at_the_root(self, root: Path) -> None:
        (root / "sys" / "file").write_text("inside\n")
        (root / "sys" / "link").symlink_to("/sys/file")
        assert Captured(str(root)).read("/sys/link") == "inside"
        assert Captured(str(root)).link("/sys/link") == "/sys/file"

    def test_that_go_round_in_circles_are_refused(self, root: Path) -> None:
        (root / "sys" / "a").symlink_to("b")
        (root / "sys" / "b").symlink_to("a")
        (root / "sys" / "deep").symlink_to("deep/deep")
        kernel = Captured(str(root))
        for path in ("/sys/a", "/sys/a/x", "/sys/deep"):
            assert refusal(lambda path=path: kernel.read(path)) == "ELOOP"  # type: ignore[misc] # bound at once
            assert not kernel.has(path)
        assert kernel.link("/sys/a") == "b"

    @unhurried
    @given(
        st.lists(
            st.tuples(
                st.lists(st.sampled_from("abc"), min_size=1, max_size=3),
                st.none() | TARGETS,
            ),
            max_size=6,
        )
    )
    def test_lead_where_they_lead_in_a_recorded_host(self, drawn: list[tuple[list[str], str | None]]) -> None:
        tree = Tree()
        for names, target in drawn:
            path = "/sys/" + "/".join(names)
            above = ["/".join(path.split("/")[:n]) for n in range(2, path.count("/") + 1)]
            if tree.exists(path) or any(tree.exists(place) and place not in tree.directories for place in above):
                continue
            if target:
                tree.put_link(path, target)
            else:
                tree.put(path, path)
        with tempfile.TemporaryDirectory() as folder:
            here: Kernel = Captured(str(written(tree, Path(folder))))
            there: Kernel = Recorded(tree, "")
            for path in {"/sys", "/sys/../sys", *(f"/sys/{'/'.join(names)}" for names, _ in drawn)}:
                for ask in ("read", "link", "children", "has"):
                    assert answer(here, ask, path) == answer(there, ask, path), (ask, path)


def answer(kernel: Kernel, ask: str, path: str) -> object:
    try:
        return getattr(kernel, ask)(path)
    except KernelRefused:
        return None


# -- odd files -----------------------------------------------------------------------------------------


class TestOddFiles:
    def test_fifos_sockets_and_device_nodes_are_not_even_opened(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.mkfifo(root / "sys" / "odd")
        (root / "sys" / "link").symlink_to("odd")
        kernel, opened, genuine = Captured(str(root)), [], os.open

        def watched(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if not flags & os.O_PATH:
                opened.append(path)
            return genuine(path, flags, mode, dir_fd=dir_fd)

        monkeypatch.setattr(os, "open", watched)
        with at_once():
            assert refusal(lambda: kernel.read("/sys/odd")) == "ENXIO"
            assert refusal(lambda: kernel.read("/sys/link")) == "ENXIO"
            assert kernel.directory("/sys", {"odd", "link"}).refused == {"odd": "ENXIO"}
        assert opened == ["."], "the directory"

    def test_a_fifo_of_this_machine_does_not_block(self, root: Path) -> None:
        os.mkfifo(root / "sys" / "fifo")
        with at_once():
            assert refusal(lambda: Live().read(str(root / "sys" / "fifo"))) == "ENXIO"
            writer = os.open(root / "sys" / "fifo", os.O_RDWR)
            assert refusal(lambda: Live().read(str(root / "sys" / "fifo"))) == "ENXIO"
            os.close(writer)

    def test_a_huge_file_costs_no_more_than_its_beginning(self, root: Path) -> None:
        (root / "sys" / "huge").write_bytes(b"x" * 8192)
        os.truncate(root / "sys" / "huge", 1 << 40)
        with at_once(20):
            assert len(Captured(str(root)).read("/sys/huge")) <= 17 << 20
            assert len(Captured(str(root)).directory("/sys", {"huge"}).texts["huge"]) == 4096

    def test_of_a_huge_attribute_is_read_what_an_attribute_can_have(self, root: Path) -> None:
        for place in ("sys/attribute", "proc/maps"):
            (root / place).parent.mkdir(exist_ok=True)
            (root / place).write_bytes(b"1" * 200_000)
        kernel = Captured(str(root))
        assert (len(kernel.read("/sys/attribute")), len(kernel.read("/proc/maps"))) == (65_536, 200_000)

    def test_what_cannot_be_read_is_named_with_its_errno(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "sys" / "folder").mkdir()
        (root / "sys" / "fine").write_text("yes\n")
        with socket.socket(socket.AF_UNIX) as listener:
            monkeypatch.chdir(root / "sys")  # the name of a socket is short
            listener.bind("socket")
        found = Captured(str(root)).directory("/sys", {"folder", "socket", "fine", "none"})
        assert found.refused == {"folder": "EISDIR", "socket": "ENXIO"}
        assert found.texts == {"fine": "yes"}
        assert found.names == {"folder", "socket", "fine"}

    def test_only_what_is_wanted_is_read(self, root: Path) -> None:
        for name in ("wanted", "other"):
            (root / "sys" / name).write_text(name)
        assert Captured(str(root)).directory("/sys", {"wanted"}).texts == {"wanted": "wanted"}

    def test_text_that_is_not_utf_8_is_read(self, root: Path) -> None:
        (root / "sys" / "odd").write_bytes(b"\xff\xfe \0x\0\n\n")
        assert Captured(str(root)).read("/sys/odd") == "\ufffd\ufffd \0x"

    @pytest.mark.parametrize("ask", ["read", "link", "children", "device_number"])
    @pytest.mark.parametrize("path", ["/sys/\0", "/sys/none", "/sys/" + "x" * 300, "/sys" + "/x" * 3000])
    def test_a_path_that_cannot_be_is_refused(self, root: Path, path: str, ask: str) -> None:
        for kernel in (Captured(str(root)), Live()):
            with pytest.raises(KernelRefused):
                getattr(kernel, ask)(path)
            assert not kernel.has(path)

    def test_a_device_node_is_known_by_its_numbers(self, root: Path) -> None:
        (root / "sys" / "file").touch()
        assert Live().device_number("/dev/null") == ("c", 1, 3)
        assert refusal(lambda: Captured(str(root)).device_number("/sys/file")) == "ENODEV"


# -- a whole host --------------------------------------------------------------------------------------


@pytest.fixture
def without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hwdb, "hardware_database", lambda _: lambda _: {})


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 65536, 70_000])
def test_an_attribute_is_read_whole_up_to_a_limit(tmp_path: Path, size: int) -> None:
    text = "0123456789" * 7000
    (tmp_path / "cpulist").write_text(text[:size])
    assert files.read_of_sysfs(str(tmp_path / "cpulist")) == text[: min(size, files.MOST_OF_SYSFS)]


def captured(name: str, root: Path) -> Inventory:
    return Host.at(written(original(name), root)).inventory()


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_directory_is_read_as_the_recorded_host(name: str, tmp_path: Path, without_names: None) -> None:
    tree = copy(original(name))
    tree.properties = {}  # names and NVML
    for path in [*tree.nodes, *tree.refused]:  # what a plain directory cannot have
        tree.remove(path)
    expected = document_of(read_inventory(Recorded(tree, "")), everything=True)
    found = document_of(Host.at(written(tree, tmp_path)).inventory(), everything=True)
    text = document_text(found).replace("a captured directory has no NVML", "not recorded")
    assert text == document_text(expected)


def test_a_directory_that_holds_no_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadDocument, match="holds no captured host"):
        Host.at(tmp_path)


@pytest.mark.parametrize("name", ["none", "loop", "file", "x" * 5000, "\0"])
def test_what_is_no_directory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    with pytest.raises(BadDocument) as caught:
        Host.at(tmp_path / name)
    assert len(caught.value.message) < 1000


def test_a_directory_may_be_named_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "root" / "sys").mkdir(parents=True)
    (tmp_path / "link").symlink_to("root")
    host = Host.at(tmp_path / "link")
    assert host.session.kernel.description == f"the files under {tmp_path / 'root'}"
    assert host.session.ledger == tmp_path / "root.ledger.db"


NO_NVML = {"nvml": "a captured directory has no NVML"}


@pytest.mark.usefixtures("without_names", "device")
class TestHostileHost:
    """`one` is the first GPU of the workstation, spoilt in some way; the others must not suffer."""

    ONE = PciAddress("0000:0a:00.0")

    @pytest.fixture
    def device(self, tmp_path: Path) -> Path:
        written(original("workstation"), tmp_path)
        return (tmp_path / PCI_DEVICES.lstrip("/") / self.ONE).resolve()

    def inventory(self, root: Path, timeout: float = 20.0) -> Inventory:
        with at_once(30):
            found = read_inventory(Captured(str(root), timeout=timeout))
        others = [a for a in read_inventory(Recorded(original("workstation"), "")).by_address if a != self.ONE]
        assert [a for a in found.by_address if a != self.ONE] == others
        return found

    @pytest.mark.parametrize(
        ("attribute", "field", "value"),
        [
            ("numa_node", "numa_node", None),
            ("resource", "bars", ()),
            ("boot_vga", "boot_vga", False),
            ("power_state", "power_state", None),
            ("reset_method", "reset_methods", ()),
            ("d3cold_allowed", "d3cold_allowed", None),
        ],
    )
    def test_one_unreadable_attribute_costs_that_fact(
        self, device: Path, tmp_path: Path, attribute: str, field: str, value: object
    ) -> None:
        (device / attribute).unlink()
        (device / attribute).mkdir()
        one = self.inventory(tmp_path).by_address[self.ONE]
        assert one.unknown == {attribute: "EISDIR", **NO_NVML}
        assert getattr(one, field) == value
        assert one.driver == "nvidia"

    def test_fifos_in_place_of_attributes_do_not_hang(self, device: Path, tmp_path: Path) -> None:
        for attribute in ("numa_node", "resource", "driver_override", "reset_method"):
            (device / attribute).unlink()
            os.mkfifo(device / attribute)
        one = self.inventory(tmp_path).by_address[self.ONE]
        assert set(one.unknown) == {"numa_node", "resource", "driver_override", "reset_method", "nvml"}

    @pytest.mark.parametrize("name", ["modalias", "class"])
    @pytest.mark.parametrize("ruin", ["empty", "fifo", "folder", "gone", "megabyte", "binary", "garbage"])
    def test_a_device_that_does_not_say_what_it_is_costs_itself(
        self, device: Path, tmp_path: Path, ruin: str, name: str
    ) -> None:
        """Where its modalias does not say it, its class does."""
        (device / "modalias").unlink()
        if name == "class":
            (device / "class").unlink()
        if ruin == "fifo":
            os.mkfifo(device / name)
        elif ruin == "folder":
            (device / name).mkdir()
        elif ruin != "gone":
            garbage = "pci:v((((((((d[[[[[[[[sv********sd++++++++bc??sc..i||"
            text = {"megabyte": "pci:v" * 200_000, "binary": "\0\x01", "garbage": garbage, "empty": ""}
            (device / name).write_text(text[ruin])
        found = self.inventory(tmp_path)
        assert (self.ONE in found.by_address) == (name == "modalias")
        assert [self.ONE in group.unread for group in found.groups if group.id == 10] == [name == "class"]
        warned = [warning.text for warning in found.warnings if warning.subject == self.ONE]
        assert ["modalias" in text for text in warned] == ([True] if name == "class" else [])

    @pytest.mark.parametrize("link", ["dangling", "loop", "file", "outside"])
    def test_a_vanished_device_costs_itself(self, tmp_path: Path, link: str) -> None:
        entry = tmp_path / PCI_DEVICES.lstrip("/") / self.ONE
        entry.unlink()
        if link == "file":
            entry.touch()
        else:
            entry.symlink_to({"dangling": "../nowhere", "loop": self.ONE, "outside": "/etc"}[link])
        found = self.inventory(tmp_path)
        assert self.ONE not in found.by_address
        assert self.ONE in [warning.subject for warning in found.warnings]

    def test_a_device_that_vanishes_while_it_is_read_costs_itself(
        self, device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        genuine = files.read_directory

        def vanish(fd: int, wanted: Collection[str], links: Prefixes, read: ReadFile) -> Directory:
            if os.readlink(f"/proc/self/fd/{fd}") == str(device):
                shutil.rmtree(device)
            return genuine(fd, wanted, links, read)

        monkeypatch.setattr(files, "read_directory", vanish)
        found = self.inventory(tmp_path)
        assert self.ONE not in found.by_address
        assert self.ONE in [warning.subject for warning in found.warnings]

    @pytest.mark.parametrize("name", ["garbage", "0000:zz:00.0", "..\\x", "0000:0a:00.0 ", "x" * 255])
    def test_an_entry_that_is_no_address_costs_itself(self, device: Path, tmp_path: Path, name: str) -> None:
        (tmp_path / PCI_DEVICES.lstrip("/") / name).symlink_to(f"../../../{device.relative_to(tmp_path / 'sys')}")
        found = self.inventory(tmp_path)
        assert name in [warning.subject for warning in found.warnings]
        assert self.ONE in found.by_address

    def test_names_that_are_not_utf_8_do_no_harm(self, device: Path, tmp_path: Path) -> None:
        devices, drivers = (os.fsencode(tmp_path / "sys/bus/pci" / name) for name in ("devices", "drivers"))
        os.symlink(b"../../../nowhere", devices + b"/\xff\xfe")
        os.mkdir(drivers + b"/\xff")
        os.unlink(device / "driver")
        os.symlink(b"../../../\xff\xfe", os.fsencode(device / "driver"))
        found = self.inventory(tmp_path)
        assert document_text(found)
        assert len(found.warnings) >= 1
        text, _ = Host.at(tmp_path).snapshot()
        assert text.encode()

    @pytest.mark.parametrize(
        "release", ["", "\0", "6.1\0/../..", "../../../../../../../..", "x" * 5000, "a\nb", "*", "6.8/../6.8"]
    )
    def test_a_hostile_kernel_release_is_only_a_name(self, tmp_path: Path, release: str) -> None:
        (tmp_path / "proc/sys/kernel/osrelease").write_text(release)
        assert self.inventory(tmp_path).by_address[self.ONE].available_drivers == ()

    @pytest.mark.parametrize("name", ["physfn", "virtfn0", "supplier:pci:x", "consumer:pci:0000:0a:00.9"])
    def test_an_odd_relation_is_none(self, device: Path, tmp_path: Path, name: str) -> None:
        (device / name).symlink_to("../garbage")
        one = self.inventory(tmp_path).by_address[self.ONE]
        assert (one.physfn, one.virtfns) == (None, ())
        assert one.unknown == {name: "unexpected target '../garbage'", **NO_NVML}

    @pytest.mark.parametrize("target", ["../../kernel/iommu_groups/x", "../-1", "\u0663", "9" * 4000, "1_0", "/"])
    def test_an_odd_iommu_group_is_no_group(self, device: Path, tmp_path: Path, target: str) -> None:
        (device / "iommu_group").unlink()
        (device / "iommu_group").symlink_to(target)
        one = self.inventory(tmp_path).by_address[self.ONE]
        assert one.iommu_group == 10, "which the directory of the group says"
        assert one.unknown["iommu_group"].startswith("unexpected target")
        (tmp_path / IOMMU_GROUPS.lstrip("/") / "10/devices" / self.ONE).unlink()
        one = self.inventory(tmp_path).by_address[self.ONE]
        assert one.iommu_group is None

    def test_a_read_that_blocks_costs_one_fact(
        self, device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        genuine = captured_host.read_attribute

        def blocking(name: str, directory: int) -> str:
            if name == "driver_override" and os.readlink(f"/proc/self/fd/{directory}") == str(device):
                time.sleep(60)
            return genuine(name, directory)

        monkeypatch.setattr(captured_host, "read_attribute", blocking)
        found = self.inventory(tmp_path, timeout=0.8)
        sound = read_inventory(Recorded(original("workstation"), "")).by_address[self.ONE]
        one = found.by_address[self.ONE]
        assert one.identity == sound.identity
        assert (one.driver, one.iommu_group, one.bars) == (sound.driver, sound.iommu_group, sound.bars)
        assert list(one.unknown) == ["driver_override", "nvml"]
        assert [w.subject for w in found.warnings if "did not return" in w.text] == [self.ONE]

    def test_a_device_that_never_answers_at_all_costs_itself(
        self, device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        genuine = files.read_directory

        def blocking(fd: int, wanted: Collection[str], links: Prefixes, read: ReadFile) -> Directory:
            if os.readlink(f"/proc/self/fd/{fd}") == str(device):
                time.sleep(60)
            return genuine(fd, wanted, links, read)

        monkeypatch.setattr(files, "read_directory", blocking)
        found = self.inventory(tmp_path, timeout=0.8)
        assert self.ONE not in found.by_address
        assert found.unread == {self.ONE: "no answer in 0.8 s"}
        assert [w.text for w in found.warnings if w.subject == self.ONE] == ["not read: no answer in 0.8 s"]

    def test_without_any_pci_bus_there_is_nothing(self, root: Path) -> None:
        found = read_inventory(Captured(str(root)))
        assert (found.functions, found.groups) == ((), ())
        assert [(w.subject, w.text) for w in found.warnings] == [(PCI_DEVICES, "no PCI bus: ENOENT")]


@per_subject
def who_reads(_: Live, subject: str) -> list[object]:
    return [os.getpid(), subject]


@per_subject
def end(_: Live, __: str) -> None:
    os._exit(1)


def test_a_survey_of_many_is_shared_among_children_and_keeps_its_order(root: Path) -> None:
    subjects = [f"s{number}" for number in range(live._FEW + 100)]
    found = list(Captured(str(root)).survey(who_reads, subjects))
    assert [subject for subject, _ in found] == subjects
    assert [answer[1] for _, answer in found if isinstance(answer, list)] == subjects
    pids = {answer[0] for _, answer in found if isinstance(answer, list)}
    assert len(pids) == min(4, len(os.sched_getaffinity(0)))
    assert os.getpid() not in pids


def test_a_survey_keeps_the_workers_that_it_needs() -> None:
    kernel = Live()
    workers, answers = weakref.ref(kernel._workers), kernel.survey(who_reads, ["a", "b"])
    del kernel
    assert workers(), "to be freed would end them while they read"
    assert [subject for subject, _ in answers] == ["a", "b"]
    del answers
    assert not workers()


def test_a_survey_says_why_there_is_no_answer(root: Path) -> None:
    ((_, found),) = Captured(str(root)).survey(end, ["x"])
    assert found == Unanswered("the process that read it died")
    several = [answer for _, answer in Captured(str(root)).survey(end, ["x", "y"])]
    assert several == [Unanswered("the process that read it died")] * 2


# -- what a captured directory refuses -----------------------------------------------------------------


def test_a_captured_directory_cannot_be_changed(root: Path) -> None:
    kernel = Captured(str(root))
    (root / "sys" / "file").write_text("before")
    assert kernel.read_only
    assert str(root) in kernel.description
    assert not kernel.writable("/sys/file")
    assert refusal(lambda: kernel.write("/sys/file", "after")) == "EROFS"
    with pytest.raises(HostError, match="read-only"):
        kernel.load("vfio-pci")
    assert isinstance(kernel.nvml(["0000:41:00.0"])(), Unanswered)
    assert (root / "sys" / "file").read_text() == "before"


def test_this_machine_can_be_looked_at_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kernel = Live(read_only=True)
    assert kernel.read_only
    assert not kernel.writable(str(tmp_path / "file"))
    assert refusal(lambda: kernel.write(str(tmp_path / "file"), "x")) == "EROFS"
    with pytest.raises(HostError, match="read-only"):
        kernel.load("vfio-pci")
    assert (tmp_path / "file").read_text() == ""


# -- this machine --------------------------------------------------------------------------------------


class TestWrite:
    def test_is_one_write_of_the_whole_value(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("longer than that")
        assert not Live().read_only
        assert Live().description == "this machine"
        assert Live().writable(str(tmp_path / "file"))
        Live().write(str(tmp_path / "file"), "vfio-pci")
        assert (tmp_path / "file").read_text() == "vfio-pcihan that"

    @pytest.mark.parametrize(("name", "symbol"), [("none", "ENOENT"), (".", "EISDIR"), ("/dev/full", "ENOSPC")])
    def test_refused_says_why(self, tmp_path: Path, name: str, symbol: str) -> None:
        path = str(tmp_path / name)
        with pytest.raises(KernelRefused) as caught:
            Live().write(path, "x")
        assert (caught.value.symbol, caught.value.path, caught.value.text) == (symbol, path, "x")
        assert files.write_once(path, "x") == getattr(errno, symbol)

    def test_in_this_process_gives_0(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert files.write_once(str(tmp_path / "file"), "x") == 0

    @pytest.fixture
    def fifo(self, tmp_path: Path) -> Iterator[Path]:
        """A file whose writing blocks until the test has ended; the child that does it is left to its fate."""
        os.mkfifo(tmp_path / "fifo")
        yield tmp_path / "fifo"
        os.close(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))

    def test_that_never_returns_is_stuck(self, fifo: Path) -> None:
        with at_once(20), pytest.raises(Stuck, match=r"did not return in 0\.3 s") as caught:
            Live(timeouts=Timeouts(default=0.3)).write(str(fifo), "x")
        assert caught.value.next_command == "vfioctl recover"
        assert caught.value.facts["pid"]
        assert "is in state S" in caught.value.kernel_said

    def test_whose_process_is_killed_is_an_error_that_can_be_undone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "write_once", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(VfioctlError, match="killed") as caught:
            Live().write(str(tmp_path / "file"), "x")
        assert not isinstance(caught.value, Stuck)

    def test_keeps_the_lock_of_its_parent_and_nothing_else(self, fifo: Path, tmp_path: Path) -> None:
        kernel = Live(timeouts=Timeouts(default=0.3))
        with kernel.exclusive(tmp_path / "lock", wait=0):
            assert len(kernel._locks.fds) == 1
            with pytest.raises(Stuck):
                kernel.write(str(fifo), "x")
        assert kernel._locks.fds == []
        with kernel.exclusive(tmp_path / "lock", wait=0):
            pass


class TestLoad:
    @pytest.fixture
    def modprobe(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        def be(script: str) -> None:
            (tmp_path / "modprobe").write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / "modprobe").chmod(0o755)

        monkeypatch.setitem(environment.OF_COMMANDS, "PATH", str(tmp_path))
        return be

    def test_asks_modprobe(self, modprobe: Callable[[str], None], tmp_path: Path) -> None:
        modprobe(f'echo "$@" > {tmp_path}/asked')
        Live().load("vfio-pci")
        assert (tmp_path / "asked").read_text() == "-- vfio-pci\n"

    def test_refused_says_what_modprobe_said(self, modprobe: Callable[[str], None]) -> None:
        modprobe("echo 'FATAL: Module x not found' >&2; exit 1")
        with pytest.raises(HostError, match="module x could not be loaded") as caught:
            Live().load("x")
        assert caught.value.kernel_said == "FATAL: Module x not found"
        assert caught.value.hint

    @pytest.mark.usefixtures("modprobe")
    def test_without_modprobe_says_so(self) -> None:
        with pytest.raises(HostError, match="could not be loaded") as caught:
            Live().load("x")
        assert caught.value.kernel_said == "modprobe: No such file or directory"
        assert files.run(["modprobe"]) == (127, "modprobe: No such file or directory")

    def test_that_does_not_return_is_stuck(self, modprobe: Callable[[str], None]) -> None:
        modprobe("while :; do :; done" if not Path("/bin/sleep").exists() else "exec /bin/sleep 5")
        with at_once(20), pytest.raises(Stuck, match=r"modprobe x did not return in 0\.3 s") as caught:
            Live(timeouts=Timeouts(load=0.3)).load("x")
        assert caught.value.facts["pid"]

    def test_in_this_process_gives_the_exit_code(self, modprobe: Callable[[str], None]) -> None:
        modprobe("echo oh >&2; exit 3")
        assert files.run(["modprobe"]) == (3, "oh")


class TestViable:
    @pytest.mark.parametrize(("flags", "expected"), [(0, False), (1, True), (2, False), (3, True)])
    def test_is_what_the_kernel_says(self, monkeypatch: pytest.MonkeyPatch, flags: int, expected: bool) -> None:
        kernel = Live()
        monkeypatch.setattr(kernel, "survey", lambda _reader, paths, **_timeout: [(paths[0], (0, flags))])
        assert kernel.viable(12) is expected

    def test_is_asked_with_the_size_of_the_structure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def status(fd: int, request: int, argument: bytes) -> bytes:
            assert (request, argument) == (0x3B67, bytes([8, 0, 0, 0, 0, 0, 0, 0]))
            return argument[:4] + (3).to_bytes(4, "little")

        monkeypatch.setattr(fcntl, "ioctl", status)
        (tmp_path / "12").touch()
        assert files.group_flags(None)(str(tmp_path / "12")) == (0, 3)

    def test_refused_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "12").touch()
        assert files.group_flags(None)(str(tmp_path / "12")) == (errno.ENOTTY, 0)
        assert refusal(lambda: Live().viable(999_999_999)) == "ENOENT"

    def test_a_node_in_a_captured_directory_is_not_opened(self, root: Path) -> None:
        (root / "dev" / "vfio").mkdir(parents=True)
        (root / "dev" / "vfio" / "12").touch()
        assert refusal(lambda: Captured(str(root)).viable(12)) == "EROFS"


class TestSriovManage:
    """NVIDIA's script, of which only what it has done afterwards is believed."""

    GPU = "0000:41:00.0"

    @pytest.fixture
    def script(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
        def write(body: str) -> Path:
            file = tmp_path / "sriov-manage"
            file.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{body}\n')
            file.chmod(0o755)
            return tmp_path / "asked"

        monkeypatch.setattr(changes, "SRIOV_MANAGE", str(tmp_path / "sriov-manage"))
        return write

    @pytest.mark.parametrize(("on", "option"), [(True, "-e"), (False, "-d")])
    @pytest.mark.parametrize("status", [0, 1, 2, 255])
    def test_is_run_and_its_exit_code_means_nothing(
        self,
        script: Callable[[str], Path],
        status: int,
        on: bool,
        option: str,
    ) -> None:
        asked = script(f"echo words >&2; exit {status}")
        assert Live().manage_vfs(self.GPU, on=on) == "words"
        assert asked.read_text() == f"{option} {self.GPU}\n"

    @pytest.mark.usefixtures("script")
    def test_that_is_not_there_says_where_it_comes_from(self) -> None:
        with pytest.raises(HostError, match="sriov-manage cannot be run") as caught:
            Live().manage_vfs(self.GPU, on=True)
        assert "vGPU host driver" in caught.value.hint
        assert "No such file" in caught.value.kernel_said

    def test_that_may_not_be_run_says_so(self, script: Callable[[str], Path]) -> None:
        asked = script("exit 0")
        (asked.parent / "sriov-manage").chmod(0o644)
        with pytest.raises(HostError, match="cannot be run") as caught:
            Live().manage_vfs(self.GPU, on=True)
        assert "Permission denied" in caught.value.kernel_said

    def test_that_hangs_is_outlived(self, script: Callable[[str], Path]) -> None:
        script("exec sleep 30")
        with at_once(20), pytest.raises(Stuck, match=f"sriov-manage -e {self.GPU} did not return"):
            Live(timeouts=Timeouts(steps={"sriov-manage": 0.5})).manage_vfs(self.GPU, on=True)

    def test_has_longer_than_a_write(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given: list[float] = []

        def call(*_: object, timeout: float, **__: object) -> tuple[int, str]:
            given.append(timeout)
            return 0, ""

        monkeypatch.setattr(changes, "called", call)
        Live(timeouts=Timeouts(default=1)).manage_vfs(self.GPU, on=True)
        assert given == [STEPS["sriov-manage"]]

    def test_asks_nobody_anything(self, script: Callable[[str], Path]) -> None:
        script('read line; echo "[$line]" >&2')
        assert Live().manage_vfs(self.GPU, on=True) == "[]"


class TestLock:
    def test_is_held_by_one(self, tmp_path: Path) -> None:
        with held(tmp_path / "lock", wait=0), pytest.raises(Busy) as caught, held(tmp_path / "lock", wait=0.05):
            pytest.fail("held twice")
        assert f"(process {os.getpid()})" in caught.value.message
        with held(tmp_path / "lock", wait=0):
            pass

    def test_is_waited_for(self, tmp_path: Path) -> None:
        program = (
            "import sys\nfrom pathlib import Path\nfrom vfioctl.kernel.lock import held\n"
            "with held(Path(sys.argv[1]), wait=0):\n    print('held', flush=True)\n    sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "lock")]
        with subprocess.Popen(command, cwd=HOSTS.parents[1], stdin=-1, stdout=-1, text=True) as other:
            assert other.stdin
            assert other.stdout
            assert other.stdout.readline() == "held\n"
            with pytest.raises(Busy), held(tmp_path / "lock", wait=0):
                pytest.fail("held twice")
            other.stdin.close()
            with held(tmp_path / "lock", wait=20):
                pass

    @pytest.mark.parametrize("place", ["file/lock", "folder", "link", "/dev/null/x"])
    def test_that_cannot_be_is_not_permitted(self, tmp_path: Path, place: str) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to("file")
        with pytest.raises(NotPermitted, match="cannot be opened") as caught, held(tmp_path / place, wait=0):
            pytest.fail("held")
        assert "--ledger" in caught.value.hint

    def test_is_held_on_a_full_disk_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(fd: int, data: bytes, offset: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        with held(tmp_path / "lock", wait=0), pytest.raises(Busy) as caught, held(tmp_path / "lock", wait=0):
            pytest.fail("held twice")
        assert "process" not in caught.value.message


def test_the_bundled_hosts_are_where_the_tests_look() -> None:
    assert HOSTS.is_dir()
    assert len(NAMES) >= 9

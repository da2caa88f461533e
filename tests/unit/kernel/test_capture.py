"""A snapshot: it reads back as the same host, says nothing private, and can be taken of any host."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import HOSTS, NAMES, copy, original, unhurried, written
from tests.probing import read_inventory
from vfioctl.console.documents import document_text
from vfioctl.errors import KernelRefused
from vfioctl.host import Host
from vfioctl.inventory.model.document import document_of
from vfioctl.inventory.model.functions import Function
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.protocol import (
    EVERY_LINK,
    PCI_DEVICES,
    PCI_DRIVERS,
    Directory,
    NvmlAnswer,
    Prefixes,
    Unanswered,
)
from vfioctl.kernel.recorded.capture import capture
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Node, Tree, form, parse
from vfioctl.units import UUID_FORM

T = TypeVar("T")
SMALL = "iommu-firmware"


def retaken(tree: Tree) -> Tree:
    """The tree that the snapshot's text holds."""
    return parse(form(capture(Recorded(tree, ""))[0]), "snapshot")


def listing(tree: Tree) -> str:
    """The inventory, with the UUIDs of vGPUs numbered: a snapshot replaces them."""
    text = document_text(document_of(read_inventory(Recorded(tree, "")), everything=True))
    numbers: dict[str, str] = {}
    return re.sub(UUID_FORM, lambda found: numbers.setdefault(found[0], str(len(numbers))), text)


def spoilt(name: str = SMALL) -> Tree:
    return copy(original(name))


# -- reads back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_of_a_bundled_host_gives_the_same_inventory_byte_for_byte(name: str) -> None:
    assert listing(retaken(original(name))) == listing(original(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_of_a_snapshot_is_that_snapshot(name: str) -> None:
    once = form(capture(Recorded(original(name), ""))[0])
    assert form(capture(Recorded(parse(once, "once"), ""))[0]) == once


@pytest.mark.parametrize("name", ["workstation", "gh200"])
def test_a_snapshot_does_not_depend_on_the_order_in_which_a_directory_is_read(name: str) -> None:
    class Shuffled(Recorded):
        def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
            names, *maps = super().directory(path, wanted, links)
            return Directory(names, *(dict(random.sample([*each.items()], len(each))) for each in maps))

        def nvml(
            self, gpus: Sequence[str], *, types: bool = False, links: bool = False, usage: bool = False
        ) -> Callable[[], NvmlAnswer]:
            answer = super().nvml(gpus, types=types, links=links, usage=usage)()
            assert not isinstance(answer, Unanswered)
            return lambda: dict(reversed([*answer.items()]))

    tree = spoilt(name)
    for number, subject in enumerate(s for s in tree.properties if s.startswith("nvml:")):
        tree.properties[subject]["uuid"] = f"GPU-6ba7b810-9dad-11d1-80b4-{number:012x}"
    for path in tree.files:
        if path.endswith(("/power_state", "/reset_method")):
            tree.files[path] = f"6ba7b810-9dad-11d1-80b4-{len(path):06x}{sum(path.encode()):06x}"
    assert form(capture(Shuffled(tree, ""))[0]) == form(capture(Recorded(tree, ""))[0])


def test_a_captured_directory_and_its_snapshot_are_the_same_host(tmp_path: Path) -> None:
    tree = spoilt()
    tree.nodes = {}
    for path in tuple(tree.refused):
        tree.remove(path)
    expected, found = capture(Recorded(tree, ""))[0], capture(Captured(str(written(tree, tmp_path))))[0]
    for each in (expected, found):
        each.properties = {}  # this machine has names of its own
    assert form(found) == form(expected)


def test_the_snapshot_of_a_host_says_where_it_comes_from() -> None:
    text, unread = Host.recorded(str(HOSTS / f"{SMALL}.host")).snapshot()
    assert text.split("\n")[1] == f"# recorded from recorded host {SMALL}.host by vfioctl snapshot"
    assert unread == ()


@pytest.mark.parametrize("kind", [str, Path])
def test_the_snapshot_of_a_captured_directory_does_not_name_it(tmp_path: Path, kind: type[str | Path]) -> None:
    root = written(plain(), tmp_path / "someone" / "secret")
    (root / "sys/bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
    (root / "sys/bus/pci/drivers/nvidia/module").unlink(missing_ok=True)
    (root / "sys/bus/pci/drivers/nvidia/module").symlink_to(f"{root}/sys/module/nvidia")
    text, _ = Host.at(kind(root)).snapshot()
    assert text.split("\n")[1] == "# recorded from a captured directory by vfioctl snapshot"
    assert "secret" not in text
    assert "/sys/bus/pci/drivers/nvidia/module -> /sys/module/nvidia\n" in text
    assert Captured(str(root)).link("/sys/bus/pci/drivers/nvidia/module") == "/sys/module/nvidia"


# -- copies that are not as the kernel writes them -----------------------------------------------------


def plain() -> Tree:
    tree = spoilt()
    tree.nodes = {}
    for path in tuple(tree.refused):
        tree.remove(path)
    return tree


def test_links_that_end_in_a_slash_are_those_without(tmp_path: Path) -> None:
    root = written(plain(), tmp_path)
    expected = form(capture(Captured(str(root)))[0])
    for place in (root / "sys/bus/pci/devices", *(root / "sys/bus/pci/drivers").iterdir()):
        for link in filter(Path.is_symlink, place.iterdir()):
            target = os.readlink(link)
            link.unlink()
            os.symlink(f"{target}/", link)
    assert form(capture(Captured(str(root)))[0]) == expected
    path = f"{PCI_DEVICES}/{Captured(str(root)).children(PCI_DEVICES)[0]}"
    for kernel in (Captured(str(root)), Recorded(parse(f"#vfioctl-host 1\n{path} -> ../a/\n#end\n", "x"), "")):
        assert kernel.link(path)[-1] != "/"
    os.symlink("../a//", tmp_path / "link")
    assert Live().link(str(tmp_path / "link")) == "../a"
    assert Live().directory(str(tmp_path), ()).links["link"] == "../a"


def test_functions_that_are_directories_are_recorded_as_such(tmp_path: Path) -> None:
    root = written(plain(), tmp_path)
    for link in (root / "sys/bus/pci/devices").iterdir():
        directory = link.resolve()
        link.unlink()
        shutil.copytree(directory, link, symlinks=True)
    tree, unread = capture(Captured(str(root)))
    expected, _ = capture(Recorded(plain(), ""))
    for address in expected.directories[PCI_DEVICES]:
        assert f"{PCI_DEVICES}/{address}" in tree.directories
        home = expected.resolve(f"{PCI_DEVICES}/{address}")
        assert tree.files[f"{PCI_DEVICES}/{address}/vendor"] == expected.files[f"{home}/vendor"]
    assert not [path for path in unread if path.startswith(PCI_DEVICES)]
    for inventory in (Host.at(root).inventory(), read_inventory(Recorded(parse(form(tree), "x"), ""))):
        assert [function.address for function in inventory.functions] == sorted(expected.directories[PCI_DEVICES])


def test_lists_that_end_in_nul_are_those_without(tmp_path: Path) -> None:
    node = tmp_path / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_bytes(b"0-3\n\0")
    home = "/sys/devices/system/node/node0"
    for kernel in (Captured(str(tmp_path)), Live()):
        outside = "" if isinstance(kernel, Captured) else str(tmp_path)
        assert kernel.directory(f"{outside}{home}", ("cpulist",)).texts == {"cpulist": "0-3"}
        assert kernel.texts_below(f"{outside}{home.rpartition('/')[0]}", "cpulist").texts == {"node0": "0-3"}
    assert Captured(str(tmp_path)).read(f"{home}/cpulist") == "0-3"
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cmdline").write_bytes(b"qemu\0-x\0")
    assert Captured(str(tmp_path)).read("/proc/7/cmdline") == "qemu\0-x\0", "there a NUL has a meaning"


def test_masks_of_cpus_are_recorded_where_there_are_no_lists() -> None:
    tree = plain()
    node, function = (
        "/sys/devices/system/node/node0",
        tree.resolve(f"{PCI_DEVICES}/{min(tree.directories[PCI_DEVICES])}"),
    )
    tree.put(f"{node}/cpumap", "0000000f")
    tree.put(f"{function}/local_cpus", "0000000f")
    tree.put(f"{node}/cpulist", "0-3")
    tree.put(f"{function}/local_cpulist", "0-3")
    found, _ = capture(Recorded(tree, ""))
    assert not {f"{node}/cpumap", f"{function}/local_cpus"} & set(found.files)
    tree.remove(f"{node}/cpulist")
    tree.remove(f"{function}/local_cpulist")
    found, _ = capture(Recorded(tree, ""))
    assert found.files[f"{node}/cpumap"] == found.files[f"{function}/local_cpus"] == "0000000f"


# -- says nothing private ------------------------------------------------------------------------------


def test_uuids_and_macs_get_stand_ins_that_keep_what_is_equal_equal() -> None:
    tree = spoilt()
    device = tree.resolve(f"{PCI_DEVICES}/0000:01:00.0")
    tree.put("/proc/sys/kernel/random/boot_id", "6BA7B810-9dad-11d1-80b4-00c04fd430c8")
    tree.put(f"{device}/power_state", "6BA7B810-9dad-11d1-80b4-00c04fd430c8 and 6ba7b811-9dad-11d1-80b4-00c04fd430c8")
    tree.put(f"{device}/reset_method", "3c:fd:fe:12:34:56, 3C:FD:FE:12:34:57")
    tree.put("/proc/cmdline", "vfio.x=6ba7b811-9dad-11d1-80b4-00c04fd430c8")
    found = retaken(tree)
    first, second = found.files[f"{device}/power_state"].split(" and ")
    assert first == found.files["/proc/sys/kernel/random/boot_id"] != second
    assert found.files["/proc/cmdline"] == f"vfio.x={second}"
    one, other = found.files[f"{device}/reset_method"].split(", ")
    assert one != other
    text = form(found).lower()
    assert not re.search("9dad|c04fd4|3c:fd:fe", text)


def test_why_nvml_says_nothing_is_told() -> None:
    tree = copy(original("gh200"))
    tree.properties["sim:nvml"] = {"error": "driver and library versions differ"}
    found, unread = capture(Recorded(tree, ""))
    assert unread == ["NVML: driver and library versions differ"]
    assert not [subject for subject in found.properties if "nvml" in subject]


def test_what_nvml_says_is_redacted() -> None:
    tree = spoilt("gh200")
    subject = next(s for s in tree.properties if s.startswith("nvml:"))
    tree.properties[subject]["uuid"] = "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    assert re.fullmatch(r"GPU-00000000-0000-0000-0000-[0-9a-f]{12}", retaken(tree).properties[subject]["uuid"])


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("BOOT_IMAGE=/vmlinuz-6.1 root=UUID=x ro quiet intel_iommu=on iommu=pt", "intel_iommu=on iommu=pt"),
        ("hostname=alice ip=10.0.0.1::::alice:eth0 amd_iommu=off", "amd_iommu=off"),
        ("vfio-pci.ids=10de:2330,10de:22a3 vfio_pci.disable_vga=1", None),
        ("pci=realloc,assign-busses pcie_acs_override=downstream pcie_aspm=off", None),
        ("module_blacklist=nouveau modprobe.blacklist=nouveau rd.driver.blacklist=nouveau", None),
        ("isolcpus=1-3 nohz_full=1-3 hugepagesz=1G default_hugepagesz=1G hugepages=8", None),
        ("systemd.machine_id=6ba7b8109dad11d180b400c04fd430c8 luks.uuid=x xvfio=1 myiommu=1", ""),
        ("console=ttyS0 video=efifb:off nomodeset kvm.ignore_msrs=1", "video=efifb:off nomodeset kvm.ignore_msrs=1"),
        ("", ""),
    ],
)
def test_of_the_command_line_only_what_concerns_devices_is_kept(words: str, kept: str | None) -> None:
    tree = spoilt()
    tree.put("/proc/cmdline", words)
    expected = words if kept is None else kept
    if "modprobe.blacklist" in expected:
        expected = expected.replace("modprobe.blacklist=nouveau ", "")
    assert retaken(tree).files["/proc/cmdline"] == expected


def test_of_the_processor_only_vendor_and_flags_are_kept() -> None:
    tree = spoilt()
    tree.put("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: X\nserial\t: 123\nflags\t\t: vmx\n\nflags\t: other")
    assert retaken(tree).files["/proc/cpuinfo"] == "vendor_id\t: X\nflags\t\t: vmx"
    tree.put("/proc/cpuinfo", "serial\t: 123")
    assert "/proc/cpuinfo" not in retaken(tree).files


def test_of_a_nodes_memory_only_the_total_is_kept() -> None:
    name, home = "workstation", "/sys/devices/system/node/node0"
    tree = spoilt(name)
    tree.put(f"{home}/meminfo", "Node 0 MemTotal:       65536 kB\nNode 0 MemFree:  1234 kB")
    assert retaken(tree).files[f"{home}/meminfo"] == "Node 0 MemTotal:       65536 kB"


def test_of_a_device_only_known_files_are_kept() -> None:
    tree = spoilt()
    device = tree.resolve(f"{PCI_DEVICES}/0000:01:00.0")
    tree.put(f"{device}/serial_number", "A-SERIAL")
    assert "A-SERIAL" not in form(retaken(tree))


def test_of_modules_alias_only_the_lines_for_devices_here_are_kept_in_their_order() -> None:
    tree = spoilt("gh200")
    path = next(path for path in tree.files if path.endswith("modules.alias"))
    tree.put(path, f"{tree.files[path]}\nalias pci:v0000FFFFd*sv*sd*bc*sc*i* secret_module\nalias usb:v1 x")
    kept = retaken(tree).files[path].split("\n")
    assert "secret_module" not in " ".join(kept)
    assert kept == [line for line in original("gh200").files[path].split("\n") if line in kept]
    assert "alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci" in kept


# -- of any host ---------------------------------------------------------------------------------------


def test_what_could_not_be_read_is_named_and_recorded_as_such() -> None:
    tree = spoilt("workstation")
    device = tree.resolve(f"{PCI_DEVICES}/0000:0a:00.0")
    for path in (f"{device}/reset_method", "/proc/sys/kernel/osrelease"):
        del tree.files[path]
    tree.put_refused(f"{device}/reset_method", 13)
    tree.put_refused("/proc/sys/kernel/osrelease", 524)
    found, unread = capture(Recorded(tree, ""))
    assert unread == ["/proc/sys/kernel/osrelease", f"{device}/reset_method"]
    refused = parse(form(found), "").refused
    assert (refused[f"{device}/reset_method"], refused["/proc/sys/kernel/osrelease"]) == (13, 5)


@pytest.mark.parametrize(("power_state", "is_kept"), [("D0", True), ("D3cold", False)])
def test_sizes_of_bars_are_kept_of_gpus_that_are_awake(power_state: str, *, is_kept: bool) -> None:
    tree = spoilt("t4")
    gpu, bridge = (tree.resolve(f"{PCI_DEVICES}/{function.address}") for function in _gpu_and_bridge(tree))
    tree.put(f"{gpu}/power_state", power_state)
    for home in (gpu, bridge):
        tree.put(f"{home}/resource1_resize", "0000000000003f00")
    kept = retaken(tree)
    assert (kept.files.get(f"{gpu}/resource1_resize") == "0000000000003f00") is is_kept
    assert f"{bridge}/resource1_resize" not in kept.files


def test_sizes_of_bars_that_cannot_be_read_are_named() -> None:
    tree = spoilt("t4")
    file = f"{tree.resolve(f'{PCI_DEVICES}/{_gpu_and_bridge(tree)[0].address}')}/resource1_resize"
    tree.put_refused(file, 5)
    assert file in capture(Recorded(tree, ""))[1]


def _gpu_and_bridge(tree: Tree) -> tuple[Function, Function]:
    functions = read_inventory(Recorded(tree, "")).functions
    return next(f for f in functions if f.is_gpu), next(f for f in functions if f.is_bridge)


def test_tables_of_the_firmware_are_there_but_not_read() -> None:
    tree = spoilt("workstation")
    found, unread = capture(Recorded(tree, ""))
    assert found.refused["/sys/firmware/acpi/tables/IVRS"] == 13
    assert unread == []


class Vanishing(Recorded):
    """A host on which some directories are gone, or say nothing, by the time they are read."""

    def __init__(self, tree: Tree, *gone: str, errno: int = 2) -> None:
        super().__init__(tree, "")
        self._gone, self._errno = gone, errno

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        if path in self._gone:
            raise KernelRefused(path, self._errno)
        return super().directory(path, wanted, links)

    def device_number(self, path: str) -> Node:
        if path in self._gone:
            raise KernelRefused(path, self._errno)
        return super().device_number(path)


def test_a_device_that_vanishes_meanwhile_costs_itself() -> None:
    gone = f"{PCI_DEVICES}/0000:0a:00.0"
    found, unread = capture(Vanishing(spoilt("workstation"), gone))
    assert unread == [gone]
    assert len(found.directories[PCI_DEVICES]) == len(original("workstation").directories[PCI_DEVICES]) - 1


@pytest.mark.parametrize(("errno", "unread"), [(2, []), (13, [f"{PCI_DRIVERS}/nvidia", "/sys/module/nvme/drivers"])])
def test_a_driver_that_vanishes_meanwhile_costs_itself(errno: int, unread: list[str]) -> None:
    gone = (f"{PCI_DRIVERS}/nvidia", "/sys/module/nvme/drivers")
    found, problems = capture(Vanishing(spoilt("workstation"), *gone, errno=errno))
    assert problems == sorted(unread)
    assert "nvidia" not in found.directories[PCI_DRIVERS]
    assert found.directories[PCI_DEVICES] == original("workstation").directories[PCI_DEVICES]


@pytest.mark.parametrize(("errno", "unread"), [(2, []), (13, ["/dev/vfio/vfio"])])
def test_device_nodes_are_recorded_by_number(errno: int, unread: list[str]) -> None:
    tree = spoilt("workstation")
    tree.put_node("/dev/vfio/vfio", Node("c", 10, 196))
    tree.put_directory("/dev/vfio/devices")
    assert retaken(tree).nodes["/dev/vfio/vfio"] == Node("c", 10, 196)
    assert capture(Vanishing(tree, "/dev/vfio/vfio", errno=errno))[1] == unread


def test_a_device_on_vfio_keeps_its_own_node() -> None:
    tree = spoilt("workstation")
    device = tree.resolve(f"{PCI_DEVICES}/0000:0a:00.0")
    tree.put_directory(f"{device}/vfio-dev/vfio7")
    tree.put_node("/dev/vfio/devices/vfio7", Node("c", 511, 7))
    found = retaken(tree)
    assert found.directories[f"{device}/vfio-dev"] == {"vfio7"}
    by_address = read_inventory(Recorded(found, "")).by_address
    assert {f.vfio_cdev for f in by_address.values()} == {None, "/dev/vfio/devices/vfio7"}


def test_a_device_that_does_not_answer_is_named() -> None:
    class Mute(Recorded):
        def survey(
            self,
            reader: Callable[..., Callable[[str], T]],
            subjects: Iterable[str],
            *,
            args: Sequence[object] = (),
            timeout: float | None = None,
            total: float | None = None,
        ) -> Iterator[tuple[str, T | Unanswered]]:
            for subject, answer in super().survey(reader, subjects, args=args, timeout=timeout, total=total):
                yield subject, Unanswered("no answer") if subject == f"{PCI_DEVICES}/0000:01:00.0" else answer

    found, unread = capture(Mute(spoilt(), ""))
    assert unread == [f"{PCI_DEVICES}/0000:01:00.0"]
    assert "0000:01:00.0" not in found.directories[PCI_DEVICES]


def test_names_with_spaces_are_kept(tmp_path: Path) -> None:
    root = written(spoilt(), tmp_path)
    device = root / original(SMALL).resolve(f"{PCI_DEVICES}/0000:01:00.0").lstrip("/")
    (root / PCI_DRIVERS.lstrip("/") / "a driver").mkdir()
    (device / "consumer:platform:Fixed MDIO bus.0").symlink_to("x")
    found, unread = capture(Captured(str(root)))
    again = parse(form(found), "snapshot")
    assert unread == []
    assert "a driver" in again.directories[PCI_DRIVERS]
    assert any(path.endswith("/consumer:platform:Fixed MDIO bus.0") for path in again.links)


@pytest.mark.parametrize("spoil", ["driver", "link", "target", "line", "device", "group", "modalias"])
def test_what_the_format_cannot_hold_is_left_out_and_named(tmp_path: Path, spoil: str) -> None:
    tree = spoilt()
    root = written(tree, tmp_path)
    device = root / tree.resolve(f"{PCI_DEVICES}/0000:01:00.0").lstrip("/")
    if spoil == "driver":
        (root / PCI_DRIVERS.lstrip("/") / "a\ndriver").mkdir()
    elif spoil == "link":
        (device / "consumer:\x1b[0m").symlink_to("x")
    elif spoil == "target":
        (device / "firmware_node").symlink_to("a\nb -> c\t ")
    elif spoil == "line":
        (root / "proc/cmdline").write_text("iommu=" + "x" * 100_000)
    elif spoil == "device":
        (root / PCI_DEVICES.lstrip("/") / "a\nb").symlink_to(f"../../../{device.relative_to(root / 'sys')}")
    elif spoil == "group":
        (root / "sys/kernel/iommu_groups/a\tb/devices").mkdir(parents=True)
    elif spoil == "modalias":
        (device / "modalias").write_text((device / "modalias").read_text().strip() + " KEY = x\nhwdb:y")
    found, unread = capture(Captured(str(root)))
    again = parse(form(found), "snapshot")
    assert form(again) == form(found)
    assert bool(unread) == (spoil not in ("target", "modalias"))
    assert "0000:01:00.0" in again.directories[PCI_DEVICES]
    if spoil == "target":
        assert "a\nb -> c\t " in again.links.values()


def test_a_line_of_megabytes_is_left_out_at_once() -> None:
    tree = spoilt()
    tree.put("/proc/sys/kernel/osrelease", "\0" * (16 << 20))
    began = time.monotonic()
    assert capture(Recorded(tree, ""))[1] == ["/proc/sys/kernel/osrelease"]
    assert time.monotonic() - began < 5


def test_an_empty_directory_gives_an_empty_host(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    text, unread = Host.at(tmp_path).snapshot()
    assert unread == ()
    assert parse(text, "").files == {"/proc/cmdline": ""}


@unhurried
@given(st.data())
def test_any_spoilt_file_still_gives_a_snapshot_that_reads_back(data: st.DataObject) -> None:
    tree = spoilt()
    for path in data.draw(st.lists(st.sampled_from(sorted(tree.files)), max_size=4)):
        tree.put(path, data.draw(st.text(max_size=30) | st.sampled_from(["pci:v" + "0" * 60, "\n" * 9, "0" * 70_000])))
    for path in data.draw(st.lists(st.sampled_from(sorted(tree.links)), max_size=3)):
        target = st.text(max_size=10) | st.sampled_from(["..", "/", path.rpartition("/")[2], "x" * 5000])
        tree.put_link(path, data.draw(target))
    once = form(capture(Recorded(tree, ""))[0])
    assert form(parse(once, "once")) == once

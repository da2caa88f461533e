"""What is read for the checks: of a host's tree, with files that are missing, refused or hostile."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from tests.captures import unpack
from tests.hosts.machines import HOSTS, copy, original
from vfioctl.doctor.api import packaged_rules
from vfioctl.doctor.checks.table import CHECKS, examine
from vfioctl.doctor.model.facts import Facts, ModuleState, Pages
from vfioctl.doctor.model.result import Status
from vfioctl.doctor.probe import files
from vfioctl.errors import KernelRefused
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.session import Session

GPU = PciAddress("0000:41:00.0")


def facts_in(tree: Tree, tmp_path: Path) -> Facts:
    return Host(Session(Recorded(tree, "a host"), tmp_path / "ledger.db")).doctor.facts()


def recorded(**texts: str) -> Recorded:
    """A host with these files."""
    tree = Tree()
    tree.put("/proc/sys/kernel/osrelease", "6.8.0")
    for name, text in texts.items():
        tree.put(name, text)
    return Recorded(tree, "a host")


@pytest.mark.parametrize(
    ("texts", "state"),
    [
        ({"/lib/modules/6.8.0/modules.builtin": "kernel/a.ko\nkernel/drivers/vfio/pci/vfio-pci.ko"}, "built in"),
        ({"/lib/modules/6.8.0/modules.dep": "kernel/drivers/vfio/pci/vfio-pci.ko.zst: kernel/b.ko"}, "not loaded"),
        ({"/lib/modules/6.8.0/modules.dep": "kernel/b.ko: kernel/drivers/vfio/pci/vfio-pci-core.ko"}, "missing"),
        ({}, "unknown"),
    ],
)
def test_where_vfio_pci_is(texts: dict[str, str], state: str) -> None:
    found = files.read_vfio_pci(recorded(**texts), ("nvidia",), ())
    assert found.value.startswith(state)
    assert files.read_vfio_pci(recorded(**texts), ("vfio-pci",), ()) is ModuleState.LOADED


def test_a_file_hides_those_of_its_name_in_later_directories() -> None:
    kernel = recorded(**{"/lib/modprobe.d/vfio.conf": "options vfio-pci ids=10de:1"})
    assert [file.path for file in files.read_modprobe(kernel)] == ["/lib/modprobe.d/vfio.conf"]
    kernel.tree.put("/etc/modprobe.d/vfio.conf", "# vfio")
    kernel.tree.put("/etc/modprobe.d/other.conf", "options kvm x=1")
    kernel.tree.put_refused("/etc/modprobe.d/secret.conf", errno.EACCES)
    found = files.read_modprobe(kernel)
    assert [(file.path, file.refused) for file in found] == [
        ("/etc/modprobe.d/secret.conf", "EACCES"),
        ("/etc/modprobe.d/vfio.conf", ""),
    ]


def test_bars_without_an_address() -> None:
    lines = [
        "0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200",
        "0x0000000000000000 0x00000003ffffffff 0x000000002014220c",
        "0x0000000000000000 0x0000000000000000 0x0000000000000000",
        "0x0000000000000000 0x000000000000007f 0x0000000000040101",
        "what is this",
    ]
    kernel = recorded(**{f"/sys/bus/pci/devices/{GPU}/resource": "\n".join(lines)})
    function = replace(Host.recorded("t4").inventory().gpus[0], address=GPU)
    assert files.read_unassigned(kernel, [function]) == {GPU: (1,)}


def test_interrupt_controllers_and_capabilities() -> None:
    kernel = recorded(
        **{
            "/sys/kernel/irq/9/chip_name": "IO-APIC",
            "/sys/kernel/irq/10/chip_name": "IR-PCI-MSI",
            "/sys/kernel/irq/11/chip_name": "",
            "/sys/kernel/irq/x/chip_name": "hostile",
            "/sys/class/iommu/dmar0/intel-iommu/ecap": "f020da",
            "/sys/class/iommu/ivhd0/amd-iommu/cap": "0",
        }
    )
    assert files.read_irq_chips(kernel) == ("IO-APIC", "IR-PCI-MSI")
    assert [file.text for file in files.read_ecaps(kernel)] == ["f020da"]


def test_capabilities_of_a_virtual_machine(tmp_path: Path) -> None:
    tree = copy(original("lab"))
    tree.put(f"{tree.resolve('/sys/class/iommu/dmar0')}/intel-iommu/cap", "d2008c222f0606")
    tree.put_refused("/sys/class/iommu/dmar1/intel-iommu/cap", errno.EACCES)
    assert [(file.text, file.refused) for file in facts_in(tree, tmp_path).caps] == [
        ("d2008c222f0606", ""),
        (None, "EACCES"),
    ]
    (result,) = [result for result in examine(facts_in(tree, tmp_path)) if result.check == "nested"]
    assert result.status is Status.NOTE


def test_hugepages_of_the_nodes() -> None:
    home = "/sys/devices/system/node/node0/hugepages"
    kernel = recorded(
        **{
            f"{home}/hugepages-2048kB/nr_hugepages": "512",
            f"{home}/hugepages-2048kB/free_hugepages": "256",
            f"{home}/hugepages-1048576kB/nr_hugepages": "no number",
        }
    )
    assert files.read_pages(kernel, [0, 1]) == (Pages(0, 2 << 20, 512, 256),)


def test_the_permissions_of_a_node(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    file.chmod(0o640)
    assert Live(read_only=True).permissions(str(file)) == f"{file.stat().st_uid}:{file.stat().st_gid}:640"
    with pytest.raises(KernelRefused, match="failed"):
        Live(read_only=True).permissions(f"{file}-not")
    for kernel in (recorded(), Captured(str(tmp_path))):
        with pytest.raises(KernelRefused) as caught:
            kernel.permissions("/file")
        assert caught.value.symbol == "ENODATA"


def test_the_groups_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = recorded(**{"/etc/group": "root:x:0:\nkvm:x:104:ada"})
    owners = {"/a": "0:104:660", "/b": "0:0:660", "/c": "0:7:660", "/d": "", "/e": "0:x:660"}
    monkeypatch.setattr(files, "permissions_of", lambda _, path: owners[path])
    assert files.read_groups(kernel, owners) == {"/a": "kvm", "/c": "7"}


READ = (
    "/proc/buddyinfo",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/sys/kernel/osrelease",
    "/sys/kernel/irq/0/chip_name",
    "/sys/kernel/security/lockdown",
    "/sys/devices/system/cpu/isolated",
    "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
    "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
    "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit",
    files.SECURE_BOOT,
    "/lib/modprobe.d/vfio.conf",
    "/lib/udev/rules.d/60-vfioctl.rules",
    "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
)


@pytest.mark.parametrize("path", READ)
@pytest.mark.parametrize("text", ["", "\x1b[2J\0", "9" * 5000, "options vfio-pci ids=10de:1eb8,::\n" * 500, None])
def test_one_hostile_file_costs_its_check_only(path: str, text: str | None, tmp_path: Path) -> None:
    tree = copy(original("busy"))
    before = {result.check: result.status for result in examine(facts_in(tree, tmp_path))}
    tree.remove(path)
    if text is None:
        tree.put_refused(path, errno.EACCES)
    else:
        tree.put(path, text)
    results = examine(facts_in(tree, tmp_path))
    assert {result.check for result in results} == {check.name for check in CHECKS}
    changed = {result.check for result in results if result.status is not before[result.check]}
    assert len(changed) <= 3


def test_a_refused_file_is_unknown_as_an_ordinary_user(tmp_path: Path) -> None:
    tree = copy(original("busy"))
    path = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
    tree.remove(path)
    tree.put_refused(path, errno.EACCES)
    (result,) = (r for r in examine(facts_in(tree, tmp_path)) if r.check == "dma-entries")
    assert (result.status, result.remedy) == (Status.UNKNOWN, "run it as root")


def test_the_rules_of_this_release_are_found() -> None:
    rules = packaged_rules()
    assert Path(rules.path).is_absolute()
    assert 'SUBSYSTEM=="vfio"' in (rules.text or "")


def test_the_rules_that_are_installed(tmp_path: Path) -> None:
    root = unpack(HOSTS / "t4.host", tmp_path / "root")
    folder = root / "etc/udev/rules.d"
    folder.mkdir(parents=True)
    (folder / "60-vfioctl.rules").write_text(packaged_rules().text or "")
    facts = Host.at(root).doctor.facts()
    (result,) = (result for result in examine(facts) if result.check == "udev-rules")
    assert result.status is Status.PASS
    (folder / "60-vfioctl.rules").write_text("# of an earlier release")
    (result,) = (r for r in examine(Host.at(root).doctor.facts()) if r.check == "udev-rules")
    assert result.status is Status.NOTE

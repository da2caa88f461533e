"""What is read of planned guests, containers and the boot, and what the checks make of it on whole hosts."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from vfioctl.claims.model.access import ACCESS, Access
from vfioctl.containers.cdi.intent import CdiIntent
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.doctor.checks.table import examine
from vfioctl.doctor.model.result import Result, Status
from vfioctl.doctor.probe.boot import read_built_in, read_initramfs
from vfioctl.doctor.probe.lock_limits import LimitFiles
from vfioctl.doctor.probe.resizable import read_resizable
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.placement.model.request import ClaimRequest

GPU = PciAddress("0000:1b:00.0")
HOME = f"/sys/bus/pci/devices/{GPU}"
MIB, GIB = 1 << 20, 1 << 30
PAM, MORE = "/etc/security/limits.conf", "/etc/security/limits.d/vfio.conf"
SYSTEMD = "/etc/systemd/system.conf"
CDI, CDI_OTHER = "/var/run/cdi/vfioctl.json", "/etc/cdi/other.json"
KATA = "/etc/kata-containers/configuration.toml"
USERS = {
    "/etc/passwd": "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh",
    "/etc/group": "ada:x:1000:\ngpu:x:2000:ada",
}


def recorded(texts: dict[str, str]) -> Recorded:
    tree = Tree()
    for path, text in texts.items():
        tree.put(path, text)
    return Recorded(tree, "a host")


def kernel_of(host: Host) -> Simulated:
    assert isinstance(host.session.kernel, Simulated)
    return host.session.kernel


def found(host: Host, check: str) -> list[Result]:
    return [result for result in examine(host.doctor.facts()) if result.check == check]


def status(host: Host, check: str) -> Status:
    (result,) = found(host, check)
    return result.status


@pytest.fixture
def host() -> Host:
    """A host with one GPU of eight on VFIO."""
    bound = Host.simulated("hgx8")
    bound.apply(bound.binding.plan_bind([GPU]))
    return bound


class TestLockLimits:
    @pytest.mark.parametrize(
        ("texts", "limit", "source"),
        [
            ({}, 8 * MIB, "the default of systemd"),
            ({PAM: "* - memlock 1024"}, MIB, PAM),
            ({PAM: "ada - memlock 2048\n* - memlock 1024\n@gpu - memlock 4096"}, 2 * MIB, PAM),
            ({PAM: "@gpu - memlock 4096\n* soft memlock 1024"}, 4 * MIB, PAM),
            ({PAM: "ada - memlock 1", MORE: "ada soft memlock unlimited  # for QEMU"}, 1024, PAM),
            ({PAM: "ada - memlock 1", MORE: "ada - memlock unlimited"}, None, MORE),
            ({PAM: "ada hard memlock 1024"}, MIB, PAM),
            ({PAM: "@ada - memlock 1024"}, MIB, PAM),
            ({PAM: "@gpu - MEMLOCK 1024\n* - memlock 1"}, MIB, PAM),
            ({PAM: "@:1000 - memlock 1024\n* - memlock 1"}, MIB, PAM),
            ({PAM: "@:2000 - memlock 1024\n* - memlock 1"}, MIB, PAM),
            ({PAM: "@2000: - memlock 1024\n@1001:2000 - memlock 1"}, 8 * MIB, "the"),
            ({PAM: "@1000: - memlock 1024\n* - memlock 1"}, MIB, PAM),
            ({PAM: "@1000:1000 - memlock 1024\n* - memlock 1"}, MIB, PAM),
            ({PAM: ":1000 - memlock 1024\n@gpu - memlock 1"}, MIB, PAM),
            ({PAM: "1000: - memlock 1024\n@gpu - memlock 1"}, MIB, PAM),
            ({PAM: "ada - memlock 1\n999:1001 - memlock 1024"}, MIB, PAM),
            ({PAM: "1000 - memlock 1\n:999 - memlock 1\n1001: - memlock 1\n: - memlock 1"}, 8 * MIB, "the"),
            ({PAM: "1:999 - memlock 1\n1000:x - memlock 1\n@: - memlock 1\n@x:1000 - memlock 1"}, 8 * MIB, "the"),
            ({PAM: "ada hard memlock unlimited"}, 8 * MIB, "the default of systemd"),
            ({PAM: "# ada - memlock 1\nbob - memlock 1\nada - nofile 1\nada - memlock x\nada memlock"}, 8 * MIB, "the"),
            ({SYSTEMD: "[Manager]\nDefaultLimitMEMLOCK=1G"}, GIB, SYSTEMD),
            ({SYSTEMD: "DefaultLimitMEMLOCK=64K:infinity"}, 64 << 10, SYSTEMD),
            ({SYSTEMD: "#DefaultLimitMEMLOCK=1G"}, 8 * MIB, "the"),
            ({SYSTEMD: "DefaultLimitMEMLOCK=1G", f"{SYSTEMD}.d/a.conf": "DefaultLimitMEMLOCK=infinity"}, None, SYSTEMD),
            ({SYSTEMD: "DefaultLimitMEMLOCK=much"}, 8 * MIB, "the"),
        ],
    )
    def test_of_a_user(self, texts: dict[str, str], limit: int | None, source: str) -> None:
        known = LimitFiles(recorded(USERS | texts)).limit_of("c1", Access(1000, 0), None)
        assert (known.user, known.limit) == ("ada", limit)
        assert known.source.startswith(source)

    def test_of_a_group_and_of_a_user_without_a_name(self) -> None:
        files = LimitFiles(recorded(USERS | {PAM: "@gpu - memlock 4096\nada - memlock 1\n* - memlock 2"}))
        group, user = (files.limit_of("c1", access, None) for access in (Access(0, 2000), Access(7, 0)))
        assert (group.user, group.limit) == ("@gpu", 4 * MIB)
        assert (user.user, user.limit) == ("7", 2048)
        assert (group.domain, user.domain) == ("@gpu", ":7")

    def test_numbers_are_named_as_pam_limits_takes_them(self) -> None:
        lines = "7 - memlock 1\n@9 - memlock 1\n:7 - memlock 1024\n@:9 - memlock 2048\n@1: - memlock 1"
        files = LimitFiles(recorded({PAM: lines}))
        user, group = (files.limit_of("c1", access, None) for access in (Access(7, 0), Access(0, 9)))
        assert (user.domain, user.limit) == (":7", MIB)
        assert (group.domain, group.limit) == ("@:9", 2 * MIB)

    def test_a_refused_file_is_named(self) -> None:
        kernel = recorded(USERS)
        kernel.tree.put_refused(PAM, errno.EACCES)
        unread = LimitFiles(kernel).limit_of("c1", Access(1000, 0), None).unread
        assert unread is not None
        assert (unread.path, unread.refused) == (PAM, "EACCES")

    def test_on_a_host(self, host: Host) -> None:
        assert status(host, "memlock") is Status.NOT_APPLICABLE
        host.claims.create(ClaimRequest(owner="user/ada", devices=(GPU,), labels={ACCESS: "1000:0"}))
        (result,) = found(host, "memlock")
        assert result.status is Status.FAIL
        assert "`:1000 - memlock unlimited`" in result.remedy
        kernel_of(host).tree.put(PAM, "* - memlock unlimited")
        assert status(host, "memlock") is Status.PASS

    def test_a_report_does_not_name_the_user(self, host: Host) -> None:
        for path, text in USERS.items():
            kernel_of(host).tree.put(path, text.replace("ada", "lovelace"))
        host.claims.create(ClaimRequest(owner="vm/one", devices=(GPU,), labels={ACCESS: "1000:0"}))
        assert "`lovelace - memlock unlimited`" in found(host, "memlock")[0].remedy
        report = host.doctor.report()
        assert "memlock unlimited" in report["doctor.json"]
        assert "lovelace" not in "".join(report.values())

    def test_against_the_hugepages_of_the_claim(self, host: Host) -> None:
        request = ClaimRequest(owner="user/ada", devices=(GPU,), labels={ACCESS: "1000:0"}, hugepages=2 * GIB)
        kernel_of(host).tree.put(PAM, "* - memlock 3145727")
        host.claims.create(request)
        (result,) = found(host, "memlock")
        assert "and the guest needs 3 GiB" in result.evidence
        kernel_of(host).tree.put(PAM, "* - memlock 3145728")
        assert status(host, "memlock") is Status.PASS


class TestNodes:
    def test_of_a_claim_that_needs_iommufd(self, host: Host) -> None:
        tree = kernel_of(host).tree
        tree.put("/etc/group", "kvm:x:104:")
        tree.nodes["/dev/iommu"] = Node("c", 10, 125)
        kernel_of(host).set_permissions("/dev/vfio/vfio", "0:0:666")
        kernel_of(host).set_permissions("/dev/iommu", "0:0:660")
        host.claims.create(ClaimRequest(owner="user/ada", devices=(GPU,), labels={ACCESS: "1000:0"}))
        assert status(host, "vfio-node-mode") is Status.PASS, "the claim has no node that needs it"
        (name,) = kernel_of(host).children(f"{HOME}/vfio-dev")
        tree.nodes[f"/dev/vfio/devices/{name}"] = Node("c", 511, 0)
        assert host.doctor.facts().iommufd_claims == tuple(claim.id for claim in host.claims.claims())
        assert status(host, "vfio-node-mode") is Status.NOTE
        kernel_of(host).set_permissions("/dev/iommu", "0:104:660")
        (result,) = found(host, "vfio-node-mode")
        assert (result.status, "/dev/iommu has the mode 0660 and the group kvm" in result.evidence) == (
            Status.PASS,
            True,
        )

    def test_of_a_claim_for_root_alone(self, host: Host) -> None:
        (name,) = kernel_of(host).children(f"{HOME}/vfio-dev")
        kernel_of(host).tree.nodes[f"/dev/vfio/devices/{name}"] = Node("c", 511, 0)
        assert host.inventory().by_address[GPU].vfio_cdev
        host.claims.create(ClaimRequest(owner="user/ada", devices=(GPU,)))
        assert host.doctor.facts().iommufd_claims == ()


class TestPlannedGuests:
    SECURITY = "<launchSecurity type='sev-snp'><policy>0x30000</policy></launchSecurity>"
    BLOCK = "<target><block unit='MiB'>4</block></target>"
    XML = f"""<domain type='kvm'><name>one</name><memory unit='GiB'>64</memory><os><type>hvm</type></os>
    {SECURITY}<devices>
    <hostdev mode='subsystem' type='pci' managed='no'><source>
    <address domain='0' bus='0x1b' slot='0' function='0'/></source></hostdev></devices></domain>"""

    @pytest.fixture
    def config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A configuration that names libvirt's test driver."""
        file = tmp_path / "config.toml"
        file.write_text('[domain]\nconnect = "test:///default"\n')
        monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
        return file

    @pytest.mark.usefixtures("config")
    def test_libvirt_is_asked_where_there_is_something_to_give(self, host: Host) -> None:
        assert host.doctor.facts().libvirt is not None
        assert status(host, "libvirt") is Status.PASS
        assert Host.recorded("hgx8").doctor.facts().libvirt is None

    def test_a_libvirt_that_does_not_answer(self, host: Host) -> None:
        assert status(host, "libvirt") is Status.NOT_APPLICABLE
        kernel_of(host).tree.put("/run/libvirt/libvirt-sock", "")
        assert status(host, "libvirt") is Status.UNKNOWN

    def test_a_configuration_that_cannot_be_used(self, host: Host, config: Path) -> None:
        config.write_text("[domain]\nconnect = 3\n")
        (result,) = found(host, "libvirt")
        assert (result.status, "connect" in result.evidence) == (Status.UNKNOWN, True)

    @pytest.mark.usefixtures("config")
    def test_domains_and_claims_are_planned(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        domains = [("one", "u1", False, True, "", self.XML), ("two", "u2", False, True, "", "")]
        monkeypatch.setattr(kernel_of(host), "ask_libvirt", lambda *_: (11_000_000, 9_001_000, domains))
        host.claims.create(ClaimRequest(owner="user/ada", devices=(GPU,), hugepages=GIB))
        known = host.doctor.facts()
        assert [(guest.title.split()[0], guest.memory // GIB, guest.security) for guest in known.guests] == [
            ("domain", 64, "sev-snp"),
            ("claim", 1, ""),
        ]
        (result,) = [result for result in examine(known) if result.check == "libvirt"]
        assert (result.status, result.remedy) == (Status.FAIL, "QEMU 9.2 or later")

    @pytest.mark.usefixtures("config")
    @pytest.mark.parametrize(
        ("old", "new", "piece", "why"),
        [
            ("", "", 4096, "sev-snp"),
            ("<os>", "<iommufd enabled='yes'/><os>", 0, ""),
            (SECURITY, "", 0, ""),
            ("<hostdev", "<memory model='dimm'><target><block>1</block></target></memory><hostdev", 0, ""),
            ("<hostdev", "<iommu model='virtio'/><hostdev", 4096, "a vIOMMU"),
            ("<hostdev", "<memory model='virtio-mem'/><hostdev", 2 * MIB, "virtio-mem"),
            ("<hostdev", f"<memory model='virtio-mem'>{BLOCK}</memory><hostdev", 4 * MIB, "virtio-mem"),
        ],
    )
    def test_what_makes_vfio_map_small_pieces(
        self, host: Host, monkeypatch: pytest.MonkeyPatch, old: str, new: str, piece: int, why: str
    ) -> None:
        document = self.XML.replace(old, new, 1) if old else self.XML
        document = document.replace(self.SECURITY, "") if old == "<hostdev" else document
        domains = [("one", "u1", False, True, "", document)]
        monkeypatch.setattr(kernel_of(host), "ask_libvirt", lambda *_: (11_000_000, 9_001_000, domains))
        (guest,) = host.doctor.facts().guests
        assert (guest.piece, guest.pieces_for) == (piece, why)


class TestContainers:
    def test_a_cdi_file(self, host: Host) -> None:
        assert status(host, "cdi") is Status.NOT_APPLICABLE
        host.apply(host.containers.cdi.plan(CdiIntent(everything=True)))
        tree = kernel_of(host).tree
        assert status(host, "cdi") is Status.PASS
        tree.put(CDI_OTHER, tree.files[CDI])
        assert [result.remedy for result in found(host, "cdi")] == ["remove the file that nothing needs"]
        tree.remove(CDI_OTHER)
        tree.put(CDI, tree.files[CDI].replace("/dev/vfio/", "/dev/vfio/9"))
        assert "does not exist" in found(host, "cdi")[0].evidence
        tree.put(CDI, "{}")
        assert found(host, "cdi")[0].meaning.startswith("Container runtimes refuse this file")
        tree.remove(CDI)
        tree.put_refused(CDI, errno.EACCES)
        assert status(host, "cdi") is Status.UNKNOWN

    def test_kata(self, host: Host) -> None:
        tree = kernel_of(host).tree
        tree.put(KATA, '[hypervisor.qemu]\ncold_plug_vfio = "no-port"\n')
        assert status(host, "kata") is Status.NOT_APPLICABLE, "no device is for Kata"
        host.apply(host.containers.cdi.plan(CdiIntent(everything=True)))
        results = found(host, "kata")
        assert {result.status for result in results} == {Status.FAIL}
        assert any("cold_plug_vfio" in result.evidence for result in results)
        socket = 'pod_resource_api_sock = "/run/x.sock"'
        tree.put(KATA, f'[hypervisor.qemu]\ncold_plug_vfio = "root-port"\npcie_root_port = 8\n[runtime]\n{socket}\n')
        assert status(host, "kata") is Status.PASS

    def test_kata_for_the_claim_of_a_pod(self, host: Host) -> None:
        kernel_of(host).tree.put(KATA, "[hypervisor.qemu]\n")
        host.claims.create(ClaimRequest(owner="pod/a/b/c", devices=(GPU,)))
        assert {result.status for result in found(host, "kata")} == {Status.FAIL}


class TestBoot:
    def test_what_is_built_in_and_what_an_initramfs_has(self) -> None:
        modules = (
            "xhci_pci.license=GPL\0xhci_pci.alias=pci:v*d*sv*sd*bc0Csc03i30*\0vfio_pci.alias=pci:v*d*sv*sd*bc*sc*i*\0"
        )
        kernel = recorded(
            {
                "/proc/sys/kernel/osrelease": "6.8.0",
                "/lib/modules/6.8.0/modules.builtin.modinfo": modules,
                f"{HOME}/modalias": "pci:v000010DEd00001AD8sv000010DEsd0000129Fbc0Csc03i30",
                "/etc/initramfs-tools/modules": "nvidia",
                "/etc/dracut.conf.d/a.conf": 'add_drivers+=" nvidia "',
                "/etc/dracut.conf.d/README": "nvidia",
                "/etc/mkinitcpio.conf": "",
            }
        )
        assert read_built_in(kernel, [GPU, PciAddress("0000:02:00.0")]) == {GPU: ("xhci_pci",)}
        files = ["/etc/initramfs-tools/modules", "/etc/dracut.conf.d/a.conf"]
        assert [file.path for file in read_initramfs(kernel)] == files

    def test_on_a_host(self, host: Host) -> None:
        assert status(host, "first-driver") is Status.NOT_APPLICABLE
        host.apply(host.binding.plan_bind([GPU], persistent=True))
        assert status(host, "first-driver") is Status.PASS
        kernel_of(host).tree.put("/etc/initramfs-tools/modules", "nvidia")
        (result,) = found(host, "first-driver")
        assert (result.status, result.devices) == (Status.NOTE, (GPU,))
        assert "update-initramfs" in result.remedy

    def test_ids_that_come_too_late(self, host: Host) -> None:
        model = host.inventory().by_address[GPU]
        tree = kernel_of(host).tree
        tree.put("/proc/cmdline", f"vfio-pci.ids={model.vendor_id}:{model.device_id}")
        late = [result for result in found(host, "first-driver") if result.status is Status.FAIL]
        assert len(late) == 7, "the eighth is on VFIO"
        assert late[0].command == f"vfioctl bind {late[0].devices[0]} --persistent"


class TestResizableBars:
    def read(self, host: Host, gpu: Function) -> dict[int, tuple[str | None, str]]:
        files = read_resizable(host.session.kernel, [gpu]).get(GPU, {})
        return {number: (file.text, file.refused) for number, file in files.items()}

    def test_is_read_of_a_gpu_that_is_awake(self, host: Host) -> None:
        gpu = host.inventory().by_address[GPU]
        bars = [bar.index for bar in gpu.bars if bar.kind != "io"]
        file = f"{kernel_of(host).tree.resolve(HOME)}/resource{bars[-1]}_resize"
        kernel_of(host).tree.put(file, "000000000003f000")
        assert self.read(host, gpu) == {bars[-1]: ("000000000003f000", "")}
        assert self.read(host, replace(gpu, power_state="D3cold")) == {}
        mark = Mark(address=GPU, kind=MarkKind.WEDGED, since="", why="")
        assert self.read(host, replace(gpu, mark=mark)) == {}
        kernel_of(host).tree.remove(file)
        kernel_of(host).tree.put_refused(file, errno.EIO)
        assert self.read(host, gpu) == {bars[-1]: (None, "EIO")}

    def test_a_small_bar_on_a_host(self, host: Host) -> None:
        assert status(host, "resizable-bars") is Status.NOT_APPLICABLE
        (bar,) = [bar for bar in host.inventory().by_address[GPU].bars if bar.size == 128 * GIB]
        file = f"{kernel_of(host).tree.resolve(HOME)}/resource{bar.index}_resize"
        kernel_of(host).tree.put(file, "0000000000030000")
        assert status(host, "resizable-bars") is Status.PASS
        kernel_of(host).tree.put(file, "0000000000070000")
        (result,) = found(host, "resizable-bars")
        assert (result.status, result.devices) == (Status.NOTE, (GPU,))

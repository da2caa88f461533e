"""The guest's own devices: disks, install media, queues, I/O threads, a vIOMMU."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.unit.conftest import Run
from tests.unit.domain.test_build import xml
from vfioctl.core.limits import read_document
from vfioctl.domain.build.guest import add_own_devices
from vfioctl.domain.model.layout import Cell, Layout, Shape
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.units import CpuSet

BUILD = "domain build w --cpus 4 --memory 4GiB --device gpu0 --host"
MEDIA = "--cdrom /iso/win11.iso --cdrom /iso/virtio-win.iso"
LAYOUT = Layout((Cell(0, CpuSet(range(4)), 4 << 30),), {}, Shape(1, 1, 4, 1))


def targets(root: ET.Element) -> list[tuple[str | None, ...]]:
    return [
        (disk.get("device"), target.get("dev"), target.get("bus"))
        for disk in root.iterfind("devices/disk")
        for target in disk.iterfind("target")
    ]


class TestInstallMedia:
    def test_are_cd_roms_that_the_firmware_boots_and_a_display_shows(self, run: Run) -> None:
        root = xml(run, f"{BUILD} hgx8 --template windows-desktop {MEDIA}")
        assert targets(root)[1:] == [("cdrom", "sda", "sata"), ("cdrom", "sdb", "sata")]
        assert [boot.get("dev") for boot in root.iterfind("os/boot")] == ["hd", "cdrom"]
        graphics = root.find("devices/graphics")
        assert graphics is not None
        assert (graphics.get("type"), graphics.get("listen")) == ("vnc", "127.0.0.1")
        assert {pointer.get("type") for pointer in root.iterfind("devices/input")} == {"tablet", "keyboard"}
        assert xml(run, f"{BUILD} hgx8 --template windows-desktop").find("devices/graphics") is None

    @pytest.mark.parametrize(("template", "bus"), [("windows-desktop", "usb"), ("compute-linux", "scsi")])
    def test_are_not_on_sata_on_arm(self, run: Run, template: str, bus: str) -> None:
        root = xml(run, f"{BUILD} gh200 --hugepages none --template {template} {MEDIA}")
        assert targets(root)[1:] == [("cdrom", "sda", bus), ("cdrom", "sdb", bus)]
        assert (root.find("devices/controller[@type='scsi']") is None) == (bus == "usb")

    def test_disks_replace_disks_and_no_cd_roms(self) -> None:
        root = ET.fromstring(  # noqa: S314 - our own
            "<domain><devices><disk><target dev='vda'/></disk><disk device='lun'><target dev='vdb'/></disk>"
            "<disk device='cdrom'><target dev='sda' bus='sata'/></disk></devices></domain>"
        )
        spec = DomainSpec(name="a", disks=("/a.qcow2",), cdroms=("/b.iso",))
        add_own_devices(root, spec, LAYOUT, edits=False)
        assert sorted(targets(root)) == [("cdrom", "sda", "sata"), ("cdrom", "sdb", "sata"), ("disk", "vda", "virtio")]


class TestManyVcpus:
    def test_an_interface_has_several_queues(self, run: Run) -> None:
        def queues(cpus: int) -> list[str | None]:
            root = xml(
                run, f"domain build w --cpus {cpus} --memory 4GiB --device gpu0 --network a --network b --host hgx8"
            )
            return [driver.get("queues") for driver in root.iterfind("devices/interface/driver")]

        assert (queues(4), queues(32)) == (["4", "4"], ["8", "8"])

    @pytest.mark.parametrize(("interface", "queues"), [("type='user'", None), ("type='bridge'", "4")])
    def test_only_those_that_can(self, interface: str, queues: str | None) -> None:
        root = ET.fromstring(  # noqa: S314 - our own
            f"<domain><devices><interface {interface}><model type='virtio'/></interface></devices></domain>"
        )
        add_own_devices(root, DomainSpec(name="a"), LAYOUT, edits=False)
        driver = root.find("devices/interface/driver")
        assert (None if driver is None else driver.get("queues")) == queues

    def test_disks_have_several_io_threads(self, run: Run) -> None:
        words = "--memory 4GiB --device gpu0 --disk /a --disk /b --disk /c --host hgx8"
        for cpus, threads in ((4, ["1", "1", "1"]), (16, ["1", "2", "1"]), (64, ["1", "2", "3"])):
            root = xml(run, f"domain build w --cpus {cpus} {words}")
            assert [disk.get("iothread") for disk in root.iterfind("devices/disk/driver")] == threads
            assert [pin.get("iothread") for pin in root.iterfind("cputune/iothreadpin")] == sorted({*threads})


class TestViommu:
    @pytest.mark.parametrize("model", ["intel", "virtio"])
    def test_of_x86(self, run: Run, model: str) -> None:
        root = xml(run, f"{BUILD} hgx8 --viommu {model}")
        iommu = root.find("devices/iommu")
        assert iommu is not None
        assert iommu.get("model") == model
        assert (root.find("features/ioapic[@driver='qemu']") is not None) == (model == "intel")
        assert (root.find("devices/iommu/driver[@caching_mode='on']") is not None) == (model == "intel")

    def test_of_arm_is_reported(self, run: Run) -> None:
        done = run(f"{BUILD} gh200 --hugepages none --viommu smmuv3")
        assert "<iommu model='smmuv3'/>" in done.out
        assert "vIOMMU: QEMU refuses devices of the host behind it" in done.err

    @pytest.mark.parametrize(("host", "model"), [("hgx8", "smmuv3"), ("gh200", "intel")])
    def test_that_a_machine_does_not_have(self, run: Run, host: str, model: str) -> None:
        done = run(f"{BUILD} {host} --hugepages none --viommu {model}")
        assert (done.code, f"--viommu {model}: no machine for" in done.err) == (2, True)

    def test_coherent_memory_that_stays_offline_is_reported(self, run: Run) -> None:
        said = "coherent memory of GPUs: their memory does not come online as memory of the guest"
        assert said in run(f"{BUILD} gh200 --hugepages none").err
        assert said not in run(f"{BUILD} hgx8").err

    def test_none_removes_that_of_a_template(self) -> None:
        for viommu, number in (("template", 1), ("none", 0)):
            root = ET.fromstring("<domain><devices><iommu model='virtio'/></devices></domain>")  # noqa: S314
            add_own_devices(root, read_document(DomainSpec, {"name": "a", "viommu": viommu}), LAYOUT, edits=False)
            assert len(root.findall("devices/iommu")) == number


class TestBootDisplay:
    BOOT = "0000:0a:00.0"
    WORDS = f"domain build w --device {BOOT} --cpus 4 --memory 4GiB --simulate workstation"

    def test_is_previewed_before_it_is_bound(self, run: Run) -> None:
        done = run(self.WORDS)
        assert (done.code, "bus='0x0a'" in done.out) == (0, True)
        assert f"a preview: the domain starts after vfioctl bind {self.BOOT} --allow-boot-vga" in done.err
        assert run(f"claim create --owner vm/w --device {self.BOOT} --yes --simulate workstation").code == 4
        chosen = run("domain build w --gpus 3 --cpus 4 --memory 4GiB --simulate workstation")
        assert (chosen.code, "it is the boot display" in chosen.err) == (4, True)

    def test_needs_a_rom_file_afterwards(self, run: Run) -> None:
        assert run(f"bind {self.BOOT} --with-group --allow-boot-vga --yes --simulate workstation").code == 0
        done = run(self.WORDS)
        assert (done.code, "a preview" in done.err) == (0, False)
        assert f"vfioctl rom {self.BOOT} -o FILE" in done.err
        named = run(f"{self.WORDS} --rom {self.BOOT}=/etc/vfioctl/boot.rom")
        assert "<rom file='/etc/vfioctl/boot.rom'/>" in named.out
        assert "ROM" not in named.err

    def test_a_rom_replaces_none(self, run: Run) -> None:
        root = xml(run, f"{BUILD} hgx8 --rom 1b:00.0=/a.rom")
        assert [rom.attrib for rom in root.iterfind("devices/hostdev/rom")] == [{"file": "/a.rom"}]

    @pytest.mark.parametrize(
        ("rom", "why"),
        [
            ("9d:00.0=/a.rom", "the domain does not get this device"),
            ("1b:00.0", "the file is missing"),
            ("1b:00.0=a.rom", "must be a whole path"),
        ],
    )
    def test_that_is_refused(self, run: Run, rom: str, why: str) -> None:
        done = run(f"{BUILD} hgx8 --rom {rom}")
        assert (done.code, why in done.err) == (2, True)

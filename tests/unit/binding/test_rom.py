"""Expansion ROMs: what is in them, what is wrong with them, why they do not answer, and saving them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import marks_of
from tests.hosts.machines import REGISTRY, copy, differing, effect, effects_of, function, machine, original, unhurried
from tests.hosts.machines import state as state_of
from tests.hosts.option_rom import BLOCK, EFI, NVIDIA, OPEN_FIRMWARE, X86, image, option_rom
from tests.probing import read_inventory
from tests.unit.conftest import Golden, Run
from vfioctl.app import main
from vfioctl.binding.model.intents import RomIntent
from vfioctl.binding.model.rom import MOST_IMAGES, Rom, parse_rom
from vfioctl.binding.probe.rom import explain_refusal, understood
from vfioctl.binding.render import rom_page
from vfioctl.core.change import JournalState, Plan, Result
from vfioctl.errors import BadSpec, DeviceInUse, KernelRefused, NotPermitted, Stuck, Unfinished, VerifyError
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

GPU = "0000:0b:00.0"
IDS, CLASS = "10de:1e04", "030000"
NO_IMAGE = "there is no PCI image in it: no 55 aa with a PCIR structure"
DEVICE = function(GPU, CLASS, device_id="1e04")


def parsed(*parts: bytes, device: Function = DEVICE) -> Rom:
    return parse_rom(b"".join(parts), device)


def spoilt(data: bytes, at: int, *values: int) -> bytes:
    return data[:at] + bytes(values) + data[at + len(values) :]


# -- what is in one ------------------------------------------------------------------------------------


class TestImages:
    def test_of_a_sound_rom(self) -> None:
        data = option_rom(IDS, CLASS)
        rom = parsed(data)
        assert (rom.is_sound, rom.faults, rom.remarks) == (True, (), ())
        assert (rom.address, rom.size, rom.sha256) == (GPU, 1024, hashlib.sha256(data).hexdigest())
        bios, efi = rom.images
        assert (bios.kind, bios.offset, bios.size, bios.last, bios.checksum_holds) == ("x86", 0, 512, False, True)
        assert (efi.kind, efi.machine, efi.offset, efi.last, efi.checksum_holds) == ("EFI", "x64", 512, True, None)
        assert {(i.vendor_id, i.device_id, i.class_code) for i in rom.images} == {("10de", "1e04", "030000")}

    def test_for_several_devices(self) -> None:
        rom = parsed(image("10de:1e07", devices=(0x1E07, 0x1E04), code_type=EFI))
        assert rom.images[0].other_devices == ("1e04",)
        assert rom.is_sound

    def test_of_other_kinds(self) -> None:
        rom = parsed(
            image(last=False, code_type=OPEN_FIRMWARE), image(last=False, code_type=NVIDIA), image(code_type=0x42)
        )
        assert [image.kind for image in rom.images] == ["Open Firmware", "NVIDIA", "code type 0x42"]
        assert rom.is_sound

    def test_behind_a_header_of_nvidias(self) -> None:
        rom = parsed(b"NVGI".ljust(3 * BLOCK, b"\1"), option_rom(IDS, CLASS))
        assert [image.offset for image in rom.images] == [1536, 2048]
        assert rom.is_sound
        assert rom.remarks == (
            "1536 bytes come before the first image (NVIDIA's NVGI header): a guest needs a ROM without them",
        )

    def test_and_what_is_around_them(self) -> None:
        rom = parsed(bytes(BLOCK), image(last=False), bytes(100))
        assert rom.is_sound
        assert [remark.partition(":")[0] for remark in rom.remarks] == [
            "512 bytes come before the first image",
            "100 bytes come after the last image",
            "no image says that it is the last one",
            "no EFI image",
        ]

    def test_of_something_that_is_no_display_need_no_efi(self) -> None:
        assert parsed(image(class_code="020000")).remarks == ()

    def test_a_checksum_over_what_firmware_sums(self) -> None:
        """The initialisation size may be less than the image."""
        short = bytearray(image(blocks=2))
        short[2], short[BLOCK:] = 1, bytes(BLOCK)
        short[BLOCK - 1] = -sum(short[: BLOCK - 1]) % 256
        short[-1] = 7
        assert parsed(bytes(short)).images[0].checksum_holds


class TestFaults:
    @pytest.mark.parametrize(
        ("data", "fault"),
        [
            (spoilt(image(), 100, 3), "the x86 image at 0x0 has a wrong checksum: its bytes add up to 0x03, not to 0"),
            (image("10de:1e07"), "the x86 image at 0x0 is for 10de:1e07, and the device is 10de:1e04"),
            (image("1002:1e04"), "the x86 image at 0x0 is for 1002:1e04, and the device is 10de:1e04"),
            (image(blocks=3)[:1000], "the x86 image at 0x0 has 1536 bytes, of which 1000 are there"),
            (spoilt(image(code_type=EFI), 0x30, 0, 0), "the EFI image at 0x0 says that it has no bytes"),
            (spoilt(image(code_type=EFI), 4, 0), "the EFI image at 0x0 lacks the EFI signature 0x0ef1"),
            (b"", f"{NO_IMAGE} (it begins with nothing)"),
            (spoilt(image(), 0, 0x56, 0xFE), f"{NO_IMAGE} (it begins with 56 fe 01 00)"),
            (spoilt(image(), 0x20, 0), f"{NO_IMAGE} (it begins with 55 aa 01 00)"),
        ],
    )
    def test_are_told(self, data: bytes, fault: str) -> None:
        rom = parsed(data)
        assert not rom.is_sound
        assert fault in rom.faults

    def test_of_the_second_image_say_where_it_is(self) -> None:
        (fault,) = parsed(image(last=False), spoilt(image(), 99, 1)).faults
        assert fault.startswith("the x86 image at 0x200 has a wrong checksum")

    def test_a_list_of_devices_is_none_in_an_old_structure(self) -> None:
        """There it was a pointer to vital product data."""
        old = spoilt(image("10de:1e07", devices=(0x1E04,), code_type=EFI), 0x20 + 0x0C, 0)
        assert not parsed(old).is_sound


class TestHostileBytes:
    ROMS = st.builds(
        lambda parts, cut: b"".join(parts)[:cut],
        st.lists(
            st.one_of(
                st.binary(max_size=200),
                st.sampled_from([b"\x55\xaa", b"PCIR", b"NVGI", bytes(BLOCK), b"\xff" * BLOCK, option_rom(IDS, CLASS)]),
                st.builds(
                    spoilt,
                    st.sampled_from([image(last=False), image(code_type=EFI), image(devices=(1, 2, 3))]),
                    st.integers(0, BLOCK - 1),
                    st.integers(0, 255),
                ),
            ),
            max_size=8,
        ),
        st.integers(0, 4096),
    )

    @unhurried
    @given(ROMS)
    @example(b"\x55\xaa" + bytes(0x16) + b"\xff\xff")
    @example(b"\x55\xaa" + bytes(0x16))
    def test_are_judged_and_never_more(self, data: bytes) -> None:
        rom = parse_rom(data, DEVICE)
        assert rom.size == len(data)
        assert bool(rom.images) or not rom.is_sound
        assert len(rom.images) <= MOST_IMAGES
        offsets = [image.offset for image in rom.images]
        assert offsets == sorted(set(offsets))
        assert all(offset < len(data) for offset in offsets)
        assert Rom.model_validate_json(rom.model_dump_json()) == rom

    @pytest.mark.parametrize(
        "block",
        [b"\x55\xaa" * 256, image(last=False), spoilt(image(last=False, devices=(1,)), 0x28, 0xFF, 0xFF), bytes(512)],
        ids=["signatures", "images", "lists", "zeros"],
    )
    def test_of_sixteen_mebibytes_take_no_time(self, block: bytes) -> None:
        began = time.process_time()
        rom = parse_rom(block * (32 << 10), DEVICE)
        assert len(rom.images) <= MOST_IMAGES
        assert time.process_time() - began < 5


# -- asking for one ------------------------------------------------------------------------------------


class Asked(Recorded):
    """A workstation whose GPU answers with bytes, with an errno, or never."""

    def __init__(self, answer: bytes | str, header: bytes | str | None = None, **files: str) -> None:
        tree = copy(original("workstation"))
        home = tree.resolve(f"/sys/bus/pci/devices/{GPU}")
        tree.files.update((f"{home}/{name}", text) for name, text in files.items())
        super().__init__(tree, "a test")
        self._answer, self._header = answer, header

    def rom(self, address: str) -> bytes:
        return answered(f"/sys/bus/pci/devices/{address}/rom", self._answer)

    def config(self, address: str) -> bytes:
        path = f"/sys/bus/pci/devices/{address}/config"
        return super().config(address) if self._header is None else answered(path, self._header)

    def device(self, **facts: Any) -> Function:
        found = read_inventory(self).by_address[PciAddress(GPU)]
        return replace(found, **facts)


def answered(path: str, answer: bytes | str) -> bytes:
    if answer == "never":
        raise Stuck(f"reading {path} did not return")
    if isinstance(answer, str):
        raise KernelRefused(path, getattr(errno, answer))
    return answer


def read_rom(kernel: Recorded, function: Function) -> tuple[bytes, Rom]:
    """As the api asks for it and judges the answer."""
    try:
        data = kernel.rom(function.address)
    except KernelRefused as error:
        explain_refusal(kernel, function, error)
        raise
    return data, understood(kernel, function, data)


def shadowed(kernel: Recorded) -> str:
    lines = kernel.read(f"/sys/bus/pci/devices/{GPU}/resource").splitlines()
    lines[6] = "0x00000000000c0000 0x00000000000dffff 0x0000000000000212"
    return "\n".join(lines)


class TestAsking:
    def reason(self, kernel: Asked, **facts: object) -> str:
        with pytest.raises((KernelRefused, VerifyError)) as caught:
            read_rom(kernel, kernel.device(**facts))
        assert set(caught.value.facts) >= {"power_state", "driver", "boot_vga", "shadow", "memory_decoded"}
        return caught.value.hint

    def test_gives_the_bytes_and_what_they_are(self) -> None:
        data = option_rom(IDS, CLASS)
        kernel = Asked(data)
        assert read_rom(kernel, kernel.device()) == (data, parse_rom(data, kernel.device()))

    def test_a_copy_of_the_firmwares_is_said_to_be_one(self) -> None:
        data = option_rom(IDS, CLASS)
        kernel = Asked(data, resource=shadowed(Asked(b"")))
        assert "the firmware's copy" in read_rom(kernel, kernel.device())[1].remarks[-1]

    def test_no_file_for_a_function_without_the_bar(self) -> None:
        assert "has no expansion ROM" in self.reason(Asked("ENOENT"), bars=())

    def test_no_file_for_a_function_with_the_bar(self) -> None:
        assert "a test has no file `rom`" in self.reason(Asked("ENOENT"))

    def test_no_file_for_a_virtual_function(self) -> None:
        assert "that of its PF 0000:0b:00.0" in self.reason(Asked("ENOENT"), physfn=PciAddress(GPU))

    @pytest.mark.parametrize("symbol", ["EACCES", "EPERM"])
    def test_as_an_ordinary_user(self, symbol: str) -> None:
        assert self.reason(Asked(symbol)).startswith("run it as root")

    @pytest.mark.parametrize("answer", ["EIO", "EINVAL", b"", b"\xff" * 4096, bytes(4096)])
    @pytest.mark.parametrize("state", ["D3hot", "D3cold"])
    def test_a_device_that_sleeps(self, answer: bytes | str, state: str) -> None:
        said = self.reason(Asked(answer, power_state=state))
        assert said.startswith(f"the device sleeps ({state}): echo on > /sys/bus/pci/devices/{GPU}/power/control")

    def test_a_device_that_is_gone(self) -> None:
        assert "fallen off the bus" in self.reason(Asked("EIO", b"\xff" * 64))

    def test_a_device_whose_memory_is_off(self) -> None:
        kernel = Asked("EIO", enable="0")
        assert f"echo 1 > /sys/bus/pci/devices/{GPU}/enable" in self.reason(kernel, driver=None)
        assert "vfio-pci has it: unbind it first" in self.reason(kernel, driver="vfio-pci")

    def test_a_boot_display_without_a_copy(self) -> None:
        kernel = Asked("EIO", resource=shadowed(Asked(b"")))
        assert "the firmware has left no copy" in self.reason(kernel)

    @pytest.mark.parametrize("header", ["EIO", "never", b"", None])
    def test_for_no_reason_that_can_be_seen(self, header: bytes | str | None) -> None:
        kernel = Asked("EIO", header)
        said = self.reason(kernel)
        assert said.startswith("its power state is D0; the kernel log says what was read")
        assert "unbound from nvidia" in said
        assert "another boot display" in said
        assert "unbound" not in self.reason(kernel, driver=None)

    def test_an_odd_resource_file_is_no_shadow(self) -> None:
        for text in ("", "x\n" * 9, "0 0 zz\n" * 9):
            kernel = Asked(option_rom(IDS, CLASS), resource=text)
            assert read_rom(kernel, kernel.device())[1].remarks == ()

    @pytest.mark.parametrize(("answer", "said"), [(b"", "it is empty"), (b"\xff" * 8, "all 8 bytes are 0xff")])
    def test_what_is_no_rom_at_all_is_told(self, answer: bytes, said: str) -> None:
        kernel = Asked(answer)
        with pytest.raises(VerifyError, match=f"the ROM of {GPU} does not answer: {said}"):
            read_rom(kernel, kernel.device())

    def test_that_never_ends_is_stuck(self) -> None:
        kernel = Asked("never")
        with pytest.raises(Stuck):
            read_rom(kernel, kernel.device())


class TestOnAHost:
    """As everybody has it: the same answer, for a function that is named like any other."""

    def host(self, answer: bytes | str, folder: Path) -> Host:
        return Host(Session(Asked(answer), folder / "x.db"))

    def test_a_host_that_cannot_be_written_is_read_and_keeps_no_journal(self, tmp_path: Path) -> None:
        data = option_rom(IDS, CLASS)
        host = self.host(data, tmp_path)
        assert host.binding.rom("gpu1")[0] == host.binding.rom(GPU)[0] == data
        assert not (tmp_path / "x.db").exists()

    def test_a_refusal_is_explained(self, tmp_path: Path) -> None:
        with pytest.raises(KernelRefused, match=r"reading .*/rom failed") as caught:
            self.host("ENOENT", tmp_path).binding.rom("gpu1")
        assert "has no file `rom`" in caught.value.hint
        assert "power_state" in caught.value.facts

    def test_no_answer_at_all_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(VerifyError, match="does not answer"):
            self.host(b"\xff" * 64, tmp_path).binding.rom("gpu1")


# -- journaled, for reading one writes -------------------------------------------------------------------


ROM_FILE = f"{PCI_DEVICES}/{GPU}/rom"
READ, OFF = (ROM_FILE, "1"), (ROM_FILE, "0\n")


def kernel_of(host: Host) -> Simulated:
    assert isinstance(host.session.kernel, Simulated)
    return host.session.kernel


def is_on(tree: Tree) -> bool:
    """Whether the last write to the file has left the ROM on."""
    return tree.properties[f"sim:{GPU}"].get("rom_enabled") == "1"


def planned(host: Host) -> Plan:
    """The plan of the last change."""
    return host.history()[0].plan


class TestJournaled:
    @pytest.fixture
    def tree(self) -> Tree:
        return copy(original("workstation"))

    @pytest.fixture
    def ledger(self, fast_folder: Path) -> Path:
        return fast_folder / "x.db"

    def test_what_is_done_is_what_the_plan_shows(self, tree: Tree, ledger: Path) -> None:
        before, host = state_of(tree), machine(tree, ledger)
        data, rom = host.binding.rom(GPU)
        assert (data, rom.is_sound) == (option_rom(IDS, CLASS), True)
        plan = planned(host)
        assert (plan.intent.verb, plan.intent.title(), plan.subjects) == ("rom", f"rom {GPU}", (GPU,))
        assert kernel_of(host).writes == [effect(step) for step in effects_of(plan)] == [READ]
        assert host.history()[0].state == JournalState.DONE
        assert differing(state_of(tree), before) == []
        assert not is_on(tree)

    def test_its_plan_can_be_read_and_is_no_forgery_but_is_not_kept(self, tree: Tree, ledger: Path) -> None:
        host = machine(tree, ledger)
        host.binding.rom(GPU)
        plan = planned(host)
        assert host.read_plan(plan.model_dump_json()) == plan
        assert not REGISTRY.is_forged(plan)
        with pytest.raises(BadSpec, match="cannot be saved"):
            host.replan(plan)
        other = plan.model_copy(update={"intent": RomIntent(devices=(PciAddress("0000:05:00.0"),))})
        assert REGISTRY.is_forged(other), "of another device"

    @pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.EBUSY])
    def test_a_refused_read_leaves_it_off(self, tree: Tree, ledger: Path, number: int) -> None:
        before, host = state_of(tree), machine(tree, ledger, [Fault(1, "errno", number)])
        with pytest.raises(KernelRefused) as caught:
            host.binding.rom(GPU)
        assert caught.value.errno == number
        assert caught.value.restored == f"{GPU} put back as before"
        assert caught.value.facts["driver"] == "nvidia"
        assert caught.value.hint
        assert kernel_of(host).writes == [READ, OFF]
        assert host.history()[0].state == JournalState.BACK
        assert differing(state_of(tree), before) == []
        assert not is_on(tree)
        assert host.recover() == ()
        assert host.binding.rom(GPU)[1].is_sound, "it can be tried again"

    def test_where_there_is_no_rom_nothing_is_left_to_switch_off(self, tree: Tree, ledger: Path) -> None:
        host = machine(tree, ledger)
        with pytest.raises(KernelRefused) as caught:
            host.binding.rom("gpu0")
        assert caught.value.symbol == "ENOENT"
        assert "no file `rom` for it" in caught.value.hint
        assert host.history()[0].state == JournalState.BACK
        assert host.recover() == ()

    def test_a_device_that_sleeps_is_put_back_and_told_of(self, tree: Tree, ledger: Path) -> None:
        tree.put(f"{tree.resolve(f'{PCI_DEVICES}/{GPU}')}/power_state", "D3hot")
        host = machine(tree, ledger)
        with pytest.raises(KernelRefused) as caught:
            host.binding.rom(GPU)
        assert "the device sleeps (D3hot)" in caught.value.hint
        assert host.history()[0].state == JournalState.BACK

    def test_no_rom_in_the_bytes_is_no_failed_change(self, tree: Tree, ledger: Path) -> None:
        tree.properties[f"sim:{GPU}"]["rom"] = "ff" * 64
        host = machine(tree, ledger)
        with pytest.raises(VerifyError, match="does not answer: all 64 bytes are 0xff"):
            host.binding.rom(GPU)
        assert host.history()[0].state == JournalState.DONE
        assert host.recover() == ()

    @pytest.mark.parametrize("forward", [False, True])
    def test_a_death_is_recovered(self, tree: Tree, ledger: Path, forward: bool) -> None:
        before = state_of(tree)
        with pytest.raises(SimulatedDeath):
            machine(tree, ledger, [Fault(1, DIE)]).binding.rom(GPU)
        kernel_of(machine(tree, ledger)).write(*READ)  # as if it had come between the switch and the read
        assert is_on(tree)
        heir = machine(tree, ledger)
        assert heir.history()[0].state == JournalState.OPEN
        for change in (lambda: heir.binding.rom(GPU), lambda: heir.apply(heir.binding.plan_bind([GPU]))):
            with pytest.raises(Unfinished):
                change()
        (outcome,) = heir.recover(forward=forward)
        assert outcome.result == (Result.DONE if forward else Result.BACK)
        assert kernel_of(heir).writes == [OFF]
        assert not is_on(tree)
        assert differing(state_of(tree), before) == []
        assert heir.recover() == ()

    def test_a_death_is_over_with_the_next_boot(self, tree: Tree, ledger: Path) -> None:
        with pytest.raises(SimulatedDeath):
            machine(tree, ledger, [Fault(1, DIE)]).binding.rom(GPU)
        booted = copy(original("workstation"))
        booted.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111")
        heir = machine(booted, ledger)
        (outcome,) = heir.recover()
        assert outcome.result == Result.REBOOTED
        assert kernel_of(heir).writes == [], "no boot leaves a ROM on"

    @pytest.mark.parametrize("forward", [False, True])
    def test_a_hang_is_told_marked_and_recovered(self, tree: Tree, ledger: Path, forward: bool) -> None:
        before, host = state_of(tree), machine(tree, ledger, [Fault(1, HANG)])
        with pytest.raises(Stuck, match="did not return") as caught:
            host.binding.rom(GPU)
        assert caught.value.next_command == "vfioctl recover"
        assert kernel_of(host).writes == [READ], "nothing more was tried"
        assert host.history()[0].state == JournalState.STUCK
        assert marks_of(host).keys() == {GPU}
        heir = machine(tree, ledger)
        with pytest.raises(DeviceInUse, match="is wedged"):
            heir.binding.rom(GPU)
        with pytest.raises(Stuck, match="is still wedged"):
            heir.recover(forward=forward)
        kernel_of(heir).release(GPU)
        assert is_on(tree), "the write has ended after all"
        (outcome,) = heir.recover(forward=forward)
        assert outcome.result == (Result.DONE if forward else Result.BACK)
        assert not is_on(tree)
        assert differing(state_of(tree), before) == []
        assert not marks_of(heir)
        assert heir.binding.rom(GPU)[1].is_sound

    def test_one_that_cannot_be_switched_off_is_stuck_and_recovered(self, tree: Tree, ledger: Path) -> None:
        faults = [Fault(1, "errno", errno.EIO), Fault(2, "errno", errno.EACCES)]
        with pytest.raises(Stuck, match="the rollback failed"):
            machine(tree, ledger, faults).binding.rom(GPU)
        heir = machine(tree, ledger)
        assert heir.history()[0].state == JournalState.STUCK
        (outcome,) = heir.recover()
        assert outcome.result == Result.BACK
        assert kernel_of(heir).writes == [OFF]

    @pytest.mark.parametrize(
        ("value", "on"), [("1", True), ("1\n", True), ("0\n", False), ("00", False), ("0", True), ("off", True)]
    )
    def test_it_is_switched_as_linux_does(self, tree: Tree, value: str, on: bool) -> None:
        """pci_write_rom: off by two bytes of which the first is 0, on by anything else."""
        kernel = Simulated(tree, "")
        kernel.write(ROM_FILE, value)
        assert is_on(tree) == on
        with pytest.raises(KernelRefused) as caught:
            kernel.write(f"{PCI_DEVICES}/0000:05:00.0/rom", value)
        assert caught.value.symbol == "ENOENT"

    def test_whoever_may_not_write_it_is_told_so(
        self, tree: Tree, ledger: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree.put(f"{tree.resolve(f'{PCI_DEVICES}/{GPU}')}/rom", "")
        monkeypatch.setattr(Simulated, "writable", lambda *_: False)
        with pytest.raises(NotPermitted, match=f"not permitted to write {ROM_FILE}") as caught:
            machine(tree, ledger).binding.rom(GPU)
        assert "root" in caught.value.hint

    def test_the_history_tells_of_it(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "mine.host"
        file.write_text((Path(__file__).parents[2] / "hosts" / "workstation.host").read_text())
        assert run(f"rom gpu1 --simulate {file}").code == 0
        answer = run(f"history --simulate {file}")
        assert answer.code == 0
        assert f"rom {GPU}" in answer.out


# -- the command ---------------------------------------------------------------------------------------


class TestCommand:
    SAVE = "rom gpu1 --host workstation -o"

    def test_saves_what_it_has_checked(self, run: Run, tmp_path: Path, golden: Golden) -> None:
        file = tmp_path / "gpu1.rom"
        answer = run(f"{self.SAVE} {file}")
        assert (answer.code, answer.err) == (0, f"Written to {file}.\n")
        assert file.read_bytes() == option_rom(IDS, CLASS)
        golden("rom.txt", answer.out)
        before = os.umask(0)
        os.umask(before)
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~before
        assert [path.name for path in tmp_path.iterdir()] == ["gpu1.rom"]

    def test_as_json(self, run: Run, tmp_path: Path, golden: Golden) -> None:
        told = run(f"{self.SAVE} {tmp_path / 'gpu1.rom'} --json").document
        assert told.pop("file") == str(tmp_path / "gpu1.rom")
        golden("rom.json", json.dumps(told, indent=2) + "\n")

    def test_without_a_file_only_checks(self, run: Run) -> None:
        answer = run("rom 10de:1e04 --host workstation")
        assert (answer.code, answer.err) == (0, "")
        assert run("rom 10de:1e04 --host workstation --json").document["file"] is None

    @pytest.mark.parametrize("there", ["file", "link", "dangling"])
    def test_replaces_nothing_unasked(self, run: Run, tmp_path: Path, there: str) -> None:
        target, file = tmp_path / "target", tmp_path / "gpu1.rom"
        (file if there == "file" else target).write_text("kept")
        if there != "file":
            file.symlink_to(target if there == "link" else tmp_path / "nowhere")
        assert run(f"{self.SAVE} {file}").code == 2
        assert run(f"{self.SAVE} {file} --force").code == 0
        assert file.read_bytes() == option_rom(IDS, CLASS)
        assert not file.is_symlink()
        assert there == "file" or target.read_text() == "kept"
        assert not (tmp_path / "nowhere").exists()

    @pytest.mark.parametrize("name", ["/dev/null", "/tmp"])
    def test_replaces_no_device_or_directory(self, run: Run, name: str) -> None:
        assert run(f"{self.SAVE} {name} --force").code == 2

    @pytest.fixture
    def unsound(self, tmp_path: Path) -> Path:
        """A host whose GPU has a ROM that was spoilt."""
        text = (Path(__file__).parents[2] / "hosts" / "workstation.host").read_text()
        rom = option_rom(IDS, CLASS)
        assert rom.hex() in text
        (tmp_path / "mine.host").write_text(text.replace(rom.hex(), spoilt(rom, 99, 1).hex()))
        return tmp_path / "mine.host"

    def test_a_rom_that_is_not_sound_replaces_none(self, run: Run, unsound: Path, tmp_path: Path) -> None:
        file = tmp_path / "gpu1.rom"
        file.write_text("a good one")
        answer = run(f"rom gpu1 --host {unsound} -o {file} --force")
        assert answer.code == 6
        assert "ROM of 0000:0b:00.0: 1 KiB, not sound" in answer.out
        assert "the x86 image at 0x0 has a wrong checksum" in answer.err
        assert "nothing was written" in answer.err
        assert file.read_text() == "a good one"
        error = run(f"rom gpu1 --host {unsound} -o {file} --force --json").document["error"]
        assert (error["kind"], error["exit_code"]) == ("VerifyError", 6)
        assert error["facts"]["rom"]["images"][0]["checksum_holds"] is False

    def test_a_rom_that_is_not_sound_is_written_when_asked(self, run: Run, unsound: Path, tmp_path: Path) -> None:
        file = tmp_path / "gpu1.rom"
        answer = run(f"rom gpu1 --host {unsound} -o {file} --unsound")
        assert answer.code == 0
        assert "not sound" in answer.out
        assert "wrong checksum" in answer.out
        assert file.read_bytes() == spoilt(option_rom(IDS, CLASS), 99, 1)
        assert run(f"rom gpu1 --host {unsound} --unsound --json").document["sound"] is False

    def test_to_stdout_is_the_rom_alone(self, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        assert main(["rom", "gpu1", "--host", "workstation", "-o", "-"]) == 0
        out, err = capfdbinary.readouterr()
        assert out == option_rom(IDS, CLASS)
        assert b"ROM of 0000:0b:00.0: 1 KiB, sound" in err

    def test_to_stdout_is_nothing_if_it_is_not_sound(
        self, unsound: Path, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        assert main(f"rom gpu1 --host {unsound} -o -".split()) == 6
        assert capfdbinary.readouterr().out == b""
        assert main(f"rom gpu1 --host {unsound} -o - --unsound".split()) == 0
        assert capfdbinary.readouterr().out == spoilt(option_rom(IDS, CLASS), 99, 1)

    def test_never_to_a_terminal(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        answer = run("rom gpu1 --simulate workstation -o -")
        assert (answer.code, answer.out) == (2, "")
        assert "not written to a terminal" in answer.err
        assert run("history --simulate workstation --json").document == {"entries": []}

    def test_to_stdout_needs_it_alone(self, run: Run) -> None:
        assert run("rom gpu1 --host workstation -o - --json").document["error"]["exit_code"] == 2

    def test_refuses_what_it_could_not_write_before_it_reads(self, run: Run, tmp_path: Path) -> None:
        answer = run(f"rom gpu1 --simulate workstation -o {tmp_path / 'nowhere' / 'x'}")
        assert answer.code == 2
        assert "there is no directory" in answer.err
        assert run("rom gpu1 --simulate workstation -o", "").code == 2
        assert run("history --simulate workstation --json").document == {"entries": []}

    def test_a_rom_that_cannot_be_read(self, run: Run, tmp_path: Path) -> None:
        answer = run(f"rom gpu0 --host workstation -o {tmp_path / 'x'}")
        assert (answer.code, answer.out) == (5, "")
        assert "ENOENT" in answer.err
        assert "no file `rom` for it" in answer.err
        assert not (tmp_path / "x").exists()
        error = run("rom gpu0 --host workstation --json").document["error"]
        assert error["facts"]["power_state"] == "D0"

    def test_into_no_directory(self, run: Run, tmp_path: Path) -> None:
        assert run(f"{self.SAVE} {tmp_path}/no/gpu1.rom").code == 2


def test_a_hostile_class_and_long_lists_are_drawn() -> None:
    from tests.unit.console.test_render import drawn

    many = image(devices=tuple(range(1, 200)), code_type=EFI, class_code="ffffff")
    text = drawn(rom_page(parse_rom(struct.pack("<I", X86) * 128 + many, DEVICE), width=60), 60)
    assert "10de:1e04 +199" in text
    assert "EFI x64" in text

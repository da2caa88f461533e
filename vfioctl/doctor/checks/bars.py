"""Checks of the memory of GPUs that a guest maps: BARs, and framebuffers on them. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vfioctl.console.words import counted
from vfioctl.doctor.model.facts import Facts, FileText, addresses_of
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.domain.model.address_space import bar_window
from vfioctl.errors import some_of
from vfioctl.inventory.model.functions import Function
from vfioctl.units import format_size

_NO_GPU = "no GPU"
_LARGE = 32 << 30
"""Bytes of 64-bit BARs that OVMF of before 2023 has room for."""
_WITH_APERTURE = frozenset({"10de", "1002", "8086"})
"""Vendors of which every GPU has a prefetchable BAR."""
_ROM = 6
_MOST = 3


def framebuffer(facts: Facts) -> Iterator[Finding]:
    """Whether a framebuffer of the firmware holds BARs of the boot display."""
    boot = [gpu for gpu in facts.cards if gpu.boot_vga]
    if not boot:
        yield not_applicable("no boot display among the GPUs")
    elif not facts.framebuffers:
        yield passed("no firmware framebuffer in /sys/bus/platform/drivers")
    else:
        evidence = f"/sys/bus/platform/drivers: {some_of(f'{f.driver} has {f.device}' for f in facts.framebuffers)}"
        held = [gpu for gpu in boot if gpu.on_vfio]
        if held:
            meaning = "It may hold BARs of the boot display: a guest cannot map them (BAR n: can't reserve)."
            device = facts.framebuffers[0]
            command = f"echo {device.device} > /sys/bus/platform/drivers/{device.driver}/unbind"
            yield failed(evidence, meaning, command=command, devices=addresses_of(held))
        else:
            meaning = "It shows the console on the boot display, and may hold its BARs."
            yield note(evidence, meaning, "nothing to do: vfioctl bind releases it", devices=addresses_of(boot))


def bars(facts: Facts) -> Iterator[Finding]:
    """Whether the firmware has given the memory BARs of GPUs their addresses."""
    wrong = {gpu.address: "no prefetchable BAR" for gpu in facts.cards if _has_no_aperture(gpu)}
    for address, numbers in facts.unassigned.items():
        wrong[address] = f"BAR {' and '.join(map(str, numbers))} without an address"
    if wrong:
        evidence = some_of((f"{address}: {what}" for address, what in wrong.items()), _MOST)
        meaning = "The firmware found no address space for them: no driver and no guest can use the GPU."
        remedy = "enable Above 4G Decoding in the firmware's set-up; else boot with pci=realloc"
        yield failed(f"resource: {evidence}", meaning, remedy, devices=tuple(wrong))
    elif facts.cards:
        yield passed(f"the memory BARs of {counted(len(facts.cards), 'GPU')} have addresses")
    else:
        yield not_applicable(_NO_GPU)


def _has_no_aperture(gpu: Function) -> bool:
    """Return whether a GPU lacks the BAR of its memory: of a BAR that got no space, the kernel shows nothing."""
    is_read = bool(gpu.bars) or "resource" not in gpu.unknown
    memory = (bar for bar in gpu.bars if bar.kind != "io" and bar.index < _ROM and bar.size and bar.prefetchable)
    return gpu.vendor_id in _WITH_APERTURE and is_read and not any(memory)


def large_bars(facts: Facts) -> Iterator[Finding]:
    """Whether the BARs of a GPU need a larger window in the guest, and whether the guest's firmware can have that."""
    large = [gpu for gpu in facts.cards if gpu.prefetchable_64 > _LARGE]
    bits = facts.processor.address_bits
    beyond = [gpu for gpu in large if facts.processor.is_x86 and bits and gpu.prefetchable_64 > bar_window(bits)]
    if beyond and bits:
        evidence = f"64-bit BARs: {_sizes(beyond)}; {bits} bits of physical addresses in /proc/cpuinfo"
        window = format_size(bar_window(bits))
        meaning = f"OVMF of before August 2026 has {window} for BARs: the GPU has none in the guest."
        remedy = "use OVMF of 2026; or make the BARs smaller: Resizable BAR in the firmware's set-up"
        yield note(evidence, meaning, remedy, devices=addresses_of(beyond))
    elif large:
        meaning = "The guest's firmware needs a 64-bit window as large, or the GPU has no BAR in the guest."
        remedy = "vfioctl domain build sizes it; else set q35's pcihole64, or OVMF's opt/ovmf/X-PciMmio64Mb"
        yield note(f"64-bit BARs: {_sizes(large)}", meaning, remedy, devices=addresses_of(large))
    elif facts.cards:
        yield passed(f"no GPU has more than {format_size(_LARGE)} of 64-bit BARs")
    else:
        yield not_applicable(_NO_GPU)


def _sizes(gpus: Iterable[Function]) -> str:
    return some_of((f"{gpu.address} {gpu.prefetchable_64 / (1 << 30):.4g} GiB" for gpu in gpus), _MOST)


class _Resizable(NamedTuple):
    gpu: Function
    bar: int
    now: int
    most: int
    """in bytes"""

    @property
    def file(self) -> str:
        return f"/sys/bus/pci/devices/{self.gpu.address}/resource{self.bar}_resize"


def resizable_bars(facts: Facts) -> Iterator[Finding]:
    """Whether the BARs of GPUs are as large as they can be. A guest cannot change them: QEMU shows it the present size
    only (hw/vfio/pci.c, vfio_setup_rebar_ecap)."""
    files = [file for of_gpu in facts.resizable.values() for file in of_gpu.values()]
    if not files:
        yield not_applicable("no GPU with BARs whose size can be changed" if facts.cards else _NO_GPU)
        return
    unread = [file for file in files if file.refused or _largest(file) is None]
    if unread:
        file = unread[0]
        yield file.not_told() if file.refused else unknown(file.shown, "It could not be told: it is no set of sizes.")
    small = [found for gpu in facts.cards for found in _resizable(facts, gpu) if found.now < found.most]
    if small:
        shown = (f"{f.gpu.address} BAR {f.bar}: {format_size(f.now)} of {format_size(f.most)}" for f in small)
        meaning = "Drivers reach the GPU's memory through this window, in a guest too: transfers may be slower."
        remedy = "enable Resizable BAR in the firmware's set-up; or, while no driver has the GPU:"
        command = f"echo {(small[0].most >> 20).bit_length() - 1} > {small[0].file}"
        devices = tuple(dict.fromkeys(found.gpu.address for found in small))
        yield note(f"resource*_resize: {some_of(shown, _MOST)}", meaning, remedy, command=command, devices=devices)
    elif not unread:
        gpus = counted(len(facts.resizable), "GPU")
        yield passed(f"resource*_resize: the BARs of {gpus} are as large as they can be")


def _resizable(facts: Facts, gpu: Function) -> Iterator[_Resizable]:
    sizes = {bar.index: bar.size for bar in gpu.bars}
    for number, file in facts.resizable.get(gpu.address, {}).items():
        if (most := _largest(file)) is not None:
            yield _Resizable(gpu, number, sizes.get(number, 0), most)


def _largest(file: FileText) -> int | None:
    """Return the largest size in bytes: bit 0 stands for 1 MiB, bit 1 for 2 MiB. None if there is none."""
    text = (file.text or "").strip()
    bits = int(text, 16) if re.fullmatch("[0-9a-f]{1,16}", text, re.ASCII) else 0
    return 1 << (bits.bit_length() + 19) if bits else None

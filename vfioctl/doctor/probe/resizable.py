"""Reads to which sizes the BARs of GPUs can be changed. May not write. The kernel asks the device itself (drivers/pci/
pci-sysfs.c, resource_resize_show), so it is read in a worker, and not of a device that sleeps or does not answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vfioctl.doctor.model.facts import FileText
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.lenient import text_or_refusal
from vfioctl.kernel.protocol import PCI_DEVICES, Reader, Unanswered

_ROM = 6
_ASLEEP = "D3cold"
_NO_ANSWER = "no answer"


def read_resizable(kernel: Reader, functions: Iterable[Function]) -> Mapping[PciAddress, Mapping[int, FileText]]:
    """Return the file of each such BAR, by function and number. Kernels before 6.1 have none. Source:
    Documentation/ABI/testing/sysfs-bus-pci."""
    files = {
        f"{PCI_DEVICES}/{function.address}/resource{bar.index}_resize": (function.address, bar.index)
        for function in functions
        if function.mark is None and function.power_state != _ASLEEP
        for bar in function.bars
        if bar.index < _ROM and bar.kind != "io"
    }
    known = [file for file in files if kernel.has(file)]
    found: dict[PciAddress, dict[int, FileText]] = {}
    for path, answer in kernel.survey(text_or_refusal, known) if known else ():
        address, number = files[path]
        text, why = (None, _NO_ANSWER) if isinstance(answer, Unanswered) else answer
        found.setdefault(address, {})[number] = FileText(path, text, why)
    return found

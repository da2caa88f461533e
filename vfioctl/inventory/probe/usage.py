"""Reads how busy GPUs are: from NVML, and from what DRM drivers have in sysfs. May not write, nor wake a GPU.

Drivers resume a function to answer most of these reads (pm_runtime_get_sync), so none is asked of a function in runtime
suspend, and NVML is not asked about such a GPU either."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from vfioctl.kernel.lenient import link_name, names_in, nvidia_gpus, text_of
from vfioctl.kernel.protocol import PCI_DEVICES, NvmlAnswer, Reader, Unanswered, per_subject

if TYPE_CHECKING:
    from vfioctl.inventory.model.usage import Usage
    from vfioctl.inventory.model.values import PciAddress

_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_MOST_PERCENT = 100
_MILLI = 1000
_AMDGPU = {
    "utilisation_percent": "gpu_busy_percent",
    "memory_used_bytes": "mem_info_vram_used",
    "memory_total_bytes": "mem_info_vram_total",
}
"""Documentation/gpu/amdgpu/thermal.rst and driver-misc.rst of the kernel. Other drivers have no such files."""
_FILES: Mapping[str, Mapping[str, str]] = {"amdgpu": _AMDGPU, "radeon": {}, "nouveau": {}, "i915": {}, "xe": {}}
"""What each DRM driver has beside its hwmon device."""
_TEMPERATURES = ("temp1_input", "temp2_input")
"""Of the GPU; xe has temp2_input only (Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon). Millidegrees Celsius."""
Answer = tuple[str, Mapping[str, int]]
"""The source, and the fields of `Usage` that are known."""
_NVML = {
    "utilisation_percent": "utilisation_percent",
    "temperature_celsius": "temperature_celsius",
    "memory_used_bytes": "memory_used_bytes",
    "memory_total_bytes": "memory_bytes",
}


def read_usages(
    kernel: Reader, addresses: Collection[PciAddress], wedged: Collection[str]
) -> Mapping[PciAddress, Usage]:
    """Return the usage of those of the functions that report any. `wedged`: functions that are not asked."""
    from vfioctl.inventory.model.usage import Usage

    asked = [address for address in addresses if address not in wedged]
    # a wedged GPU of NVIDIA may hang NVML as a whole
    known = {*asked} if not wedged else set()
    nvidia = [gpu for gpu in nvidia_gpus(kernel) if gpu in known and not is_asleep(kernel, gpu)]
    wait = kernel.nvml(nvidia, usage=True) if nvidia else dict  # it takes longer: it answers while the others are read
    answers = {a: answer for a, answer in kernel.survey(read_drm_usage, asked) if not isinstance(answer, Unanswered)}
    answers |= _of_nvml(wait())
    return {a: Usage(source=answers[a][0], **answers[a][1]) for a in asked if a in answers and answers[a][1]}


@per_subject
def read_drm_usage(kernel: Reader, address: str) -> Answer:
    """Return the driver of a function and what it reports: nothing if it sleeps or the driver is none of these."""
    path = f"{PCI_DEVICES}/{address}"
    driver = link_name(kernel, f"{path}/driver")
    if driver not in _FILES or is_asleep(kernel, address):
        return driver, {}
    values = {field: _number(text_of(kernel, f"{path}/{file}")) for field, file in _FILES[driver].items()}
    temperature = _temperature(kernel, f"{path}/hwmon")
    return driver, _plausible(values | {"temperature_celsius": temperature})


def is_asleep(kernel: Reader, address: str) -> bool:
    """Return whether the function sleeps, or is about to. Neither file is answered by its driver."""
    path = f"{PCI_DEVICES}/{address}"
    status = text_of(kernel, f"{path}/power/runtime_status")
    return status.startswith("suspend") or text_of(kernel, f"{path}/power_state").startswith("D3")


def _of_nvml(answer: NvmlAnswer) -> Mapping[str, Answer]:
    if isinstance(answer, Unanswered):
        return {}
    return {
        gpu: ("nvml", _plausible({field: _number(facts.get(key, "")) for field, key in _NVML.items()}))
        for gpu, facts in answer.items()
    }


def _temperature(kernel: Reader, hwmon: str) -> int | None:
    texts = (text_of(kernel, f"{hwmon}/{name}/{file}") for name in names_in(kernel, hwmon) for file in _TEMPERATURES)
    values = (_number(text) for text in texts)
    return next((round(value / _MILLI) for value in values if value is not None), None)


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text.strip()) else None


def _plausible(values: Mapping[str, int | None]) -> Mapping[str, int]:
    """Return the values that are known and can be true."""
    known = {field: value for field, value in values.items() if value is not None}
    if known.get("utilisation_percent", 0) > _MOST_PERCENT:
        del known["utilisation_percent"]
    return {field: value for field, value in known.items() if value >= 0 or field == "temperature_celsius"}

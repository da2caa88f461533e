"""Reads facts about GPUs from NVML, and sets the persistence mode.

Runs in a worker only: any call of NVML may hang for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_NOT_INSTALLED = "the Python module pynvml (nvidia-ml-py) is not installed"
_NO_SEPARATORS = str.maketrans("|;", "  ")
_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}  # nvmlComputeMode_t


def read_gpus() -> dict[str, dict[str, str]] | str:
    """Facts by PCI address, or the reason why NVML gives none."""
    try:
        import pynvml
    except ImportError:
        return _NOT_INSTALLED
    try:
        pynvml.nvmlInit()
        return dict(gpu for number in range(pynvml.nvmlDeviceGetCount()) if (gpu := _gpu(pynvml, number)))
    except pynvml.NVMLError as error:
        return f"NVML: {error}"


def _gpu(nvml: Any, number: int) -> tuple[str, dict[str, str]] | None:
    """One GPU's address and facts; None for a GPU that has fallen off the bus, so that the others are still read."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        return _facts(nvml, handle)
    except nvml.NVMLError:
        return None


def _facts(nvml: Any, handle: Any) -> tuple[str, dict[str, str]]:
    domain, _, rest = str(nvml.nvmlDeviceGetPciInfo(handle).busId).lower().partition(":")
    questions: dict[str, Callable[[], object]] = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
        "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "persistence_mode": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
        "compute_mode": lambda: _COMPUTE_MODES.get(nvml.nvmlDeviceGetComputeMode(handle), "unknown"),
        "mig_mode": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
        "vgpu_types": lambda: ";".join(
            _vgpu_type(nvml, handle, kind) for kind in sorted(nvml.nvmlDeviceGetSupportedVgpus(handle))
        ),
        "vgpu_heterogeneous_mode": lambda: nvml.nvmlDeviceGetVgpuHeterogeneousMode(handle),
    }
    facts = {key: answer for key, ask in questions.items() if (answer := _answer(nvml, ask))}
    return f"{int(domain, 16):04x}:{rest}", facts


def _vgpu_type(nvml: Any, handle: Any, kind: int) -> str:
    """`id|name|framebuffer bytes|heads|WxH|max instances`; unknown parts are left empty."""
    questions: tuple[Callable[[], object], ...] = (
        lambda: nvml.nvmlVgpuTypeGetName(kind).translate(_NO_SEPARATORS),
        lambda: nvml.nvmlVgpuTypeGetFramebufferSize(kind),
        lambda: nvml.nvmlVgpuTypeGetNumDisplayHeads(kind),
        lambda: "x".join(str(pixels) for pixels in nvml.nvmlVgpuTypeGetResolution(kind)),
        lambda: nvml.nvmlVgpuTypeGetMaxInstances(handle, kind),
    )
    return "|".join((str(kind), *(_answer(nvml, ask) for ask in questions)))


def _answer(nvml: Any, ask: Callable[[], object]) -> str:
    """The answer as text; empty where the GPU (as without MIG) or the binding does not support the question."""
    try:
        return str(ask())
    except (nvml.NVMLError, AttributeError, UnicodeDecodeError):
        return ""


def set_persistence(address: str, on: bool) -> str:  # noqa: FBT001 - a worker gets positional arguments
    """Sets one GPU's persistence mode and reads it back. Returns the reason of a failure, or an empty text."""
    try:
        import pynvml
    except ImportError:
        return _NOT_INSTALLED
    domain, _, rest = address.partition(":")
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(f"{domain:0>8}:{rest}")
        pynvml.nvmlDeviceSetPersistenceMode(handle, int(on))
        is_set = pynvml.nvmlDeviceGetPersistenceMode(handle) == int(on)
    except pynvml.NVMLError as error:
        refused = error.args[:1] == (pynvml.NVML_ERROR_NO_PERMISSION,)
        return f"{'only root may do that; ' if refused else ''}NVML: {error}"
    return "" if is_set else f"NVML reported success, but the mode is still {'off' if on else 'on'}"

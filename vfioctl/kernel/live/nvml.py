"""Reads facts about GPUs from NVML, sets two of their modes. Runs in a worker only: any call may hang for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from vfioctl.kernel.mps import COMPUTE_MODES
from vfioctl.kernel.protocol import NOT_LISTED, PCI_ADDRESS

NOT_INSTALLED = "the Python module pynvml (nvidia-ml-py) is not installed"
_NO_SEPARATORS = str.maketrans("|;", "  ")
_COMPUTE_MODES = dict(enumerate(COMPUTE_MODES))
LIBRARY = "libnvidia-ml.so.1"
_NO_LIBRARY, _NO_FUNCTION, _LOST = 12, 13, 15
_REASONS = {  # by nvmlReturn_t
    4: "NVML refuses it: only root may do that",
    6: NOT_LISTED,
    9: "the nvidia driver does not answer NVML: dmesg | grep -i nvrm",
    _NO_LIBRARY: f"NVML's library {LIBRARY} was not found: install the one of the driver's release",
    _LOST: "the GPU is lost, it no longer answers its driver: dmesg | grep -i xid, then reboot",
    18: "driver and library versions differ: reload the driver or reboot",
}

Facts = dict[str, str]
Questions = dict[str, Callable[[Any, Any], object]]
_QUESTIONS: Questions = {
    "name": lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu),
    "uuid": lambda nvml, gpu: nvml.nvmlDeviceGetUUID(gpu),
    "memory_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    "persistence_mode": lambda nvml, gpu: nvml.nvmlDeviceGetPersistenceMode(gpu),
    "compute_mode": lambda nvml, gpu: _COMPUTE_MODES.get(nvml.nvmlDeviceGetComputeMode(gpu), "unknown"),
    "mig_mode": lambda nvml, gpu: nvml.nvmlDeviceGetMigMode(gpu)[0],
}
_OF_VGPUS: Questions = {
    "vgpu_types": lambda nvml, gpu: ";".join(
        _vgpu_type(nvml, gpu, kind) for kind in sorted(nvml.nvmlDeviceGetSupportedVgpus(gpu))
    ),
    "vgpu_heterogeneous_mode": lambda nvml, gpu: nvml.nvmlDeviceGetVgpuHeterogeneousMode(gpu),
}


def _memory_used(nvml: Any, gpu: Any) -> int:
    """What programs use, as nvidia-smi shows it. Drivers before 510 also count what they reserve for themselves."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).used)
    except nvml.NVMLError as error:
        if code_of(error) != _NO_FUNCTION:
            raise
    return int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)


_OF_USAGE: Questions = {
    "utilisation_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "temperature_celsius": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "memory_used_bytes": _memory_used,
}
_OF_LINKS: Questions = {"nvlink": lambda nvml, gpu: " ".join(sorted(_linked(nvml, gpu)))}


def read_gpus(
    addresses: Iterable[str],
    types: bool = False,  # noqa: FBT001, FBT002 - a worker gets positional arguments
    links: bool = False,  # noqa: FBT001, FBT002 - likewise
    usage: bool = False,  # noqa: FBT001, FBT002 - likewise
) -> Iterator[tuple[str, Facts]]:
    """Yields each GPU's address and facts, see `Reader.nvml`; if NVML cannot be used, no address and the error."""
    if not has_library():
        yield "", {"error": _REASONS[_NO_LIBRARY]}
        return
    try:
        import pynvml
    except ImportError:
        yield "", {"error": NOT_INSTALLED}
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield "", {"error": reason_of(error)}
        return
    more = (_OF_VGPUS, types), (_OF_LINKS, links), (_OF_USAGE, usage)
    questions = _QUESTIONS | {key: ask for some, wanted in more if wanted for key, ask in some.items()}
    for address in addresses:
        yield address, _facts(pynvml, address, questions)


def has_library() -> bool:
    """Whether NVML's library can be loaded. Importing pynvml takes as long as reading a small host."""
    from ctypes import CDLL

    try:
        CDLL(LIBRARY)
    except OSError:
        return False
    return True


def _facts(nvml: Any, address: str, questions: Questions) -> Facts:
    """One GPU's facts; for one that is lost while it is asked, what it said before and the error."""
    facts: Facts = {}
    try:
        gpu = handle_of(nvml, address)
        for key, ask in questions.items():
            if answer := _answer(nvml, partial(ask, nvml, gpu)):
                facts[key] = answer
    except nvml.NVMLError as error:
        facts["error"] = reason_of(error)
    return facts


def handle_of(nvml: Any, address: str) -> Any:
    """NVML's handle of a GPU. By its address, because NVML does not report the address of a lost one."""
    domain, _, rest = address.partition(":")
    return nvml.nvmlDeviceGetHandleByPciBusId(f"{domain:0>8}:{rest}")


def _vgpu_type(nvml: Any, gpu: Any, kind: int) -> str:
    """`id|name|framebuffer bytes|heads|WxH|max instances`; unknown parts are left empty."""
    questions: tuple[Callable[[], object], ...] = (
        lambda: nvml.nvmlVgpuTypeGetName(kind).translate(_NO_SEPARATORS),
        lambda: nvml.nvmlVgpuTypeGetFramebufferSize(kind),
        lambda: nvml.nvmlVgpuTypeGetNumDisplayHeads(kind),
        lambda: "x".join(str(pixels) for pixels in nvml.nvmlVgpuTypeGetResolution(kind)),
        lambda: nvml.nvmlVgpuTypeGetMaxInstances(gpu, kind),
    )
    return "|".join((str(kind), *(_answer(nvml, ask) for ask in questions)))


def _linked(nvml: Any, gpu: Any) -> set[str]:
    """The addresses at the other ends of the active NVLinks of a GPU; without those that NVML does not report."""
    links = (_answer(nvml, partial(_other_end, nvml, gpu, link)) for link in range(nvml.NVML_NVLINK_MAX_LINKS))
    return {address for address in links if address}


def _other_end(nvml: Any, gpu: Any, link: int) -> str:
    if nvml.nvmlDeviceGetNvLinkState(gpu, link) != nvml.NVML_FEATURE_ENABLED:
        return ""
    address = nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId
    domain, _, rest = str(address if isinstance(address, str) else address.decode()).lower().partition(":")
    short = f"{domain.lstrip('0'):0>4}:{rest}"  # NVML's domains have eight digits
    return short if PCI_ADDRESS.fullmatch(short) else ""


def _answer(nvml: Any, ask: Callable[[], object]) -> str:
    """The answer; empty where GPU (as without MIG) or binding does not support it. Raises NVMLError for a lost GPU."""
    try:
        return str(ask())
    except nvml.NVMLError as error:
        if code_of(error) == _LOST:
            raise
    except (AttributeError, UnicodeDecodeError):
        pass
    return ""


def code_of(error: Exception) -> int:
    return error.args[0] if error.args else 0


def reason_of(error: Exception) -> str:
    """An error of NVML in words, with advice where there is some."""
    return _REASONS.get(code_of(error), f"NVML: {error}")


def set_persistence(address: str, on: bool) -> str:  # noqa: FBT001 - a worker gets positional arguments
    """Sets one GPU's persistence mode and reads it back. Returns the reason of a failure, or an empty text."""
    if reason := _set(address, "PersistenceMode", int(on)):
        return reason if reason != _UNCHANGED else f"{_UNCHANGED} {'off' if on else 'on'}"
    return ""


def set_compute_mode(address: str, mode: str) -> str:
    """Sets one GPU's compute mode and reads it back. Returns the reason of a failure, or an empty text."""
    if reason := _set(address, "ComputeMode", COMPUTE_MODES.index(mode)):
        return reason if reason != _UNCHANGED else f"{_UNCHANGED} another"
    return ""


_UNCHANGED = "NVML reported success, but the mode is still"


def _set(address: str, mode: str, value: int) -> str:
    try:
        import pynvml
    except ImportError:
        return NOT_INSTALLED
    try:
        pynvml.nvmlInit()
        gpu = handle_of(pynvml, address)
        getattr(pynvml, f"nvmlDeviceSet{mode}")(gpu, value)
        is_set = getattr(pynvml, f"nvmlDeviceGet{mode}")(gpu) == value
    except pynvml.NVMLError as error:
        return reason_of(error)
    return "" if is_set else _UNCHANGED

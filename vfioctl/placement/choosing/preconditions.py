"""Why a device cannot be given to a claim, and which quotas a claim would exceed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from vfioctl.console.words import counted
from vfioctl.errors import some_of
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.scope import Scope, scope_of
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.choosing.node_resources import node_of
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.claims import PROVISIONAL, Owner, Taken
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.model.settings import ClaimSettings, Mode
from vfioctl.placement.model.share import COMPUTE_DRIVERS
from vfioctl.units import format_size

_NVIDIA = "10de"
BOOT_DISPLAY = "it is the boot display"
GB = 10**9
_IN_NAME = re.compile(r"(?<![0-9])([0-9]{1,4}) ?GB\b", re.ASCII | re.IGNORECASE)
_ON_WHOLE_GPUS = {True: (Mode.PASSTHROUGH,), False: (Mode.PASSTHROUGH, Mode.HOST)}
"""The modes of GPUs that a claim may have whole, by whether it binds them to VFIO."""


def refusals(request: ClaimRequest, capacity: Capacity, functions: Sequence[Function]) -> Mapping[PciAddress, str]:
    """Return why each function cannot be chosen; functions that can be are left out."""
    return {function.address: reason for function in functions if (reason := refusal(function, request, capacity))}


def refusal(function: Function, request: ClaimRequest, capacity: Capacity, asked: Sequence[PciAddress] = ()) -> str:
    """Return why a function cannot be given as a whole (for vGPUs: why none may be created on it); empty if it can be.
    `asked`: all functions that the request names, which may be in one group; none if they are to be chosen."""
    scope = scope_of(capacity.inventory, asked or (function.address,))
    return next(filter(None, _reasons(function, request, capacity, scope, named=bool(asked))), "")


def refusal_of_mdev(mdev: Subject, parent: Function | str, capacity: Capacity) -> str:
    """Return why a mediated device cannot be given; empty if it can be. `parent`: a name if it is no function."""
    claims = capacity.taken.whole
    name = parent if isinstance(parent, str) else parent.address
    for subject, what in ((mdev, ""), (name, f"its parent {name} is ")):
        if subject in claims:
            return f"{what}{_claimed(claims[subject])}"
    if shares := _of_containers(name, capacity):
        return f"its parent {name}: {shares}"
    if isinstance(parent, str):
        return ""
    return _marked(parent) or _reserved(parent, capacity) or _of_mode(parent, capacity, (Mode.VGPU,))


def _reasons(
    function: Function, request: ClaimRequest, capacity: Capacity, scope: Scope, *, named: bool
) -> Iterator[str]:
    inventory = capacity.inventory
    pf = inventory.by_address.get(function.physfn) if function.physfn else None
    if request.bind and not request.vgpu and not inventory.iommu.translating:
        yield f"the IOMMU is off: {inventory.iommu.reason or 'VFIO needs it'}"
    yield _marked(function)
    yield _taken(function, capacity, scope, shared=bool(request.vgpu))
    if pf and (shares := _of_containers(pf.address, capacity)):
        yield f"its PF {pf.address}: {shares}"
    yield _reserved(function, capacity) or (_reserved(pf, capacity) if pf else "")
    if function.boot_vga and not (named and (function.on_vfio or capacity.previews)):
        yield BOOT_DISPLAY
    modes = (Mode.VGPU,) if request.vgpu else _ON_WHOLE_GPUS[request.bind]
    yield _of_mode(pf or function, capacity, (Mode.VGPU,) if pf else modes)
    if not request.vgpu:
        yield _divided(function)
    if function.lacks_vgpu and not named:
        yield "NVIDIA's driver has it, without a type of vGPU"
    yield capacity.held.get(function.address, "")
    if request.bind and not request.vgpu:
        yield _not_alone(function, capacity, scope)
    if function.is_gpu:
        yield from _unlike(function, request, capacity)
    node = node_of(function, capacity)
    if isinstance(request.numa, int) and node != request.numa:
        yield "its NUMA node is not known" if node is None else f"it is on NUMA node {node}"
    if request.numa == "same" and node is None:
        yield "its NUMA node is not known"


def native_reasons(gpu: Function, request: ClaimRequest, capacity: Capacity) -> Iterator[str]:
    """Yield why a GPU cannot be given to containers with its host driver, whole or in shares; empty where it can be."""
    yield _marked(gpu)
    if gpu.address in capacity.taken.whole:
        yield _claimed(capacity.taken.whole[gpu.address])
    if gpu.address not in capacity.taken.shares and (parts := capacity.taken.shared.get(gpu.address)):
        yield f"parts of it are {', '.join(_claimed(part) for part in parts[:3])}"
    yield _reserved(gpu, capacity)
    yield _of_mode(gpu, capacity, (Mode.HOST,))
    yield _divided(gpu)
    if gpu.boot_vga and not request.devices:
        yield BOOT_DISPLAY
    if gpu.on_vfio:
        yield f"it is on {gpu.driver}, for guests"
    elif not gpu.driver:
        yield "no driver has it"
    elif gpu.driver not in COMPUTE_DRIVERS:
        yield f"its driver {gpu.driver} runs no programs on it"
    if gpu.nvml and gpu.nvml.mig_mode:
        yield "MIG is on: its instances are given by NVIDIA's device plugin"
    yield capacity.held.get(gpu.address, "")
    yield from _unlike(gpu, request, capacity)
    node = node_of(gpu, capacity)
    if isinstance(request.numa, int) and node != request.numa:
        yield "its NUMA node is not known" if node is None else f"it is on NUMA node {node}"


def why_not_whole(gpu: Function, request: ClaimRequest, capacity: Capacity) -> str:
    """Return why a whole GPU cannot be given to containers with its host driver; empty if it can. What travels with it
    to a guest, such as others of its IOMMU group, does not count: it stays where it is."""
    reasons = (*native_reasons(gpu, request, capacity), _of_containers(gpu.address, capacity))
    if request.numa == "same" and node_of(gpu, capacity) is None:
        reasons = (*reasons, "its NUMA node is not known")
    return next(filter(None, reasons), "")


def _marked(function: Function) -> str:
    return f"it is {function.mark.kind}: {function.mark.why}" if function.mark else ""


def _claimed(claim: tuple[str, str]) -> str:
    identifier, owner = claim
    return f"claimed by {owner} ({identifier})"


def _taken(function: Function, capacity: Capacity, scope: Scope, *, shared: bool) -> str:
    taken = capacity.taken
    if function.address in taken.whole:
        return _claimed(taken.whole[function.address])
    if function.physfn and function.physfn in taken.whole:
        return f"its PF {function.physfn} is {_claimed(taken.whole[function.physfn])}"
    if shared and function.address not in taken.shares:
        return ""
    if parts := taken.shared.get(function.address):
        return f"parts of it are {', '.join(_claimed(part) for part in parts[:3])}"
    for other in (*scope.own, *scope.foreign):
        if other in taken.whole:
            return f"{other}, which travels with it, is {_claimed(taken.whole[other])}"
    return ""


def _of_containers(gpu: str, capacity: Capacity) -> str:
    """Return which claims have shares of a GPU: no part of it goes to a guest."""
    parts = capacity.taken.shared.get(gpu, ()) if gpu in capacity.taken.shares else ()
    return f"shares of it are {', '.join(_claimed(part) for part in parts[:3])}" if parts else ""


def _reserved(function: Function, capacity: Capacity) -> str:
    reserved = capacity.settings.reserved
    return "reserved in the configuration" if any(name in reserved for name in _names(function)) else ""


def _names(function: Function) -> tuple[str, str]:
    """Return the names that settings have for a function; the address takes precedence."""
    return function.address, f"{function.vendor_id}:{function.device_id}"


def _of_mode(function: Function, capacity: Capacity, allowed: Sequence[Mode]) -> str:
    modes = capacity.settings.modes
    mode = next((modes[name] for name in _names(function) if name in modes), None)
    return "" if mode is None or mode in allowed else f"its mode in the configuration is {mode}"


def _divided(function: Function) -> str:
    parts = [counted(len(parts), what) for parts, what in ((function.mdevs, "vGPU"), (function.virtfns, "VF")) if parts]
    return f"it has {parts[0]}" if parts else ""


def _not_alone(function: Function, capacity: Capacity, scope: Scope) -> str:
    inventory = capacity.inventory
    if function.iommu_group is None:
        return "it has no IOMMU group"
    if scope.foreign:
        named = (f"{other} ({inventory.by_address[other].title})" for other in scope.foreign)
        return f"its IOMMU group also has {some_of(named, 3)}"
    unread = inventory.unread_beside(function)
    return f"its IOMMU group or card also has {some_of(unread, 3)}, which could not be read" if unread else ""


def _unlike(function: Function, request: ClaimRequest, capacity: Capacity) -> Iterator[str]:
    if request.model and not is_model(function, request.model, capacity):
        yield f"it is no {request.model}"
    if request.memory_min:
        memory = memory_of(function)
        if memory is None:
            yield unknown_memory(function)
        elif memory < request.memory_min:
            yield f"it has {format_size(memory)} of memory"


def is_model(function: Function, model: str, capacity: Capacity) -> bool:
    """Return whether a GPU is of a model: an alias, its ids, or a part of its name, in capitals or not."""
    return _is_model(function, model, capacity.settings)


def is_called(function: Function, word: str, settings: ClaimSettings) -> bool:
    """Return whether a word means a function: its address, that of its PF, or its model."""
    return word in (function.address, function.physfn) or _is_model(function, word, settings)


def _is_model(function: Function, model: str, settings: ClaimSettings) -> bool:
    aliases = {name.lower(): parts for name, parts in settings.models.items()}
    name = f"{function.title} {function.device_name or ''} {function.subsystem_name or ''}".lower()
    ids = f"{function.vendor_id}:{function.device_id}"
    return any(part.lower() == ids or part.lower() in name for part in aliases.get(model.lower(), (model,)))


def model_of(function: Function) -> tuple[str, str]:
    """Return the ids of a GPU's model."""
    return function.vendor_id, function.device_id


def memory_of(function: Function) -> int | None:
    """Return the bytes that NVML reports, which lack those for error correction, else the GB of the GPU's name."""
    if function.nvml and function.nvml.memory_bytes:
        return function.nvml.memory_bytes
    named = _IN_NAME.search(function.device_name or "")
    return int(named[1]) * GB if named else None


def unknown_memory(function: Function) -> str:
    """Return why the memory of a GPU is not known."""
    if function.vendor_id == _NVIDIA:
        return "its memory is not known: NVML reports it while the GPU is on the nvidia driver"
    return "its memory is not known: vfioctl reads it of NVIDIA's GPUs only"


def over_quota(request: ClaimRequest, capacity: Capacity, gpus: int) -> str:
    """Return the quota that this number of additional GPUs or vGPUs would exceed; empty if none."""
    return exceeded(capacity.settings.quotas, capacity.taken, request.owner, request.labels, gpus)


def exceeded(quotas: Mapping[str, int], taken: Taken, owner: str, labels: Mapping[str, str], gpus: int) -> str:
    """Return the same for an owner and labels. `taken`: what live claims have, without these GPUs."""
    for name, has in _counted(taken, owner, labels):
        limit = _limit(name, quotas)
        if limit is not None and has + gpus > limit:
            return f"over the quota of {name}: {counted(limit, 'GPU')}, of which it has {has}"
    return ""


def _counted(taken: Taken, owner: str, labels: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    if owner != PROVISIONAL:
        yield owner, taken.owners.get(Owner(owner), 0)
    for label, value in sorted(labels.items()):
        yield f"{label}={value}", taken.labels.get((label, value), 0)


def _limit(name: str, quotas: Mapping[str, int]) -> int | None:
    """Return the quota of a name: its own, or the longest with a `*` that its name begins with."""
    if name in quotas:
        return quotas[name]
    fitting = [quota for quota in quotas if quota.endswith("*") and name.startswith(quota[:-1])]
    return quotas[max(fitting, key=len)] if fitting else None

"""Which methods enforce shares of a GPU, the strongest first, and what applies to a share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from vfioctl.placement.model.share import COMPUTE_DRIVERS, Enforcement, GpuShare
from vfioctl.sharing.model.enforcement import Enforced, GpuFacts, GpuPlan, HostFacts, Method


def plan_of(gpu: GpuFacts, host: HostFacts, shares: Sequence[tuple[str, str, GpuShare]]) -> GpuPlan:
    """Return the methods of a GPU, and what applies to its shares, each with the claim's id and its owner."""
    methods = tuple(judge(gpu, host) for judge in _JUDGES.values())
    # what is in force for a claim: dmem, nvml and the freezer are set for control groups, of which a claim names none
    is_served = gpu.mps and any(method.available for method in methods if method.enforcement is Enforcement.MPS)
    enforced = (
        _enforced(claim, owner, share, by_mps=is_served and gpu.mps_claim in ("", claim))
        for claim, owner, share in shares
    )
    return GpuPlan(gpu, methods, tuple(enforced))


def why_not(gpu: GpuFacts, host: HostFacts, wanted: Enforcement) -> str:
    """Return why a method cannot enforce a share on a GPU; empty if it can, for all that the share asks for."""
    if wanted in (Enforcement.MIG, Enforcement.VGPU):
        return f"{wanted} divides a GPU into parts of its own, which are no shares of cores and memory"
    method = _JUDGES[wanted](gpu, host)
    if not method.available:
        return f"{wanted} is not available: {method.words}"
    if wanted in (Enforcement.DMEM, Enforcement.NVML, Enforcement.FREEZER):
        return f"{wanted} is set for control groups, and a claim names none"
    return ""


def _enforced(claim: str, owner: str, share: GpuShare, *, by_mps: bool) -> Enforced:
    if share.is_whole:
        return Enforced(claim, owner, share.cores, 0, None, None, ())
    method = Enforcement.MPS if by_mps and share.enforce in ("", Enforcement.MPS) else Enforcement.NONE
    cores, memory = (method if share.cores else None), (method if share.memory else None)
    gaps = _gaps(cores, memory, asked=share.enforce)
    return Enforced(claim, owner, share.cores, share.memory, cores, memory, tuple(gaps))


def _gaps(cores: Enforcement | None, memory: Enforcement | None, *, asked: str) -> Iterator[str]:
    if cores in (None, Enforcement.NONE):
        yield f"time on the GPU: {'what is used is only reported' if cores else 'the claim has no cores'}"
    if memory in (None, Enforcement.NONE):
        yield f"memory: {'what is used is only reported' if memory else 'the claim has none'}"
    if Enforcement.MPS in (cores, memory):
        yield "faults and memory bandwidth: clients of one MPS server share both"
        yield "several processes: each has these limits by itself; those of other users wait until the first have ended"
        yield "a process without the environment of vfioctl mps env: it has the daemon's limits"
    elif asked not in ("", Enforcement.NONE):
        yield f"{asked} was asked for, and is not in force"


def _mig(gpu: GpuFacts, host: HostFacts) -> Method:
    del host
    if gpu.driver != "nvidia":
        return Method(Enforcement.MIG, available=False, words="only NVIDIA's GPUs have it")
    if gpu.mig is None:
        return Method(Enforcement.MIG, available=False, words="the GPU has no MIG, or NVML does not tell")
    if gpu.mig:
        words = "MIG is on: its instances keep cores and memory apart; vfioctl makes none and gives none away"
        shows = f"nvidia-smi mig -lgi -i {gpu.address}"
        return Method(Enforcement.MIG, available=True, words=words, next_command=shows)
    return Method(Enforcement.MIG, available=False, words="MIG is off")


def _vgpu(gpu: GpuFacts, host: HostFacts) -> Method:
    del host
    if not gpu.vgpus:
        return Method(Enforcement.VGPU, available=False, words="the GPU offers no vGPUs")
    words = "a vGPU keeps memory apart, and time as its scheduler does; it is for guests"
    return Method(Enforcement.VGPU, available=True, words=words, next_command=f"vfioctl vgpu types {gpu.address}")


def _mps(gpu: GpuFacts, host: HostFacts) -> Method:
    why = ""
    if gpu.driver != "nvidia":
        why = "only NVIDIA's driver has it"
    elif gpu.mig:
        why = "MIG is on, and its instances have no MPS limits from vfioctl"
    elif not host.mps:
        why = "nvidia-cuda-mps-control was not found: NVIDIA's package of the driver's programs has it"
    if why:
        return Method(Enforcement.MPS, available=False, words=why)
    words = "limits the threads and the memory of each client"
    if gpu.mps:
        whose = f"; its daemon is for claim {gpu.mps_claim} alone" if gpu.mps_claim else ""
        return Method(Enforcement.MPS, available=True, words=f"{words}{whose}")
    state, verb = _WITHOUT_MPS.get(gpu.mps_state, _WITHOUT_MPS[""])
    command = f"vfioctl mps {verb} {gpu.address}"
    return Method(Enforcement.MPS, available=True, words=f"{words}; {state}", next_command=command)


def _dmem(gpu: GpuFacts, host: HostFacts) -> Method:
    if host.dmem is None:
        words = "the kernel has no dmem controller: Linux 6.14 and later have it"
        return Method(Enforcement.DMEM, available=False, words=words)
    if not any(gpu.address in region for region in host.dmem):
        words = f"the driver {gpu.driver} lets it limit no memory of this GPU"
        return Method(Enforcement.DMEM, available=False, words=words)
    return Method(
        Enforcement.DMEM,
        available=True,
        words="limits the memory of a control group: dmem.max, which vfioctl does not set",
    )


def _nvml(gpu: GpuFacts, host: HostFacts) -> Method:
    """Source: NVIDIA's NVML documentation, nvmlDeviceSetMemoryLimits_v1; MIG's handles are not supported."""
    why, needs = "", f"{_WITH_LIMITS} and later have it"
    if gpu.driver != "nvidia":
        why = "only NVIDIA's driver has it"
    elif host.nvidia is None:
        why = f"which version NVIDIA's driver has is not known: {needs}"
    elif host.nvidia < _WITH_LIMITS:
        why = f"NVIDIA's driver {host.nvidia} limits no memory of control groups: {needs}"
    elif gpu.mig:
        why = "MIG is on, and its instances have no such limit"
    words = why or "limits the memory of a control group: nvmlDeviceSetMemoryLimits_v1, which vfioctl does not call"
    return Method(Enforcement.NVML, available=not why, words=words)


def _freezer(gpu: GpuFacts, host: HostFacts) -> Method:
    why = ""
    if not host.unified:
        why = "control groups of version 2 are not at /sys/fs/cgroup"
    elif gpu.driver not in COMPUTE_DRIVERS:
        why = f"the driver {gpu.driver or 'none'} does not tell who uses the GPU, and for how long"
    if why:
        return Method(Enforcement.FREEZER, available=False, words=why)
    return Method(
        Enforcement.FREEZER, available=True, words="vfioctl share serve stops control groups above their weight"
    )


def _none(gpu: GpuFacts, host: HostFacts) -> Method:
    del gpu, host
    return Method(Enforcement.NONE, available=True, words="reports what is used, and enforces nothing")


_WITH_LIMITS = 615
"""The first of NVIDIA's drivers with limits of memory for control groups."""
_WITHOUT_MPS = {
    "": ("start it", "start"),
    "inactive": ("its daemon has died", "apply"),
    "silent": ("its daemon does not answer", "status"),
    "unknown": ("systemd does not say whether its daemon runs", "status"),
}
"""What is said by the state of a daemon that does not serve, and the command that comes next."""
_JUDGES: Mapping[Enforcement, Callable[[GpuFacts, HostFacts], Method]] = {
    Enforcement.MIG: _mig,
    Enforcement.VGPU: _vgpu,
    Enforcement.MPS: _mps,
    Enforcement.DMEM: _dmem,
    Enforcement.NVML: _nvml,
    Enforcement.FREEZER: _freezer,
    Enforcement.NONE: _none,
}

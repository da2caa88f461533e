"""Reads which GPUs reach each other over NVLink, from NVML. May not write.

Two GPUs are peers if a link joins them, or if both have links to the same NVSwitch.
"""

from __future__ import annotations

from collections.abc import Mapping

from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import NvmlAnswer, Reader, Unanswered

_NVIDIA, _NOWHERE = "nvidia", "0000:00:00.0"
Peers = Mapping[PciAddress, frozenset[PciAddress]]


def read_peers(kernel: Reader, inventory: Inventory) -> Peers:
    """Return the peers of each GPU on the nvidia driver. NVML is not asked while a device is wedged: it might hang."""
    gpus = [gpu.address for gpu in inventory.gpus if gpu.driver == _NVIDIA and not gpu.is_vf]
    if len(gpus) < 2 or any(function.mark for function in inventory.functions):
        return {}
    return peers_in(kernel.nvml(gpus, links=True)())


def peers_in(answer: NvmlAnswer) -> Peers:
    """Return the peers that an answer of NVML tells of."""
    if isinstance(answer, Unanswered):
        return {}
    ends = {PciAddress(gpu): set(facts.get("nvlink", "").split()) - {_NOWHERE} for gpu, facts in answer.items()}
    switches = {gpu: other - ends.keys() for gpu, other in ends.items()}
    found = {
        gpu: frozenset(
            other
            for other in ends
            if other != gpu and (other in ends[gpu] or gpu in ends[other] or switches[gpu] & switches[other])
        )
        for gpu in ends
    }
    return {gpu: peers for gpu, peers in found.items() if peers}

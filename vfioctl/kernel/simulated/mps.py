"""NVIDIA's Multi-Process Service on a simulated host: compute modes, and control daemons that obey their commands.

Touches only the tree. A daemon is a unit vfioctl-mps@NAME.service, and its facts are properties `sim:mps:NAME`. Source:
NVIDIA's MPS documentation; percentages are printed as driver 580 does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from vfioctl.errors import HostError
from vfioctl.kernel.host_paths import MPS_RUN
from vfioctl.kernel.mps import PROGRAM, refuse_order, refuse_question
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import groups

USAGE = "usage: nvidia-cuda-mps-control [-d | -f]"
_UNIT = re.compile(r"vfioctl-mps@([A-Za-z0-9.-]{1,64})\.service", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15})([MG])", re.ASCII)


class SimulatedMps(Recorded):
    """The part of a simulated host that answers for MPS: it has the program if NVML knows a GPU."""

    _effect: Callable[[str, str], AbstractContextManager[None]]

    def unit_states(self, names: Sequence[str]) -> Mapping[str, str]:
        own = {name: "inactive" for name in names if _UNIT.fullmatch(name) and _has_program(self.tree)}
        return {**own, **super().unit_states(names)}

    def mps_usage(self) -> str:
        _refuse_without_program(self.tree)
        return self.tree.properties.get("sim:mps", {}).get("usage", USAGE)

    def ask_mps(self, pipes: str, question: str) -> str:
        refuse_question(question)
        return _answer(_facts(self.tree, pipes), *question.split())

    def tell_mps(self, pipes: str, order: str) -> None:
        refuse_order(order)
        with self._effect(f"mps:{pipes.rpartition('/')[2]}", order):
            _obey(_facts(self.tree, pipes), *order.split())

    def set_compute_mode(self, address: str, mode: str) -> None:
        with self._effect(f"compute:{address}", mode):
            facts, device = self.tree.properties.get(f"nvml:{address}"), f"{PCI_DEVICES}/{address}"
            if facts is None or groups.driver_of(self.tree, self.tree.resolve(device)) != "nvidia":
                raise HostError(f"the compute mode of {address} cannot be set: NVML does not know the GPU")
            facts["compute_mode"] = mode


def set_unit(tree: Tree, name: str, *, active: bool) -> None:
    """Starts or ends a daemon with its unit. What it was told is gone when it starts. Raises HostError."""
    match = _UNIT.fullmatch(name)
    if match is None or not _has_program(tree):
        return
    environment = tree.files.get(f"{MPS_RUN}/{match[1]}.env", "")
    if active and not environment:
        raise HostError(f"starting {name} failed: Failed to load environment files")
    percentage = re.search("^CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=([0-9]+)$", environment, re.M)
    tree.properties.setdefault(f"unit:{name}", {"state": "inactive"})
    tree.properties.pop(f"sim:mps:{match[1]}", None)
    if active:
        tree.properties[f"sim:mps:{match[1]}"] = {"threads": percentage[1] if percentage else "100"}


def _has_program(tree: Tree) -> bool:
    return any(subject.startswith("nvml:") for subject in tree.properties)


def _refuse_without_program(tree: Tree) -> None:
    if not _has_program(tree):
        raise HostError(f"this host has no MPS: {PROGRAM}: No such file or directory")


def _facts(tree: Tree, pipes: str) -> dict[str, str]:
    _refuse_without_program(tree)
    name = pipes.rpartition("/")[2]
    state = tree.properties.get(f"unit:vfioctl-mps@{name}.service", {}).get("state")
    if state != "active" or f"sim:mps:{name}" not in tree.properties:
        error = HostError(f"{PROGRAM} failed", hint="journalctl -u 'vfioctl-mps@*' says more")
        error.kernel_said = "Cannot find MPS control daemon process"
        raise error
    return tree.properties[f"sim:mps:{name}"]


def _answer(facts: Mapping[str, str], question: str, *numbers: str) -> str:
    """`servers`: `PID` or `PID:CLIENT,CLIENT` for each, with spaces between."""
    clients = dict(_servers(facts))
    of = numbers[0] if numbers else ""
    answers = {
        "get_server_list": "\n".join(clients),
        "get_client_list": "\n".join(clients.get(of, ())),
        "get_server_status": "ACTIVE" if of in clients else "",
        "get_default_active_thread_percentage": f"{float(facts['threads']):.1f}",
        "get_active_thread_percentage": f"{float(facts.get(f'threads-{of}', facts['threads'])):.1f}",
        "get_default_device_pinned_mem_limit": facts.get("memory", "") if of == "0" else "",
        "get_device_pinned_mem_limit": facts.get(f"memory-{of}", facts.get("memory", "")),
    }
    return answers.get(question, f"Unknown command: {question}")


def _servers(facts: Mapping[str, str]) -> Iterator[tuple[str, Sequence[str]]]:
    for word in facts.get("servers", "").split():
        server, _, clients = word.partition(":")
        yield server, clients.split(",") if clients else ()


def _obey(facts: dict[str, str], order: str, *words: str) -> None:
    """A limit of a device that the daemon does not see is ignored without an error."""
    value = words[-1]
    if order == "set_default_active_thread_percentage":
        facts["threads"] = value
    elif order == "set_active_thread_percentage":
        facts[f"threads-{words[0]}"] = value
    elif order == "set_default_device_pinned_mem_limit" and words[0] == "0":
        facts["memory"] = _printed(value)
    elif order == "set_device_pinned_mem_limit" and words[1] == "0":
        facts[f"memory-{words[0]}"] = _printed(value)


def _printed(size: str) -> str:
    match = _SIZE.fullmatch(size)
    if match is None:
        return size
    mebibytes = int(match[1]) * (1024 if match[2] == "G" else 1)
    return f"{mebibytes // 1024}G" if mebibytes % 1024 == 0 else f"{mebibytes}M"

"""Checks that all fits together that a Kata guest needs to have devices. Pure: each finding has its remedy. Kata
resolves the name RESOURCE=ID, made from the names that a device plugin reported to the kubelet, as the name of a CDI
device. So the resource must be named like the CDI kind, and each of its ids like a device of that kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vfioctl.claims.model.cdi import Node, device_name, is_vfio_node
from vfioctl.containers.cdi.files import CdiFileFound
from vfioctl.containers.kata.settings import MODES, MOST_PORTS, NO_PORT, PORTS, Kata, Needs
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.units import format_size

_CONFIG = "vfioctl kata config writes a drop-in with it"
_ANNOTATION = "cdi.k8s.io/*"
_SETTINGS = ("cold_plug_vfio", "pcie_root_port")


@dataclass(frozen=True)
class Finding:
    """One line of the check. `ok`: None if it could not be checked."""

    name: str
    found: str
    remedy: str = ""
    ok: bool | None = True


@dataclass(frozen=True)
class Host:
    """What was read of the host."""

    inventory: Inventory
    subjects: tuple[Subject, ...]
    needs: Needs
    files: tuple[CdiFileFound, ...] = ()
    address_bits: int | None = None
    nodes: Mapping[Subject, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    """The major and minor number of each of these nodes, as `239:0`."""
    node: Node = Node.GROUP
    """The kind of these nodes, which the CDI file should have."""
    is_claimed: bool = False
    """Whether a claim has them, so that only what is done for the claim may bind them."""


def findings(kata: Kata, host: Host) -> tuple[Finding, ...]:
    """Return all lines of the check, in the order in which one would repair."""
    results = [*_devices(host), *_cdi(host)]
    if kata.settings is None:
        remedy = f"{'correct it' if kata.path else 'install Kata'}, or name its configuration.toml with --config"
        results.append(_wrong("configuration", kata.problem or "none was found", remedy))
    else:
        results += [Finding("configuration", kata.path), *_settings(kata, kata.settings, host)]
    return (*results, *_resources(kata, host))


def _wrong(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, found, remedy, ok=False)


def _judged(name: str, found: str, remedy: str, *, ok: bool) -> Finding:
    return Finding(name, found) if ok else _wrong(name, found, remedy)


def _devices(host: Host) -> Iterator[Finding]:
    iommu = host.inventory.iommu
    yield _judged("IOMMU", iommu.kind or "off", iommu.reason, ok=iommu.translating)
    if not host.subjects:
        yield _wrong("driver", "no device is on VFIO", "vfioctl bind DEVICE, or vfioctl claim create")
    for subject in host.subjects:
        function = host.inventory.by_address.get(subject) if isinstance(subject, PciAddress) else None
        driver = (function.driver or "no driver") if function else "a mediated device"
        ready = subject in host.nodes and (function is None or host.inventory.is_ready(function))
        node = host.nodes.get(subject, "no node of VFIO")
        again = "vfioctl reconcile --fix, or claim it again without --no-bind"
        remedy = again if host.is_claimed else f"vfioctl bind {subject} --with-group"
        yield _judged(f"driver of {subject}", f"{driver}, {node}", remedy, ok=ready)


def _cdi(host: Host) -> Iterator[Finding]:
    names = {device_name(subject): subject for subject in host.subjects}
    defined: dict[str, list[tuple[CdiFileFound, tuple[str, ...]]]] = {name: [] for name in names}
    for file in host.files:
        for name, nodes in file.devices.items():
            if name in defined and not file.problems:
                defined[name].append((file, nodes))
    for name, subject in names.items():
        yield _named(name, subject, defined[name], host)


def _named(name: str, subject: Subject, defined: Sequence[tuple[CdiFileFound, tuple[str, ...]]], host: Host) -> Finding:
    title = f"CDI name of {subject}"
    remedy = f"vfioctl cdi generate --node {host.node}, with --all if it is not claimed"
    if not defined:
        return _wrong(title, f"no CDI file has {name}", remedy)
    file, nodes = defined[0]
    shown = f"{file.kind}={name}, {' and '.join(nodes) or 'no node'}"
    if len(nodes) != 1 or not is_vfio_node(nodes[0].partition(" ")[0]):
        return _wrong(title, shown, f"exactly one node of VFIO for each device: repair {file.path}")
    node = host.nodes.get(subject, "")
    if nodes[0] not in (node, f"{node} {host.numbers.get(node)}"):
        return _wrong(title, f"{shown}, which is not its {host.node} node now", remedy)
    return Finding(title, shown)


def _settings(kata: Kata, settings: Mapping[str, Any], host: Host) -> Iterator[Finding]:
    name, hypervisor = _hypervisor_of(settings)
    place = hypervisor.get("cold_plug_vfio", NO_PORT)
    ok = place in tuple(PORTS)  # it may be a list, which has no hash
    yield _judged("cold_plug_vfio", f"{place} ({name or 'no hypervisor'})", f"root-port: {_CONFIG}", ok=ok)
    hot = hypervisor.get("hot_plug_vfio", NO_PORT)
    if ok and hot not in ("", NO_PORT):
        yield _wrong("hot_plug_vfio", f"{hot} too", f"Kata refuses both; {NO_PORT}: {_CONFIG}")
    setting = PORTS.get(place, "pcie_root_port") if isinstance(place, str) else "pcie_root_port"
    if setting:
        yield _ports(setting, hypervisor.get(setting, 0), host.needs)
    yield _window(host)
    mode = _runtime_of(settings).get("vfio_mode", MODES[0])
    is_mode = mode in MODES
    yield _judged("vfio_mode", str(mode), f"{' or '.join(MODES)}: {_CONFIG}", ok=is_mode)
    if mode == "vfio" and is_mode:
        has_iommu = hypervisor.get("enable_iommu") is True
        remedy = "enable_iommu = true, or the container in the guest cannot use VFIO"
        yield _judged("enable_iommu", str(hypervisor.get("enable_iommu", False)).lower(), remedy, ok=has_iommu)
    yield _pod_settings(hypervisor)
    yield _hand_over(kata, settings)


def _hypervisor_of(settings: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    tables = settings.get("hypervisor")
    for name, table in tables.items() if isinstance(tables, Mapping) else ():
        if isinstance(table, Mapping):
            return name, table
    return "", {}


def _runtime_of(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    table = settings.get("runtime")
    return table if isinstance(table, Mapping) else {}


def permits(patterns: object, name: str) -> bool:
    """Return whether enable_annotations allows a pod to set this: each entry is a regular expression."""
    for pattern in patterns if isinstance(patterns, list) else ():
        try:
            if isinstance(pattern, str) and len(pattern) < 1000 and re.fullmatch(pattern, name):
                return True
        except re.error:
            continue
    return False


def _ports(setting: str, value: object, needs: Needs) -> Finding:
    number = value if isinstance(value, int) and not isinstance(value, bool) else 0
    ports = f"{value}, and {needs.ports} are needed"
    if needs.ports > MOST_PORTS:
        return _wrong(setting, ports, f"Kata has at most {MOST_PORTS}: give a pod fewer devices, check one --claim")
    ok = needs.ports <= number <= MOST_PORTS
    return _judged(setting, ports, f"{needs.ports}: {_CONFIG}", ok=ok)


def _window(host: Host) -> Finding:
    """The guest's addresses must hold its memory and all windows; half of them is a careful limit."""
    needed, bits = host.needs.window_64, host.address_bits
    window = f"{format_size(needed)} needed"
    if bits is None:
        return Finding("BAR window", f"{window}; the width of addresses is unknown", ok=None)
    ok = needed <= 1 << (bits - 1)
    remedy = "give a pod fewer devices: the CPU cannot address them all"
    return _judged("BAR window", f"{window}, {bits} bits of addresses", remedy, ok=ok)


def _pod_settings(hypervisor: Mapping[str, Any]) -> Finding:
    may = all(permits(hypervisor.get("enable_annotations"), name) for name in _SETTINGS)
    ports = "may set the ports themselves" if may else "may not set the ports themselves, so the configuration counts"
    return Finding("enable_annotations", f"pods {ports}")


def _hand_over(kata: Kata, settings: Mapping[str, Any]) -> Finding:
    """Kata learns the names from the kubelet, or from annotations that containerd hands on."""
    title, socket = "names of devices", _runtime_of(settings).get("pod_resource_api_sock")
    if socket:
        return Finding(title, f"from the kubelet, {socket}")
    if kata.pod_annotations is None:
        return Finding(title, "no runtime of Kata in containerd's configuration", ok=None)
    ok = any(annotation in ("*", "cdi.k8s.io/*", "cdi.k8s.io*") for annotation in kata.pod_annotations)
    annotations = f"from annotations; containerd hands on {', '.join(kata.pod_annotations) or 'none'}"
    remedy = f"add {_ANNOTATION} to pod_annotations of Kata's runtime in containerd's config.toml"
    return _judged(title, annotations, f"{remedy}, or set pod_resource_api_sock", ok=ok)


def _resources(kata: Kata, host: Host) -> Iterator[Finding]:
    if kata.resources is None:
        yield Finding("resource names", "no kubelet has device plugins here", ok=None)
        return
    kinds: dict[str, set[str]] = {}
    for file in host.files:
        kinds.setdefault(file.kind, set()).update(file.devices)
    by_name = {name: kind for kind, names in kinds.items() for name in names}
    for resource, ids in kata.resources.items():
        if resource in kinds or any(device in by_name for device in ids):
            yield _resource(resource, ids, kinds, by_name)


def _resource(resource: str, ids: Sequence[str], kinds: Mapping[str, set[str]], by_name: Mapping[str, str]) -> Finding:
    title = f"resource {resource}"
    if resource not in kinds:
        other = next(by_name[device] for device in ids if device in by_name)
        remedy = f"vfioctl cdi generate --kind {resource}: the resource and the kind must have one name"
        return _wrong(title, f"its devices are of CDI kind {other}", remedy)
    unknown = [device for device in ids if device not in kinds[resource]]
    if unknown:
        remedy = "the device plugin must use the CDI names as ids: vfioctl cdi list"
        return _wrong(title, f"{resource}={unknown[0]} is no CDI device", remedy)
    return Finding(title, f"{len(ids)} ids, all of them CDI devices")

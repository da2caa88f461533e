"""libvirt of a simulated host: its test driver, and the domains defined and started in it, which the host's file keeps.
The test driver is libvirt itself, with its schema and its parser: what it refuses here it refuses on a machine. But it
forgets with each connection. So definitions are kept where libvirtd keeps them, in /etc/libvirt/qemu/NAME.xml, over
those that the test driver's own file has; an empty text stands for one of these that was removed. A domain that runs
has its document in /run/libvirt/qemu, also as with libvirtd. As QEMU does, one that runs needs its functions on VFIO,
or vGPUs of NVIDIA's vendor-specific VFIO.

Volumes are kept too. The pools are the test driver's; it reads the document of each volume. An image is kept as its
words (`image_text`), a seed as the digest of what a guest reads in it, from an image that is made as on a machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from vfioctl.errors import VfioctlError
from vfioctl.kernel.disk_images import digest_of, files_in
from vfioctl.kernel.libvirt.answers import CHANGED, NO_DOMAIN, NO_VOLUME, asked_here, value_of
from vfioctl.kernel.libvirt.storage import seed_content
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import capacity
from vfioctl.kernel.simulated.groups import driver_of, is_vfio

DEFINITIONS, RUNNING = "/etc/libvirt/qemu", "/run/libvirt/qemu"
VOLUMES = "/etc/libvirt/storage"
"""The directory of the pools, each with a file for each volume."""
_BASE_SIZE = 10 << 30
"""Of every base image, which is no more than a name here."""
_INTERNAL, _OPERATION_FAILED, _INVALID_NOW, _VOLUME_EXISTS = 1, 9, 55, 90  # virErrorNumber
_UUID = re.compile(r"<uuid>([0-9a-f-]{36})</uuid>", re.ASCII)
_NAME = re.compile(r"<name>([^<]*)</name>")
_PASSWORD = re.compile(r"(<graphics [^<>]*?) passwd='[^'<>]*'")
"""What virDomainGraphicsDefFormat leaves out without VIR_DOMAIN_DEF_FORMAT_SECURE."""


def ask(tree: Tree, uri: str, question: str, *words: str) -> Any:
    """See `Kernel.ask_libvirt`."""
    if question == "facts":
        *versions, kept = asked_here(uri, question)
        domains = _all(tree, kept).values()
        return (*versions, [(*domain[:4], *(_PASSWORD.sub(r"\1", text) for text in domain[4:])) for domain in domains])
    if question == "is_running":
        known = _all(tree, asked_here(uri, "facts")[2])
        return words[0] in known and known[words[0]][2]
    if question == "definition" and (kept := _kept(tree).get(words[0])) is not None:
        asked_here(uri, "facts")  # a host without libvirt has none of these
        return kept
    if question in ("volume", "seed"):
        pool, name = words
        asked_here(uri, "pool", pool)
        return tree.files.get(f"{VOLUMES}/{pool}/{name}", "")
    return asked_here(uri, question, *words)


def tell(tree: Tree, uri: str, order: str, *words: str) -> None:
    """See `Kernel.tell_libvirt`."""
    if order in ("create_image", "write_seed", "delete_volume"):
        _tell_storage(tree, uri, order, *words)
        return
    of_driver = asked_here(uri, "facts")[2]
    known = _all(tree, of_driver)
    refused = partial(_refused, uri, order, words)
    if order == "define":
        from xml.sax.saxutils import unescape

        xml = asked_here(uri, "validated", *words)
        name, uuid = unescape(_of(_NAME, xml)), _of(_UUID, xml)
        for other, (_, its, *_) in known.items():
            if (other == name) != (its == uuid):
                refused(_OPERATION_FAILED, f"operation failed: domain '{other}' is already defined with uuid {its}")
        _keep(tree, DEFINITIONS, name, xml)
        return
    name = words[0]
    if name not in known:
        refused(NO_DOMAIN, f"Domain not found: no domain with name '{name}'")
    of_itself = "" if name in {domain[0] for domain in of_driver} else None
    if order == "undefine":
        _keep(tree, DEFINITIONS, name, of_itself)
    elif (order == "start") == known[name][2]:
        state = "already" if order == "start" else "not"
        refused(_INVALID_NOW, f"Requested operation is not valid: domain is {state} running")
    elif order == "start":
        _start(tree, name, known, refused)
    else:
        _keep(tree, RUNNING, name, of_itself)


def _tell_storage(tree: Tree, uri: str, order: str, pool: str, name: str, *words: str) -> None:
    asked_here(uri, "pool", pool)
    path = f"{VOLUMES}/{pool}/{name}"
    refused = partial(_refused, uri, order, (pool, name))
    if order == "delete_volume":
        if path not in tree.files:
            refused(NO_VOLUME, f"Storage volume not found: no storage vol '{name}'")
        tree.remove(path)
        return
    if path in tree.files:
        refused(_VOLUME_EXISTS, f"storage volume '{name}' exists already")
    if order == "create_image":
        size, _, base = words[0].partition(" on ")
        text = f"{_BASE_SIZE if size == '0' else size}{' on ' * bool(base)}{base}"
        asked_here(uri, order, pool, name, text)
        tree.put(path, text)
        return
    try:
        content = seed_content(*words)
    except VfioctlError as error:
        refused(CHANGED, error.message)
    else:
        tree.put(path, digest_of(files_in(content)))


def _refused(uri: str, order: str, words: tuple[str, ...], code: int, text: str) -> None:
    value_of((None, code, text), uri, order, words)


def _start(tree: Tree, name: str, known: Mapping[str, tuple[Any, ...]], refused: Callable[[int, str], None]) -> None:
    xml = known[name][5]
    others = {device: other for other, domain in known.items() if domain[2] for device in _functions(domain[4])}
    for device in _functions(xml):
        if device in others:
            text = f"PCI device {device} is in use by driver QEMU, domain {others[device]}"
            refused(_INVALID_NOW, f"Requested operation is not valid: {text}")
        if not _can_be_opened(tree, tree.resolve(f"{PCI_DEVICES}/{device}")):
            refused(_INTERNAL, f"internal error: qemu unexpectedly closed the monitor: vfio {device}: no such device")
    _keep(tree, RUNNING, name, xml)


def _can_be_opened(tree: Tree, device: str) -> bool:
    vgpu = tree.files.get(f"{device}/{capacity.VENDOR}/current_vgpu_type", capacity.NO_TYPE)
    return is_vfio(driver_of(tree, device) or "") or vgpu != capacity.NO_TYPE


def _functions(xml: str) -> list[str]:
    import xml.etree.ElementTree as ET

    addresses = ET.fromstring(xml).iterfind("devices/hostdev[@type='pci']/source/address")  # noqa: S314 - libvirt's own
    names = ("domain", "bus", "slot", "function")
    numbers = ([int(address.get(name, "0"), 16) for name in names] for address in addresses)
    return ["{:04x}:{:02x}:{:02x}.{}".format(*parts) for parts in numbers]


def _all(tree: Tree, domains: list[Any]) -> dict[str, tuple[Any, ...]]:
    """Every domain by its name, in the form of `vfioctl.kernel.libvirt.domains.facts`."""
    known = {domain[0]: tuple(domain) for domain in domains}
    for name, xml in _kept(tree).items():
        _, _, is_active, _, live, _ = known.get(name, ("", "", False, False, "", ""))
        known[name] = (name, _of(_UUID, xml or live), is_active, bool(xml), live, xml)
    for name, xml in _kept(tree, RUNNING).items():
        _, uuid, _, is_defined, _, defined = known.get(name, ("", "", False, False, "", ""))
        known[name] = (name, uuid or _of(_UUID, xml), bool(xml), is_defined, xml, defined)
    return {name: answer for name, answer in known.items() if answer[2] or answer[3]}


def _kept(tree: Tree, place: str = DEFINITIONS) -> dict[str, str]:
    names = [directory for directory in tree.directories.get(place, ()) if directory.endswith(".xml")]
    files = {name.removesuffix(".xml"): tree.files.get(f"{place}/{name}") for name in sorted(names)}
    return {name: text for name, text in files.items() if text is not None}


def _keep(tree: Tree, place: str, name: str, xml: str | None) -> None:
    tree.remove(f"{place}/{name}.xml")
    if xml is not None:
        tree.put(f"{place}/{name}.xml", xml.rstrip("\n"))


def _of(pattern: re.Pattern[str], xml: str) -> str:
    match = pattern.search(xml)
    return match[1] if match else ""

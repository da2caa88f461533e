"""Reads what a domain's document says of it, marks one as vfioctl's, and compares two. May not ask libvirt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from vfioctl.claims.model.passthrough_devices import devices_of
from vfioctl.domain.document.tree import add, child, remove
from vfioctl.domain.document.xml import MARK, is_comment, parse, text_of
from vfioctl.domain.model.spec import WISHES
from vfioctl.errors import BadDocument, BadSpec
from vfioctl.inventory.model.values import format_cpu_list, parse_cpu_list

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from vfioctl.domain.document.xml import Document

_NAME, _DIGEST, _DIGITS = "domain", "definition", 16
_UNITS = {"": 1 << 10, "b": 1, "bytes": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS |= {f"{key}ib": value for key, value in _UNITS.items() if len(key) == 1 and key != "b"}
_UNITS |= {f"{key}b": 1000 ** (number + 1) for number, key in enumerate("kmgt")}
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Definition:
    """What a document says. Numbers that it does not say, or not clearly, are 0, texts are empty."""

    name: str
    uuid: str
    is_marked: bool
    """Whether it has vfioctl's mark, which may be the copy of another domain's."""
    ours: bool
    """Whether vfioctl defined it: the mark is of no other domain."""
    claim: str
    template: str
    fleet: str
    """The fleet that it belongs to; empty if to none, or if the mark does not name this domain."""
    spec: str
    """The digest of its spec in the fleet's file."""
    digest: str
    """Of the document that vfioctl gave to libvirt; empty if it did not."""
    wishes: tuple[tuple[str, str], ...]
    """What it was built with, otherwise than by default: `--hugepages`, `--policy`, `--smt`, `--node`."""
    devices: tuple[str, ...]
    vcpus: int
    memory: int
    cells: int
    nodes: str
    pins: tuple[tuple[int, str], ...]
    shared: tuple[str, ...] = field(compare=False)
    """The CPUs of the emulator, of I/O threads, and of vCPUs without a pin of their own."""


def read_definition(text: str | bytes) -> Definition:
    """Return what a document says. Raises BadDocument if it is no domain."""
    return _definition(parse(text).root)


def _definition(root: Element) -> Definition:
    if root.tag != "domain":
        raise BadDocument(f"the document is no domain: it begins with <{str(root.tag)[:40]}>")
    mark = root.find(f"metadata/{MARK}")
    given = {} if mark is None else dict(mark.items())
    name = root.findtext("name", "")
    marked_as = given.get(_NAME, "")  # that of another domain in a clone, and after virsh domrename
    is_named = bool(name) and marked_as == name
    return Definition(
        name=name,
        uuid=_uuid(root.findtext("uuid", "")),
        is_marked=mark is not None,
        ours=mark is not None and (is_named or not marked_as),
        claim=given.get("id", "") if is_named or not marked_as else "",
        template=given.get("template", ""),
        fleet=given.get("fleet", "") if is_named else "",
        spec=given.get("spec", "") if is_named else "",
        digest=given.get(_DIGEST, ""),
        wishes=tuple((name, given[name]) for name in WISHES if name in given),
        devices=tuple(devices_of(root)),
        vcpus=_number(root.findtext("vcpu", "")),
        memory=_bytes(root.find("memory")),
        cells=len(root.findall("cpu/numa/cell")),
        nodes=_nodes(root),
        pins=tuple(sorted(_pins(root))),
        shared=tuple(filter(None, _shared(root))),
    )


def _uuid(text: str) -> str:
    """Return a UUID as libvirt writes it; the text itself if it is none."""
    digits = text.strip().replace("-", "").lower()
    if not _UUID.fullmatch(text.strip()):
        return text.strip()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _number(text: str) -> int:
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else 0


def _bytes(memory: Element | None) -> int:
    if memory is None:
        return 0
    return _number(memory.text or "") * _UNITS.get(memory.get("unit", "KiB").lower(), 0)


def _nodes(root: Element) -> str:
    found = [each.get("nodeset", "") for each in root.iterfind("numatune/*")]
    return format_cpu_list(sorted({node for text in found for node in listed(text)}))


def _pins(root: Element) -> Iterator[tuple[int, str]]:
    for each in root.iterfind("cputune/vcpupin"):
        yield _number(each.get("vcpu", "")), format_cpu_list(listed(each.get("cpuset", "")))


def _shared(root: Element) -> Iterator[str]:
    """`cpuset` of <vcpu> is for every thread that has no pin of its own (libvirt's formatdomain, CPU Allocation)."""
    for path in ("cputune/emulatorpin", "cputune/iothreadpin"):
        yield from (format_cpu_list(listed(each.get("cpuset", ""))) for each in root.iterfind(path))
    vcpu = root.find("vcpu")
    pinned = {number for number, _ in _pins(root)}
    has_all = root.find("cputune/emulatorpin") is not None and len(pinned) >= _number(root.findtext("vcpu", ""))
    if vcpu is not None and not has_all:
        yield format_cpu_list(listed(vcpu.get("cpuset", "")))


def listed(text: str) -> tuple[int, ...]:
    """Return the numbers of a list in libvirt's form, such as 0-7,^3; none if it is not understood."""
    parts = [part.strip() for part in text.split(",")]
    try:
        without = parse_cpu_list(",".join(part[1:] for part in parts if part.startswith("^")))
        return tuple(set(parse_cpu_list(",".join(part for part in parts if part[:1] != "^"))) - set(without))
    except BadSpec:
        return ()


# -- writing -----------------------------------------------------------------------------------------


def marked(text: str | bytes, *, uuid: str, claim: str = "", before: str = "") -> str:
    """Return a document as vfioctl defines it: with a UUID, and with its mark in the metadata.

    `uuid`: used if the document has none. `claim`: the id of a claim; otherwise that of the document stays. A copy of
    another domain's mark loses the claim and the fleet of that domain. `before`: the definition that the document
    replaces, whose fleet the domain stays in.
    """
    document = parse(text)
    root = document.root
    found = _definition(root)
    child(root, "uuid", text=found.uuid or uuid)
    metadata = child(root, "metadata")
    remove(metadata, MARK)
    given = {_NAME: found.name, "id": claim or found.claim, "template": found.template}
    member = found if found.fleet or not before else read_definition(before)
    given |= {"fleet": member.fleet, "spec": member.spec}
    mark = add(metadata, MARK, {**{key: value for key, value in given.items() if value}, **dict(found.wishes)})
    mark.set(_DIGEST, _digest(document))
    return text_of(document)


def in_fleet(text: str, fleet: str, spec: str) -> str:
    """Return a document with the mark of a fleet, and with the digest of its spec."""
    document = parse(text)
    mark = child(child(document.root, "metadata"), MARK)
    mark.set(_NAME, document.root.findtext("name", ""))
    mark.set("fleet", fleet)
    mark.set("spec", spec)
    return text_of(document)


def _digest(document: Document) -> str:
    return sha256(text_of(document).encode()).hexdigest()[:_DIGITS]


# -- comparing ---------------------------------------------------------------------------------------


def is_definition_of(found: str, wanted: str) -> bool:
    """Return whether libvirt's document `found` is what became of the document `wanted`.

    libvirt writes a document in its own form and fills in addresses and controllers, so the texts differ. It keeps the
    metadata as they are: the digest in the mark says from which document it is, and what counts is compared as well.
    """
    if not found or not wanted:
        return found == wanted
    try:
        return found.strip() == wanted.strip() or _say_the_same(read_definition(found), read_definition(wanted))
    except BadDocument:
        return False


def _say_the_same(found: Definition, wanted: Definition) -> bool:
    """libvirt adds up the memory of the cells, and counts the vCPUs of a topology, where the document does not."""
    there = replace(found, memory=wanted.memory and found.memory, vcpus=wanted.vcpus and found.vcpus)
    return there == wanted


def is_still(found: str, wanted: str) -> bool:
    """Return whether nobody has changed it since: all that is in `wanted` is in `found`, and there are no more devices.

    Values that libvirt writes in another form count as changed: then the domain is defined again, which does no harm.
    """
    if not is_definition_of(found, wanted):
        return False
    there, given = parse(found).root, parse(wanted).root
    more = (tag for tag in _ADDED if len(there.findall(f"devices/{tag}")) != len(given.findall(f"devices/{tag}")))
    return not any(more) and set(_values(given)) <= set(_values(there))


_ADDED = ("disk", "interface", "hostdev", "filesystem", "graphics", "serial", "tpm", "shmem", "redirdev")
"""Devices that libvirt does not add by itself."""
_RESOLVED = ("machine",)
"""Attributes that may be an alias: q35 becomes pc-q35-7.2."""
_SPLIT = ("vcpusched", "iothreadsched")
"""Elements that libvirt writes once for each vCPU."""


def _values(element: Element, path: str = "") -> Iterator[tuple[str, str, str]]:
    if is_comment(element) or element.tag in _SPLIT:
        return
    here = f"{path}/{element.tag}"
    if "unit" not in element.keys():  # noqa: SIM118 - no mapping; sizes are compared in bytes, as far as they count
        yield from ((here, key, _plain(value)) for key, value in element.items() if key not in _RESOLVED)
        if (element.text or "").strip():
            yield here, "", _plain(element.text or "")
    for each in element:
        yield from _values(each, here)


def _plain(text: str) -> str:
    """Return a value in one form: libvirt writes 0x0000 for 0x0 and for 0, and 0-2 for 0-3,^3."""
    word = text.strip().lower()
    try:
        return str(int(word, 16 if word.startswith("0x") else 10))
    except ValueError:
        return format_cpu_list(listed(word)) or word

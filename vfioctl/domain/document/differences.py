"""Compares documents of a domain by meaning: elements that name the same thing, in any order, sizes by value. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from xml.etree.ElementTree import Element

from vfioctl.domain.document.reader import Domain, read_domain
from vfioctl.domain.document.values import cpuset, is_element, number, scaled, text_in
from vfioctl.domain.document.xml import METADATA, Document, parse
from vfioctl.errors import BadDocument
from vfioctl.inventory.model.values import any_number
from vfioctl.units import exact_size, format_cpu_list

_NAMED_BY: Mapping[str, tuple[str, ...]] = {
    "vcpupin": ("vcpu",),
    "iothreadpin": ("iothread",),
    "vcpusched": ("vcpus",),
    "iothreadsched": ("iothreads",),
    "memnode": ("cellid",),
    "cell": ("id",),
    "sibling": ("id",),
    "page": ("nodeset",),
    "feature": ("name",),
    "timer": ("name",),
    "controller": ("type", "index"),
}
"""The attributes that say which one of several elements is meant."""
_BY_CHILD: Mapping[str, str] = {"disk": "target", "interface": "mac", "hostdev": "source/address"}
"""The child that says so."""
_SPLIT = {"vcpusched": "vcpus", "iothreadsched": "iothreads"}
"""Elements for several threads, which libvirt writes once for each, with the attribute that names them."""
_SIZES = ("memory", "currentMemory", "pcihole64", "hard_limit")
"""Elements whose text is a size, also without a unit."""
_SIZE = ("unit", "size", "memory")
"""The attributes of a size."""
_ADDED = ("disk", "interface", "hostdev", "filesystem", "graphics", "serial", "tpm", "shmem", "redirdev")
"""Devices that libvirt does not add by itself."""
_QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
_RESOLVED = "/@machine"
"""An attribute that may be an alias: q35 becomes pc-q35-7.2."""
_DIGITS = re.compile(r"[0-9a-f:-]+", re.ASCII | re.IGNORECASE)


class Difference(NamedTuple):
    """A value that is not the same in two documents; None where there is none."""

    path: str
    before: str | None
    after: str | None


def differences(before: Document, after: Document) -> tuple[Difference, ...]:
    """Return what differs, by path, in the order of the documents. Comments and text of metadata do not count."""
    return differing(flat(before), flat(after))


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return the same of two documents' values by path."""
    differences = (Difference(path, one.get(path), other.get(path)) for path in dict.fromkeys((*one, *other)))
    return tuple(difference for difference in differences if _plain(difference.before) != _plain(difference.after))


def is_definition_of(found: str, wanted: str) -> bool:
    """Return whether libvirt's `found` is what became of the document `wanted`: its form, addresses and controllers
    differ, but the metadata stay. The digest in the mark says from which document it is, and what counts is compared.
    """
    if not found or not wanted or found.strip() == wanted.strip():
        return found.strip() == wanted.strip()
    try:
        return _is_alike(read_domain(found), read_domain(wanted))
    except BadDocument:
        return False


def is_made_from(found: str, wanted: str) -> bool:
    """Return whether `found` has the digest of `wanted`: it was defined from that, whatever the driver has dropped."""
    try:
        marks = [read_domain(text).mark for text in (found, wanted)]
    except BadDocument:
        return False
    return bool(marks[0].digest) and marks[0] == marks[1]


def lost(found: str, wanted: str) -> tuple[str, ...]:
    """Return the paths that `wanted` has, and `found` has not."""
    return tuple(path for path, now, _ in differences(parse(found), parse(wanted)) if now is None)


def _is_alike(found: Domain, wanted: Domain) -> bool:
    """libvirt adds up the memory of the cells, and counts the vCPUs of a topology, where the document does not."""
    return (
        all(getattr(found, part) == getattr(wanted, part) for part in _COMPARED)
        and len(found.cells) == len(wanted.cells)
        and (not wanted.memory or found.memory == wanted.memory)
        and (wanted.one("vcpu") is None or found.vcpus == wanted.vcpus)
        and _for_qemu(found) == _for_qemu(wanted)
    )


def _for_qemu(domain: Domain) -> list[tuple[str, dict[str, str]]]:
    """Return the arguments and variables that a document passes to QEMU: a driver without this namespace drops them."""
    return [(element.tag, element.attrib) for element in domain.all(f"{_QEMU}commandline/*") if is_element(element)]


_COMPARED = ("name", "uuid", "mark", "host_devices", "host_nodes", "pins")


def is_still(found: str, wanted: str) -> bool:
    """Return whether nobody has changed it since: all that is in `wanted` is in `found`, and there are no more devices.
    Values that libvirt writes in another form count as changed: then the domain is defined again, which does no harm.
    """
    if not is_definition_of(found, wanted):
        return False
    now, defined = parse(found).root, parse(wanted).root
    more = (tag for tag in _ADDED if len(now.findall(f"devices/{tag}")) != len(defined.findall(f"devices/{tag}")))
    return not any(more) and _unnamed(defined) <= _unnamed(now)


def _unnamed(root: Element) -> set[tuple[str, str | None]]:
    """Return the values by tags alone, because libvirt adds names; without sizes, which it rounds (see `_is_alike`)."""
    values = _flat(root, "", is_named=False)
    return {(path, _plain(value)) for path, value in values if value and not path.endswith(_RESOLVED)}


def flat(document: Document) -> Mapping[str, str]:
    """Return each attribute and text by its path."""
    return dict(_flat(document.root, ""))


def _flat(element: Element, above: str, *, is_named: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the path and the value of each attribute and text. `is_named`: the path says which of several it is."""
    here = f"{above}/{_name(element) if is_named else element.tag}"
    is_size = bool(element.get("unit"))
    if element.tag in _SIZES or is_size:
        if is_named:
            yield here, _amount(element)
    elif text := (element.text or "").strip():
        yield here, text
    elif not element.attrib and not len(element):
        yield here, ""
    names = _NAMED_BY.get(str(element.tag), ()) if is_named else ()
    for name, value in element.items():
        if name not in (*(_SIZE if is_size else ()), *names):
            yield f"{here}/@{name}", value
    seen: Counter[str] = Counter()
    for child in _children(element):
        name = _name(child)
        seen[name] += 1
        for path, value in _flat(child, here, is_named=is_named):
            number = f"[{seen[name]}]" if is_named and seen[name] > 1 else ""
            yield path.replace(f"{here}/{name}", f"{here}/{name}{number}", 1), value


def _children(element: Element) -> Iterator[Element]:
    """Yield the elements below, without comments and vfioctl's own; one for several threads once for each of them."""
    for child in element:
        tag: object = child.tag
        if not isinstance(tag, str) or tag.startswith(f"{{{METADATA}}}"):
            continue
        name = _SPLIT.get(tag, "")
        threads = (cpuset(child.get(name)) if name else None) or ()
        yield from (Element(tag, {**child.attrib, name: str(thread)}) for thread in sorted(threads))
        if not threads:
            yield child


def _name(element: Element) -> str:
    tag = str(element.tag)
    if keys := [f"{key}={element.get(key)}" for key in _NAMED_BY.get(tag, ()) if element.get(key) is not None]:
        return f"{tag}[{','.join(keys)}]"
    child = element.find(_BY_CHILD[tag]) if tag in _BY_CHILD else None
    if child is not None:
        return f"{tag}[{','.join(child.attrib.values())}]"
    return tag


def _amount(element: Element) -> str:
    text = text_in(element).strip() or element.get("size") or element.get("memory") or ""
    size = scaled(text, element.get("unit"))
    return text if size is None else exact_size(size)


def _plain(text: str | None) -> str | None:
    """Return a value in one form: libvirt writes 0x0000 for 0x0 and for 0, and 0-2 for 0-3,^3."""
    if text is None:
        return None
    word = text.strip()
    if (value := any_number(word) if word.startswith(("0x", "0X")) else number(word)) is not None:
        return str(value)
    if numbers := cpuset(word):
        return format_cpu_list(numbers)
    return word.lower() if _DIGITS.fullmatch(word) else word  # UUIDs, MAC addresses

"""Compares two documents of a domain by meaning: elements that name the same thing, in any order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from xml.etree.ElementTree import Element

from vfioctl.domain.document.definition import listed
from vfioctl.domain.document.xml import METADATA, Document

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
_BYTES = {"memory", "currentMemory", "pcihole64", "hard_limit"}
_AMOUNT = ("unit", "size", "memory")
"""The attributes of an amount in a unit."""
_UNITS = {"b": 1, "bytes": 1, "KB": 1000, "k": 1024, "KiB": 1024, "MiB": 1 << 20, "M": 1 << 20, "GiB": 1 << 30}
_UNITS |= {"G": 1 << 30, "TiB": 1 << 40, "T": 1 << 40}


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
    paths = dict.fromkeys((*one, *other))
    return tuple(Difference(path, one.get(path), other.get(path)) for path in paths if one.get(path) != other.get(path))


def flat(document: Document) -> Mapping[str, str]:
    """Return each attribute and text by its path."""
    return dict(_flat(document.root, ""))


def _flat(element: Element, above: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the value of each attribute and text."""
    here = f"{above}/{_called(element)}"
    if element.tag in _BYTES or element.get("unit"):
        yield here, _amount(element)
    elif text := (element.text or "").strip():
        yield here, text
    elif not element.attrib and not len(element):
        yield here, ""
    for name, value in element.items():
        if name not in (*(_AMOUNT if element.get("unit") else ()), *_NAMED_BY.get(str(element.tag), ())):
            yield f"{here}/@{name}", value
    seen: dict[str, int] = {}
    for child in _each(element):
        called = _called(child)
        seen[called] = seen.get(called, 0) + 1
        for path, value in _flat(child, here):
            number = f"[{seen[called]}]" if seen[called] > 1 else ""
            yield path.replace(f"{here}/{called}", f"{here}/{called}{number}", 1), value


def _each(element: Element) -> Iterator[Element]:
    """Yield the elements below, without comments and vfioctl's own; one for several threads once for each of them."""
    for child in element:
        tag: object = child.tag
        if not isinstance(tag, str) or tag.startswith(f"{{{METADATA}}}"):
            continue
        name = _SPLIT.get(tag, "")
        threads = listed(child.get(name, "")) if name else ()
        yield from (Element(tag, {**child.attrib, name: str(each)}) for each in threads)
        if not threads:
            yield child


def _called(element: Element) -> str:
    tag = str(element.tag)
    if keys := [f"{key}={element.get(key)}" for key in _NAMED_BY.get(tag, ()) if element.get(key) is not None]:
        return f"{tag}[{','.join(keys)}]"
    child = element.find(_BY_CHILD[tag]) if tag in _BY_CHILD else None
    if child is not None:
        return f"{tag}[{','.join(child.attrib.values())}]"
    return tag


def _amount(element: Element) -> str:
    """Return an amount of memory in bytes, whatever its unit; its text if it is none."""
    text = (element.text or "").strip() or element.get("size") or element.get("memory") or ""
    unit = element.get("unit", "KiB")
    return f"{int(text) * _UNITS[unit]} bytes" if text.isdecimal() and len(text) < 19 and unit in _UNITS else text

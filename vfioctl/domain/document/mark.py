"""vfioctl's mark in a domain's metadata: reads it, and writes it. May not ask libvirt."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vfioctl.domain.document.tree import add, child, remove
from vfioctl.domain.document.values import canonical_uuid
from vfioctl.domain.document.xml import MARK, parse, text_of
from vfioctl.domain.model.spec import BUILD_OPTIONS

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_NAME, _DIGEST, _DIGITS = "domain", "definition", 16


class Mark(NamedTuple):
    """What the mark says; texts are empty if the domain has none, or if it is the copy of another domain's."""

    is_there: bool = False
    """Whether the domain has a mark, which may be the copy of another domain's."""
    is_own: bool = False
    """Whether vfioctl defined the domain: the mark is of no other domain."""
    claim: str = ""
    template: str = ""
    fleet: str = ""
    """The fleet that the domain belongs to."""
    spec: str = ""
    """The digest of its spec in the fleet's file."""
    digest: str = ""
    """Of the document that vfioctl gave to libvirt."""
    options: tuple[tuple[str, str], ...] = ()
    """The options that it was built with, as far as they are not the defaults: `--hugepages`, `--policy`, ..."""


def read_mark(root: Element) -> Mark:
    """Return the mark of a domain."""
    element = root.find(f"metadata/{MARK}")
    if element is None:
        return Mark()
    marked_as, name = element.get(_NAME, ""), root.findtext("name", "")  # they differ in clones
    is_named = bool(name) and marked_as == name
    is_own = is_named or not marked_as
    return Mark(
        is_there=True,
        is_own=is_own,
        claim=element.get("id", "") if is_own else "",
        template=element.get("template", ""),
        fleet=element.get("fleet", "") if is_named else "",
        spec=element.get("spec", "") if is_named else "",
        digest=element.get(_DIGEST, ""),
        options=tuple((option, text) for option in BUILD_OPTIONS if (text := element.get(option)) is not None),
    )


def marked(text: str | bytes, *, uuid: str, claim: str = "", before: str = "") -> str:
    """Return a document as vfioctl defines it: with a UUID, `uuid` if it has none, and with its mark in the metadata.
    `claim`: the id of a claim; otherwise that of the document stays. A copy of another domain's mark loses its claim
    and fleet. `before`: the definition that the document replaces, whose fleet the domain stays in."""
    from hashlib import sha256  # a build writes no mark

    document = parse(text)
    root = document.root
    mark = read_mark(root)
    child(root, "uuid", text=canonical_uuid(root.findtext("uuid", "")) or uuid)
    metadata = child(root, "metadata")
    remove(metadata, MARK)
    fleet = mark if mark.fleet or not before else read_mark(parse(before).root)
    values = {_NAME: root.findtext("name", ""), "id": claim or mark.claim, "template": mark.template}
    values |= {"fleet": fleet.fleet, "spec": fleet.spec}
    element = add(metadata, MARK, {**{key: value for key, value in values.items() if value}, **dict(mark.options)})
    element.set(_DIGEST, sha256(text_of(document).encode()).hexdigest()[:_DIGITS])
    return text_of(document)


def in_fleet(text: str, fleet: str, spec: str) -> str:
    """Return a document with the mark of a fleet, and with the digest of its spec."""
    document = parse(text)
    mark = child(child(document.root, "metadata"), MARK)
    mark.attrib.update({_NAME: document.root.findtext("name", ""), "fleet": fleet, "spec": spec})
    return text_of(document)

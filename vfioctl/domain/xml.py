"""Reads and writes the XML of domains. May not know what it means.

A document may come from anybody: it has no DTD, no entities of its own, and a bounded size and depth. Comments and
elements that vfioctl does not know are kept. The text has the form that libvirt writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from xml.etree.ElementTree import Comment, Element, TreeBuilder
from xml.parsers import expat

from vfioctl.errors import BadDocument

LONGEST, DEEPEST = 4 << 20, 100
"""The most bytes of a document, and the most levels of elements."""
METADATA = "urn:vfioctl:1"
"""The namespace of what vfioctl writes into a domain's metadata."""
_XML = "http://www.w3.org/XML/1998/namespace"
_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})
_ATTRIBUTE = {**_TEXT, **str.maketrans({"'": "&apos;", "\n": "&#10;", "\t": "&#9;"})}
"""Not xml.sax.saxutils: it imports urllib, which takes longer than building a domain."""


@dataclass(frozen=True)
class Document:
    """A document with the lines of its elements. Names with a namespace are written `{namespace}name`."""

    root: Element
    lines: Mapping[int, int] = field(default_factory=dict)
    """By `id` of the element."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """The prefixes of namespaces, by namespace."""

    @cached_property
    def _parents(self) -> Mapping[int, Element]:
        return {id(child): parent for parent in self.root.iter() for child in parent}

    def line(self, element: Element) -> int | None:
        """Return the line of an element's start, from 1; None if it was not read from text."""
        return self.lines.get(id(element))

    def path(self, element: Element) -> str:
        """Return where an element is: `/domain/devices/hostdev[2]`, counted from 1 where there are several."""
        parent = self._parents.get(id(element))
        if parent is None:
            return f"/{self._name(element)}"
        alike = parent.findall(element.tag)
        number = f"[{next(n for n, each in enumerate(alike, 1) if each is element)}]" if len(alike) > 1 else ""
        return f"{self.path(parent)}/{self._name(element)}{number}"

    def _name(self, element: Element) -> str:
        return _short(str(element.tag), self.prefixes)


def parse(text: str | bytes) -> Document:
    """Read a document. Raises BadDocument for what is not well-formed, has a DTD, or is too large."""
    return _Reader().read(text)


class _Reader:
    """Builds a tree from expat's events. ElementTree's own parser accepts DTDs and tells no lines."""

    def __init__(self) -> None:
        self._builder = TreeBuilder(insert_comments=True)
        self._lines: dict[int, int] = {}
        self._prefixes: dict[str, str] = {}
        self._depth = 0
        parser = self._parser = expat.ParserCreate(namespace_separator="}")
        parser.ordered_attributes = parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse_dtd
        parser.StartNamespaceDeclHandler = self._declared
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._builder.data
        parser.CommentHandler = self._comment

    def read(self, text: str | bytes) -> Document:
        if len(text) > LONGEST:
            raise BadDocument(f"the document is longer than {LONGEST >> 20} MiB")
        try:
            self._parser.Parse(text.encode() if isinstance(text, str) else text, True)  # noqa: FBT003 - expat's form
        except expat.ExpatError as error:
            why = expat.ErrorString(error.code)
            raise BadDocument(f"line {error.lineno}, column {error.offset + 1}: {why}", hint="it is no XML") from None
        except (UnicodeError, LookupError) as error:
            raise BadDocument(f"the document is no XML: {error}"[:200]) from None
        return Document(self._builder.close(), self._lines, self._prefixes)

    def _refuse_dtd(self, *_: object) -> None:
        raise BadDocument("the document has a DTD, which a domain never needs", hint="remove <!DOCTYPE ...>")

    def _declared(self, prefix: str | None, uri: str) -> None:
        self._prefixes.setdefault(uri, prefix or "")

    def _start(self, name: str, attributes: list[str]) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise BadDocument(f"line {self._parser.CurrentLineNumber}: more than {DEEPEST} levels of elements")
        pairs = zip(attributes[::2], attributes[1::2], strict=True)
        element = self._builder.start(_full(name), {_full(key): value for key, value in pairs})
        self._lines[id(element)] = self._parser.CurrentLineNumber

    def _end(self, name: str) -> None:
        self._depth -= 1
        self._builder.end(_full(name))

    def _comment(self, text: str) -> None:
        if self._depth:
            self._builder.comment(text)


def _full(name: str) -> str:
    return f"{{{name}" if "}" in name else name


# -- writing ---------------------------------------------------------------------------------------------


def text_of(document: Document) -> str:
    """Return the document as libvirt writes one: an element on each line, two spaces for each level."""
    return "".join(_Writer(document.prefixes).lines(document.root))


class _Writer:
    def __init__(self, prefixes: Mapping[str, str]) -> None:
        self._prefixes = {METADATA: "vfioctl", **prefixes, _XML: "xml"}

    def lines(self, root: Element) -> Iterator[str]:
        """Yield the lines. Namespaces are declared where they are first used, as libvirt does for metadata."""
        yield from self._element(root, "", frozenset())

    def _element(self, element: Element, indent: str, known: frozenset[str]) -> Iterator[str]:
        if is_comment(element):
            yield f"{indent}<!--{element.text}-->\n"
            return
        names = [name for name in (element.tag, *element.keys()) if name.startswith("{")]
        if self._declares_all(element, known):  # libvirt has a hypervisor's namespace at the root
            names += [each.tag for each in element if not is_comment(each) and each.tag.startswith("{")]
        new = {space: self._prefixes[space] for space in map(_namespace, names) if space not in known and space != _XML}
        known = known.union(new)
        declared = "".join(
            f" xmlns{':' if prefix else ''}{prefix}='{uri.translate(_ATTRIBUTE)}'" for uri, prefix in new.items()
        )
        name = self._short(element.tag)
        given = "".join(f" {self._short(key)}='{value.translate(_ATTRIBUTE)}'" for key, value in element.items())
        text = element.text or ""
        if not len(element):
            yield f"{indent}<{name}{declared}{given}{f'>{text.translate(_TEXT)}</{name}>' if text.strip() else '/>'}\n"
            return
        yield f"{indent}<{name}{declared}{given}>\n"
        if text.strip():
            yield f"{indent}  {text.strip().translate(_TEXT)}\n"
        for child in element:
            yield from self._element(child, f"{indent}  ", known)
        yield f"{indent}</{name}>\n"

    @staticmethod
    def _declares_all(element: Element, known: frozenset[str]) -> bool:
        return not known and element.tag == "domain"

    def _short(self, name: str) -> str:
        return _short(name, self._prefixes)


def is_comment(element: Element) -> bool:
    """Return whether it is a comment, which the tree has among the elements."""
    tag: object = element.tag
    return tag is Comment


def _namespace(name: str) -> str:
    return name[1:].partition("}")[0]


def _short(name: str, prefixes: Mapping[str, str]) -> str:
    if not name.startswith("{"):
        return name
    prefix = prefixes.get(_namespace(name), "")
    local = name.partition("}")[2]
    return f"{prefix}:{local}" if prefix else local

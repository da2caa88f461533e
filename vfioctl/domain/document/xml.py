"""Reads and writes the XML of domains, as libvirt does. May not know what it means. A document may come from anybody:
it has no DTD, no entities of its own, and a bounded size and depth. Comments and unknown elements are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from itertools import chain, count
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from vfioctl.core.frozen import value_class
from vfioctl.domain.document.values import is_element
from vfioctl.errors import BadDocument

LONGEST, DEEPEST = 4 << 20, 100
"""The most bytes of a document, and the most levels of elements."""
METADATA = "urn:vfioctl:1"
"""The namespace of what vfioctl writes into a domain's metadata."""
MARK = f"{{{METADATA}}}allocation"
"""The element of the metadata that says that vfioctl defined the domain: its name, the claim's id, the template."""
_XML = "http://www.w3.org/XML/1998/namespace"
_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})
_ATTRIBUTE = {**_TEXT, **str.maketrans({"'": "&apos;", "\n": "&#10;", "\t": "&#9;"})}
"""Not xml.sax.saxutils: it imports urllib, which takes longer than building a domain."""


@value_class
class Document:
    """A document with the lines of its elements. Names with a namespace are written `{namespace}name`."""

    root: Element
    lines: Mapping[int, int] = field(default_factory=dict)
    """By `id` of the element."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """The first prefix of each namespace, by namespace; empty if it has none but the default."""

    @cached_property
    def _parents(self) -> Mapping[int, Element]:
        return {id(child): parent for parent in self.root.iter() for child in parent}

    def line(self, element: Element) -> int | None:
        """Return the line of an element's start, from 1; None if it was not read from text."""
        return self.lines.get(id(element))

    def path(self, element: Element) -> str:
        """Return where an element is: `/domain/devices/hostdev[2]`, counted from 1 where there are several."""
        name, parent = _short(str(element.tag), self.prefixes), self._parents.get(id(element))
        if parent is None:
            return f"/{name}"
        alike = parent.findall(element.tag)
        number = f"[{next(n for n, sibling in enumerate(alike, 1) if sibling is element)}]" if len(alike) > 1 else ""
        return f"{self.path(parent)}/{name}{number}"


def parse(text: str | bytes) -> Document:
    """Read a document. Raises BadDocument for what is not well-formed, has a DTD, or is too large."""
    return _Reader().read(text)


class _Reader:
    """Builds a tree from expat's events. ElementTree's own parser accepts DTDs and has no line numbers."""

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
        except (ValueError, LookupError) as error:  # an encoding that Python has not, or not for expat
            raise BadDocument(f"the document is no XML: {error}"[:200]) from None
        return Document(self._builder.close(), self._lines, self._prefixes)

    def _refuse_dtd(self, *_: object) -> None:
        raise BadDocument("the document has a DTD, which a domain never needs", hint="remove <!DOCTYPE ...>")

    def _declared(self, prefix: str | None, uri: str) -> None:
        if prefix or uri not in self._prefixes:  # an attribute needs one that is not the default
            self._prefixes[uri] = self._prefixes.get(uri) or prefix or ""

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


def text_of(document: Document) -> str:
    """Return the document as libvirt writes one: an element on each line, two spaces for each level."""
    return "".join(_Writer(document).lines())


class _Writer:
    def __init__(self, document: Document) -> None:
        self._root, self._prefixes = document.root, {METADATA: "vfioctl", **document.prefixes}

    def lines(self) -> Iterator[str]:
        """Yield the lines. Namespaces are declared where they are first used, as libvirt does for metadata."""
        yield from self._element(self._root, "", {"xml": _XML, "": ""})

    def _element(self, element: Element, indent: str, known: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of an element. `known`: the namespace of each prefix."""
        if not is_element(element):
            yield f"{indent}<!--{element.text}-->\n"
            return
        start, name, scope = self._start(element, known)
        text = element.text or ""
        if not len(element):
            yield f"{indent}{start}{f'>{text.translate(_TEXT)}</{name}>' if text.strip() else '/>'}\n"
        elif _is_mixed(element):
            yield f"{indent}{''.join(self._inline(element, known))}\n"
        else:
            yield f"{indent}{start}>\n"
            for child in element:
                yield from self._element(child, f"{indent}  ", scope)
            yield f"{indent}</{name}>\n"

    def _inline(self, element: Element, known: Mapping[str, str]) -> Iterator[str]:
        """Yield an element as it is, with all white space: it has text among its elements, or is inside of such."""
        if not is_element(element):
            yield f"<!--{element.text}-->"
            return
        start, name, scope = self._start(element, known)
        text = element.text or ""
        if not text and not len(element):
            yield f"{start}/>"
            return
        yield f"{start}>{text.translate(_TEXT)}"
        for child in element:
            yield from self._inline(child, scope)
            yield (child.tail or "").translate(_TEXT)
        yield f"</{name}>"

    def _start(self, element: Element, known: Mapping[str, str]) -> tuple[str, str, Mapping[str, str]]:
        """Return the start of an element without its end, its name, and the namespaces that are known inside."""
        if element is not self._root and not known[""] and not any(map(_namespace, (element.tag, *element.keys()))):
            attributes = "".join(f" {key}='{value.translate(_ATTRIBUTE)}'" for key, value in element.items())
            return f"<{element.tag}{attributes}", element.tag, known  # nearly all are such
        scope = dict(known)
        names = _Names(scope, self._prefixes)
        name = names.of_element(element.tag)
        attributes = "".join(
            f" {names.of_attribute(key)}='{value.translate(_ATTRIBUTE)}'" for key, value in element.items()
        )
        if element is self._root and name == "domain":  # libvirt has a hypervisor's namespace there
            for space in (_namespace(child.tag) for child in element if is_element(child)):
                names.offer(space)
        declared = "".join(
            f" xmlns{':' if prefix else ''}{prefix}='{uri.translate(_ATTRIBUTE)}'" for prefix, uri in names.new.items()
        )
        return f"<{name}{declared}{attributes}", name, scope


class _Names:
    """The names of one element and its attributes. `new`: the namespaces that it has to declare, by prefix."""

    def __init__(self, scope: dict[str, str], preferred: Mapping[str, str]) -> None:
        self._scope, self._preferred = scope, preferred
        self.new: dict[str, str] = {}
        self._used = {"xml"}  # they keep their meaning in the element

    def of_element(self, tag: str) -> str:
        space = _namespace(tag)
        prefix = self._prefix(space, self._preferred.get(space, "")) if space else self._declare("", "")
        return f"{prefix}:{_local(tag)}" if prefix else _local(tag)

    def of_attribute(self, key: str) -> str:
        space = _namespace(key)
        return f"{self._prefix(space, self._preferred.get(space) or 'ns')}:{_local(key)}" if space else key

    def offer(self, space: str) -> None:
        """Declare a namespace for what is inside, if its prefix is free."""
        prefix = self._preferred.get(space, "")
        if space and prefix and prefix not in self._scope:
            self._declare(prefix, space)

    def _prefix(self, space: str, wanted: str) -> str:
        """Return a prefix that means a namespace here: the one that is wanted, unless it is another's already."""
        if space == _XML:
            return "xml"
        others = (f"{wanted or 'ns'}{number}" for number in count(1))
        found = next(
            prefix
            for prefix in chain((wanted,), others)
            if self._scope.get(prefix) == space or (prefix not in self.new and prefix not in self._used)
        )
        return self._declare(found, space)

    def _declare(self, prefix: str, space: str) -> str:
        self._used.add(prefix)
        if self._scope.get(prefix) != space:
            self._scope[prefix] = self.new[prefix] = space
        return prefix


def _is_mixed(element: Element) -> bool:
    return bool((element.text or "").strip()) or any((child.tail or "").strip() for child in element)


def _namespace(name: str) -> str:
    return name[1:].partition("}")[0] if name.startswith("{") else ""


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _short(name: str, prefixes: Mapping[str, str]) -> str:
    prefix = prefixes.get(_namespace(name), "")
    return f"{prefix}:{_local(name)}" if prefix else _local(name)

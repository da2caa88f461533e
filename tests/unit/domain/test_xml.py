"""The reader of domains' XML takes what is XML, refuses the rest, and loses nothing."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import unhurried
from vfioctl.domain.document.templates import templates
from vfioctl.domain.document.xml import DEEPEST, LONGEST, parse, text_of
from vfioctl.errors import BadDocument

BOMB = "<!DOCTYPE d [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><domain>&b;</domain>"
QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "has a DTD"),
        ("<!DOCTYPE d SYSTEM 'file:///etc/passwd'><d/>", "has a DTD"),
        ("<!DOCTYPE d [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><d>&x;</d>", "has a DTD"),
        ("<domain>&nowhere;</domain>", "line 1, column 9: undefined entity"),
        ("<domain>\n  <name>\n</domain>", "line 3, column 3: mismatched tag"),
        ("", "line 1, column 1: no element found"),
        ("<a/><b/>", "junk after document element"),
        ("<a>" * (DEEPEST + 1), f"more than {DEEPEST} levels"),
        (b"\xff\xfe\x00", "line 1"),
        (b"<?xml version='1.0' encoding='nothing'?><a/>", "unknown encoding"),
        (b"<?xml version='1.0' encoding='utf-7'?><a/>", "no XML: multi-byte encodings are not supported"),
        (b"<?xml version='1.0' encoding='shift_jis'?><a/>", "no XML: multi-byte encodings are not supported"),
        (" " * (LONGEST + 1), "longer than 4 MiB"),
    ],
)
def test_what_is_refused(text: str | bytes, why: str) -> None:
    with pytest.raises(BadDocument, match=why):
        parse(text)


def test_a_dtd_is_refused_in_any_encoding() -> None:
    with pytest.raises(BadDocument, match="has a DTD"):
        parse(BOMB.encode("utf-16"))


@pytest.mark.parametrize("template", templates().values(), ids=lambda path: path.stem)
def test_nothing_of_a_template_is_lost(template: Path) -> None:
    document = parse(template.read_bytes())
    again = parse(text_of(document))
    assert ET.canonicalize(text_of(document), strip_text=True) == ET.canonicalize(template.read_text(), strip_text=True)
    assert text_of(again) == text_of(document)


def test_namespaces_and_what_is_unknown_are_kept() -> None:
    text = (
        f"<domain xmlns:qemu='{QEMU}' type='kvm'>\n  <unheard of='a&amp;&quot;b'>text</unheard>\n"
        "  <metadata>\n    <x:y xmlns:x='urn:x' x:z='1'/>\n  </metadata>\n"
        "  <!-- a remark -->\n"
        "  <qemu:commandline>\n    <qemu:arg value='-a&apos;'/>\n  </qemu:commandline>\n</domain>\n"
    )
    written = text_of(parse(text))
    assert ET.canonicalize(written, strip_text=True) == ET.canonicalize(text, strip_text=True)
    assert "<!-- a remark -->" in written


def canonical(text: str) -> str:
    """What a document says: names with their namespaces, attributes in order, all text."""
    return ET.canonicalize(text, rewrite_prefixes=True, strip_text=True)


@pytest.mark.parametrize(
    "text",
    [
        "<a xmlns='urn:a'><b xmlns='urn:b'><c xmlns='urn:a'/></b></a>",
        "<a xmlns='urn:a'><b xmlns=''/></a>",
        "<p:a xmlns:p='urn:a'><b><p:d xmlns:p='urn:b'><q:c xmlns:q='urn:a'/></p:d></b></p:a>",
        "<p:a xmlns:p='urn:a'><p:b xmlns:p='urn:b' xmlns:q='urn:a' q:x='1' p:x='2'/></p:a>",
        "<a xmlns='urn:a'><b xmlns:p='urn:a' p:c='1'/></a>",
        "<domain><a xmlns='urn:a'/><b/></domain>",
        "<domain><p:a xmlns:p='urn:a'/><p:b xmlns:p='urn:b'/><vfioctl:c xmlns:vfioctl='urn:c'/></domain>",
        "<a xml:lang='de'>x<b/>y</a>",
        "<a>x <b> <c/> </b> y<!-- z --> </a>",
        "<a><b>one <i>two</i> three &lt; four</b></a>",
    ],
)
def test_namespaces_and_text_mean_the_same(text: str) -> None:
    written = text_of(parse(text))
    assert canonical(written) == canonical(text)
    assert text_of(parse(written)) == written


def test_text_among_elements_keeps_its_spaces() -> None:
    assert text_of(parse("<a><b>one <i>two</i> three</b></a>")) == "<a>\n  <b>one <i>two</i> three</b>\n</a>\n"


SPACES, PREFIXES = ("", "urn:a", "urn:b"), ("", "p", "q")
STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.tuples(*(st.sampled_from(SPACES) for _ in PREFIXES)),
        st.sampled_from(PREFIXES),
        st.sampled_from(PREFIXES),
        st.sampled_from(("", " ", "y", " y ")),
    ),
    max_size=8,
)
"""Elements in their order: how many to close first, the namespace of each prefix, two prefixes to use, text behind."""


@unhurried
@given(STEPS)
def test_any_namespaces_mean_the_same(steps: list[tuple[int, tuple[str, ...], str, str, str]]) -> None:
    text = "<e>"
    opened: list[tuple[str, str, set[str]]] = [("e", "", set())]
    for closed, spaces, prefix, of_attribute, tail in steps:
        while closed and len(opened) > 1:
            name, behind, _ = opened.pop()
            text += f"</{name}>{behind}"
            closed -= 1  # noqa: PLW2901 - counted down
        given_ = {name: uri for name, uri in zip(PREFIXES, spaces, strict=True) if uri or not name}
        known = opened[-1][2] | set(given_)
        declared = "".join(f" xmlns{':' * bool(name)}{name}='{uri}'" for name, uri in given_.items())
        name = f"{prefix}:e" if prefix and prefix in known else "e"
        attribute = f"{of_attribute}:x" if of_attribute and of_attribute in known else "x"
        text += f"<{name}{declared} {attribute}='1'>"
        opened.append((name, tail, known))
    for name, behind, _ in reversed(opened):
        text += f"</{name}>{behind}"
    assert canonical(text_of(parse(text))) == canonical(text)


def test_paths_and_lines() -> None:
    document = parse("<domain>\n<devices>\n<disk/>\n<disk>\n<source/></disk></devices><name/></domain>")
    source, name = document.root.find("devices/disk/source"), document.root.find("name")
    assert source is not None
    assert name is not None
    assert (document.path(source), document.line(source)) == ("/domain/devices/disk[2]/source", 5)
    assert document.path(name) == "/domain/name"


@given(st.text(alphabet="<>/ab'\"&;=! -[]?x\n", max_size=60))
def test_any_text_is_a_document_or_refused(text: str) -> None:
    try:
        document = parse(text)
    except BadDocument:
        return
    assert text_of(parse(text_of(document))) == text_of(document)

"""The reader of domains' XML takes what is XML, refuses the rest, and loses nothing."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfioctl.domain.templates import templates
from vfioctl.domain.xml import DEEPEST, LONGEST, parse, text_of
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

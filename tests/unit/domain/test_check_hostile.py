"""Documents of strangers: whatever they hold, the rules end soon, and say what they found."""

from __future__ import annotations

import time
from xml.etree.ElementTree import Element

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.domain.documents import WITH_IOMMU, changed
from vfioctl.domain.check.rules.check import check
from vfioctl.domain.document.needs import backed
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import GuestAddress, cpuset, number, scaled, shown
from vfioctl.domain.document.xml import parse, text_of
from vfioctl.errors import BadDocument
from vfioctl.inventory.model.values import any_number

FULL = changed(
    *WITH_IOMMU, ("</domain>", "<launchSecurity type='sev-snp'><policy>1</policy></launchSecurity></domain>")
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", "-1", "0", "99999999999999999999", "0x", "0xffffffff", "1e9", "^1", "0-16383", "5-2", "²", "on", "auto"]
    ),
    st.integers(-2, 300).map(str),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
)
SECONDS = 8.0
"""Of work: a test machine with all cores busy takes four times as long as an idle one."""


@st.composite
def spoiled(draw: st.DrawFn) -> str:
    """The document with some attributes, texts, names and elements changed."""
    document = parse(FULL)
    elements = list(document.root.iter())
    for _ in range(draw(st.integers(1, 6))):
        _spoil(draw, draw(st.sampled_from(elements)), elements)
    return text_of(document)


def _spoil(draw: st.DrawFn, element: Element, elements: list[Element]) -> None:
    kind = draw(st.sampled_from(["attribute", "text", "lost attribute", "lost children", "twice", "moved", "renamed"]))
    if kind == "attribute" and element.keys():
        element.set(draw(st.sampled_from(sorted(element.keys()))), draw(TEXTS))
    elif kind == "text" and not len(element):
        element.text = draw(TEXTS)
    elif kind == "lost attribute" and element.keys():
        del element.attrib[draw(st.sampled_from(sorted(element.keys())))]
    elif kind == "lost children":
        for child in list(element):
            element.remove(child)
    elif kind == "twice" and len(element):
        element.append(element[draw(st.integers(0, len(element) - 1))])
    elif kind == "moved" and len(element):
        other = draw(st.sampled_from(elements))
        if not len(other):
            other.append(Element(element[0].tag, dict(element[0].attrib)))
    elif kind == "renamed":
        element.tag = draw(st.sampled_from(["domain", "devices", "hostdev", "address", "cell", "x"]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoiled())
def test_no_document_makes_a_rule_fail(text: str) -> None:
    try:
        document = parse(text)
    except BadDocument:
        return
    for finding in check(document, version=(9, 0)):
        assert finding.reason
        assert finding.remedy
        assert finding.path.startswith("/")


@pytest.mark.parametrize(
    "part",
    [
        "<controller type='pci' index='1' model='pcie-root-port'><address type='pci' bus='1' slot='1'/></controller>",
        "<controller type='pci' model='pcie-switch-downstream-port'/>",
        "<controller type='pci' index='{n}' model='pcie-expander-bus'><target busNr='{n}'/></controller>",
        "<hostdev type='pci'><source><address bus='1'/></source><address type='pci' bus='{n}' slot='1'/></hostdev>",
        "<hostdev type='usb'><source><vendor id='{n}'/></source></hostdev>",
        "<memory model='dimm'><target><size>1</size><node>9</node></target><address base='{n}'/></memory>",
    ],
)
def test_many_devices_cost_little(part: str) -> None:
    many = "".join(part.format(n=n) for n in range(5000))
    _soon(changed(("</devices>", f"{many}</devices>")))


@pytest.mark.parametrize(
    "replaced",
    [
        ("</cputune>", "<vcpupin vcpu='1' cpuset='0-16383'/>" * 1000 + "</cputune>"),
        ("</cputune>", "<vcpusched vcpus='0-16383' scheduler='idle'/>" * 1000 + "</cputune>"),
        ("</numa>", "<cell cpus='0-16383' memory='1'/>" * 1000 + "</numa>"),
        ("<iothreads>1<", "<iothreads>99999999999<"),
        (">4</vcpu>", ">99999999999</vcpu>"),
        ("cpuset='2'", f"cpuset='{'0-16383,' * 20000}0'"),
        ("<name>ml1<", f"<name>{'a' * 1_000_000}<"),
        ("<devices>", f"<{'x' * 100_000}/><devices>"),
    ],
    ids=["pins", "schedulers", "cells", "iothreads", "vcpus", "set", "name", "element"],
)
def test_large_values_cost_little(replaced: tuple[str, str]) -> None:
    _soon(changed(replaced))


PORTS = "<controller type='pci' index='1' model='pcie-switch-upstream-port'/><controller type='pci' model='{}'/>"
NODE = "<controller type='pci' index='{n}' model='pcie-expander-bus'><target busNr='{n}'/></controller>"
PAGE = "<page size='2' unit='MiB' nodeset='{n}'/>"


@pytest.mark.parametrize(
    "replaced",
    [
        ("</devices>", "<controller type='pci' model='pcie-switch-downstream-port'/>" * 50_000 + "</devices>"),
        ("</devices>", PORTS.format("pcie-switch-downstream-port") * 120 + "</devices>"),
        ("</devices>", "".join(NODE.format(n=n) for n in range(40_000)) + "</devices>"),
        ("</cputune>", "<vcpupin vcpu='1' cpuset='0-16383'/>" * 8192 + "</cputune>"),
        ("</cputune>", "".join(f"<vcpupin vcpu='1' cpuset='{n}-{n + 250}'/>" for n in range(8000)) + "</cputune>"),
        ("</hugepages>", PAGE.format(n="0-16383") * 8192 + "</hugepages>"),
        ("</hugepages>", PAGE.format(n="0-250") * 8000 + "</hugepages>"),
    ],
    ids=["downstream ports", "switches", "expanders", "pins", "small pins", "pages", "small pages"],
)
def test_the_largest_documents_cost_little(replaced: tuple[str, str]) -> None:
    _soon(changed(replaced))


def test_many_cells_with_many_pages_cost_little() -> None:
    cells = "".join(f"<cell id='{n}' memory='2048'/>" for n in range(2, 8192))
    pages = "".join(PAGE.format(n=n) for n in range(2, 8194))
    text = changed(("</numa>", f"{cells}</numa>"), ("<page size='1' unit='GiB' nodeset='0-1'/>", pages))
    _soon(text)
    start = time.process_time()
    assert len(list(backed(Domain(parse(text))))) == 8190
    assert time.process_time() - start < SECONDS


def _soon(text: str) -> None:
    document = parse(text)
    start = time.process_time()
    check(document)
    assert time.process_time() - start < SECONDS


@given(TEXTS, TEXTS)
def test_values_are_total(text: str, unit: str) -> None:
    assert number(text) is None or str(number(text)) == text.strip().lstrip("0") or set(text.strip()) == {"0"}
    for value in (any_number(text), scaled(text, unit), cpuset(text)):
        assert value is None or value == value  # noqa: PLR0124 - that it is there at all


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0-3,^2,8", {0, 1, 3, 8}),
        ("^2,0-3", {0, 1, 2, 3}),
        (" 1 , 2", {1, 2}),
        (" 0 - 2 , ^ 1 , 4 ", {0, 2, 4}),
        ("3-1", None),
        ("^1-2", None),
        ("16384", None),
        ("", None),
        ("1,", None),
        ("-1", None),
        ("0,^0", set()),
    ],
)
def test_a_set_is_read_as_libvirt_does(text: str, value: set[int] | None) -> None:
    assert cpuset(text) == value


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("4", None, 4096),
        ("4", "b", 4),
        ("4", "bytes", 4),
        ("4", "KB", 4000),
        ("4", "k", 4096),
        ("4", "MiB", 4 << 20),
        ("4", "g", 4 << 30),
        ("1", "TB", 10**12),
        ("4", "GiBs", None),
        ("-4", "GiB", None),
        ("4.5", "GiB", None),
        ("4", "i", None),
        (" 4", "KiB", 4096),
        ("4 ", "KiB", None),
        ("4", " KiB", None),
        ("4", "KiB ", None),
    ],
)
def test_a_size_is_read_as_libvirt_does(text: str, unit: str | None, value: int | None) -> None:
    assert scaled(text, unit) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("0x1f", 31), ("31", 31), ("017", 15), ("08", None), ("0x", None), ("", None), (" 31", 31), ("31 ", None)],
)
def test_an_address_is_read_as_libvirt_does(text: str, value: int | None) -> None:
    assert any_number(text) == value


def test_what_is_shown_is_short() -> None:
    assert shown({0, 1, 2, 5}) == "0-2,5"
    assert shown(set(range(0, 100, 2))) == "0,2,4,6,8,10, ..."
    assert str(GuestAddress(0, 2, 31, 7)) == "0000:02:1f.7"

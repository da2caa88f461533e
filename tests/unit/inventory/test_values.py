"""PCI addresses, CPU lists and the ground of all documents: what is taken, what is refused, what it looks like."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tests.hosts.machines import unhurried
from vfioctl.console.documents import document_text
from vfioctl.core.value import Value
from vfioctl.errors import BadAddress, BadSpec
from vfioctl.inventory.model.machine import NumaNode
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import CpuSet, format_cpu_list, parse_cpu_list

Parts = tuple[int, int, int, int]
PARTS = st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))
CPUS = st.frozensets(st.integers(0, 2047), max_size=40)
LOOKS_LIKE_AN_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{1,2}:[01]?[0-9a-fA-F]\.[0-7]")
NOT_ADDRESSES = (
    "", ":", ".", "41:00", "0000:41:00", "0000:41:00.8", "0000:41:00.00", "0000:41:20.0", "000:41:00.0",
    "000000000:41:00.0", "0000:141:00.0", "g000:41:00.0", "0000-41-00.0", "0000:41:00.0\n", " 41:00.0", "41:00.0 ",
    "41:00.0\0", "0x0000:41:00.0", "+041:00.0", "-1:00.0", "1_0:00.0", "\u0660" * 4 + ":41:00.0",
    "0000:41:\uff10\uff10.0", "0000:41:00.\u00b9",
    "../../etc/passwd", "/sys/bus/pci/devices/0000:41:00.0", "0000:41:00.0/../../x", "41:00.0.0",
    "gpu0", "10de:2330", "0000:41:00.0" * 2, "0" * 100_000 + ":41:00.0",
)  # fmt: skip


def canonical(parts: Parts) -> str:
    return "{:04x}:{:02x}:{:02x}.{:d}".format(*parts)


class TestAddresses:
    @unhurried
    @given(PARTS)
    def test_are_written_as_the_kernel_writes_them_and_read_back(self, parts: Parts) -> None:
        address = PciAddress(canonical(parts))
        assert address == canonical(parts)
        assert PciAddress(address) == address
        assert address.slot == address[: address.rindex(".")]
        assert pickle.loads(pickle.dumps(address)) == address  # noqa: S301 - our own
        assert type(pickle.loads(pickle.dumps(address))) is PciAddress  # noqa: S301 - our own

    @unhurried
    @given(PARTS, st.integers(4, 8), st.booleans(), st.booleans())
    def test_have_one_form_however_they_are_spelled(
        self,
        parts: Parts,
        digits: int,
        upper: bool,
        short: bool,
    ) -> None:
        domain, bus, device, number = parts
        spelled = f"{domain:0{digits}x}:{bus:x}:{device:x}.{number}" if short else canonical(parts)
        assert PciAddress(spelled.upper() if upper else spelled) == canonical(parts)

    @unhurried
    @given(PARTS)
    def test_without_a_domain_lie_in_domain_0(self, parts: Parts) -> None:
        assert PciAddress("{:02x}:{:02x}.{}".format(*parts[1:])) == canonical((0, *parts[1:]))

    @unhurried
    @given(st.lists(PARTS, max_size=20))
    def test_are_ordered_by_number(self, several: list[Parts]) -> None:
        addresses = [PciAddress(canonical(parts)) for parts in several]
        assert sorted(addresses, key=lambda a: a.order) == [canonical(parts) for parts in sorted(several)]

    @pytest.mark.parametrize("text", NOT_ADDRESSES, ids=lambda text: repr(text[:20]))
    def test_that_are_none_are_refused(self, text: str) -> None:
        with pytest.raises(BadAddress) as caught:
            PciAddress(text)
        assert len(caught.value.message) < 400
        assert caught.value.hint

    @unhurried
    @given(st.text(max_size=20) | st.from_regex(LOOKS_LIKE_AN_ADDRESS) | st.text("0123456789abF:./ \n", max_size=20))
    def test_are_never_taken_for_what_they_are_not(self, text: str) -> None:
        if LOOKS_LIKE_AN_ADDRESS.fullmatch(text):
            assert int(PciAddress(text)[-1]) == int(text[-1])
        else:
            with pytest.raises(BadAddress):
                PciAddress(text)

    def test_in_a_document_are_validated(self) -> None:
        adapter = TypeAdapter(PciAddress)
        assert type(adapter.validate_json('"41:0.1"')) is PciAddress
        assert adapter.validate_python(PciAddress("41:00.1")) == "0000:41:00.1"
        for wrong in ('"garbage"', "3", "null"):
            with pytest.raises(ValidationError):
                adapter.validate_json(wrong)
        assert adapter.json_schema()["type"] == "string"


def expanded(text: str) -> list[int]:
    """The numbers of a list in the kernel's own form, read the simplest way."""
    numbers: list[int] = []
    for part in text.split(",") if text else []:
        ends = [int(end) for end in part.split("-")]
        numbers += range(ends[0], ends[-1] + 1)
    return numbers


class TestCpuSets:
    @unhurried
    @given(CPUS)
    def test_survive_being_written_and_read(self, cpus: frozenset[int]) -> None:
        assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))

    @unhurried
    @given(CPUS)
    def test_are_written_in_the_shortest_form(self, cpus: frozenset[int]) -> None:
        text = format_cpu_list(cpus)
        assert expanded(text) == sorted(cpus)
        runs = sum(number - 1 not in cpus for number in cpus)
        assert len(text.split(",") if text else []) == runs

    @pytest.mark.parametrize(
        ("text", "numbers"),
        [("", []), ("0", [0]), ("0-3,8", [0, 1, 2, 3, 8]), ("8,0-1\n", [0, 1, 8]), ("1,1,0-1", [0, 1]), ("5-5", [5])],
    )
    def test_are_read_as_the_kernel_prints_them(self, text: str, numbers: list[int]) -> None:
        assert list(parse_cpu_list(text)) == numbers

    @pytest.mark.parametrize("text", ["x", "3-1", "1-", "-1", "1-2-3", "1 2", "0-3:2/4", "\u0663", "1_0", "9" * 7])
    def test_that_are_none_are_refused(self, text: str) -> None:
        with pytest.raises(BadSpec):
            parse_cpu_list(text)

    @unhurried
    @given(st.text(max_size=12) | st.text("0123456789-, \n", max_size=12).filter(lambda text: len(text) < 8))
    def test_raise_nothing_else(self, text: str) -> None:
        try:
            numbers = parse_cpu_list(text)
        except BadSpec:
            return
        assert list(numbers) == sorted(set(numbers))

    @unhurried
    @given(CPUS)
    def test_are_lists_in_json_too(self, cpus: frozenset[int]) -> None:
        node = NumaNode(id=0, cpus=CpuSet(sorted(cpus)), memory_bytes=None)
        assert TypeAdapter(NumaNode).validate_json(document_text(node)) == node
        assert f'"{format_cpu_list(cpus)}"' in document_text(node)

    def test_in_a_document_are_validated(self) -> None:
        with pytest.raises(ValidationError, match="not a list of numbers"):
            TypeAdapter(CpuSet).validate_json('"3-1"')
        assert TypeAdapter(CpuSet).json_schema()["type"] == "string"


class Pair(Value):
    speed: float | None
    width: int | None


class TestDocuments:
    def test_are_frozen(self) -> None:
        with pytest.raises(ValidationError):
            Pair(speed=2.5, width=1).width = 2

    def test_have_no_unknown_fields(self) -> None:
        with pytest.raises(ValidationError):
            Pair.model_validate({"speed": 2.5, "width": 1, "colour": "red"})

    @unhurried
    @given(st.integers(), st.integers())
    def test_that_are_equal_have_equal_text_and_digest(self, one: int, other: int) -> None:
        first, second = (Pair(speed=None, width=n) for n in (one, other))
        assert (first == second) == (first.canonical() == second.canonical()) == (first.digest() == second.digest())
        assert re.fullmatch(r"[0-9a-f]{12}", first.digest())

    def test_have_sorted_keys_and_no_spaces(self) -> None:
        assert Pair(width=None, speed=2.5).canonical() == '{"speed":2.5,"width":null}'

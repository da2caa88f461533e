"""Limits of fields: what is read without pydantic is what pydantic reads."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tests.hosts.machines import unhurried
from vfioctl import sources
from vfioctl.core.limits import Checked, Several, Text, Whole, json_of, read_document, read_words
from vfioctl.domain.api import DomainApi
from vfioctl.domain.model.spec import DomainSpec, Node, Size
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.session import Session
from vfioctl.units import CpuSet

words = st.one_of(
    st.sampled_from(
        ["", "a", "web1", "-a", "a b", "a\n", "\u0661", "x" * 201, "/", "/a", "/a\n", "a/b", "none", "1GiB"]
    ),
    st.sampled_from(
        ["0", "1", "8", "-1", "+1", " 1", "1_0", "1.0", "1e3", "4097", "9" * 30, "64GiB", "1000", "1MiB", "1K"]
    ),
    st.integers(-2, 5000),
    st.sampled_from([1 << 46, (1 << 46) + 1, 1 << 20, True, None, 1.5, 2.0]),
    st.lists(st.sampled_from(["a", "/a", "/dev/sda", "gpu0", "", "a b", "x" * 1025]), max_size=18),
    st.sampled_from(["strict", "preferred", "auto", "together", "isolate", "same", "any", "STRICT"]),
    st.just({"0000:41:00.0": 1}),
)
names = st.sampled_from([*DomainSpec.__dataclass_fields__, "gpu"])
specs = st.dictionaries(names, words, max_size=6).map(lambda given: {"name": "a", **given})


@unhurried
@given(specs)
def test_what_is_read_without_pydantic_is_what_pydantic_reads(given: dict[str, Any]) -> None:
    plain = read_words(DomainSpec, given)
    try:
        document = read_document(DomainSpec, given)
    except ValidationError:
        assert plain is None
    else:
        assert plain in (None, document)
        assert plain is None or json_of(plain) == json_of(document)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "a", "gpus": "2", "cpus": "16", "memory": "64GiB", "hugepages": "1GiB", "policy": "preferred"},
        {
            "name": "a.b-c",
            "devices": ["gpu0", "41:00.0"],
            "disks": ["/dev/vg0/a", "/a b.qcow2"],
            "networks": ["default"],
        },
        {"name": "a", "claim": "1a2b3c4d", "smt": "isolate", "model": "H100", "template": "minimal", "seed": "/a.iso"},
    ],
)
def test_what_options_usually_say_is_read_without_pydantic(given: dict[str, Any]) -> None:
    assert read_words(DomainSpec, given) == read_document(DomainSpec, given)


@pytest.mark.parametrize("disks", [["relative.qcow2"], ["/a", "/b\n"], ["/" + "x" * 1024]])
def test_each_of_several_is_held_to_its_own_limit(disks: list[str]) -> None:
    assert read_words(DomainSpec, {"name": "a", "disks": disks}) is None


def test_building_with_options_does_not_import_pydantic() -> None:
    program = (
        "import sys\nfrom vfioctl.app import main\n"
        "main(['domain', 'build', 'a', '--gpus', '1', '--cpus', '8', '--memory', '16GiB', '--host', 'hgx8'])\n"
        "sys.exit('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<domain")


@pytest.mark.parametrize("model", [DomainSpec, ClaimSettings])
def test_unknown_fields_are_refused(model: type) -> None:
    with pytest.raises(ValidationError, match="odd"):
        read_document(model, {"name": "a", "odd": 1} if model is DomainSpec else {"odd": 1})


class TestEach:
    def test_whole(self) -> None:
        for value in (0, "0", "10", 10):
            assert Whole(0, 10).read(value) == int(value)
        for bad in (-1, 11, "11", "-1", "x", "", 1.0, True, None, "\u0661", "1" * 30):
            with pytest.raises(ValueError, match="must be"):
                Whole(0, 10).read(bad)
        assert Whole(0).read(1 << 70) == 1 << 70
        with pytest.raises(ValueError, match="must be a whole number"):
            Whole(0, strict=True).read("1")

    def test_text(self) -> None:
        assert Text(3, least=1, form=re.compile("^[a-z]*$")).read("abc") == "abc"
        for bad in ("", "abcd", "A", "a\n", 1, None, ["a"]):
            with pytest.raises(ValueError, match="must"):
                Text(3, least=1, form=re.compile("^[a-z]*$")).read(bad)

    def test_text_may_be_empty_unless_the_least_length_says_otherwise(self) -> None:
        assert Text(3).read("") == ""
        assert TypeAdapter(Annotated[str, Text(3)]).validate_python("") == ""

    def test_a_rule_is_the_message_of_a_text_that_breaks_it(self) -> None:
        with pytest.raises(ValidationError, match="three letters"):
            TypeAdapter(Annotated[str, Text(3, rule="three letters")]).validate_python("abcd")
        with pytest.raises(ValidationError, match="at most 3 characters"):
            TypeAdapter(Annotated[str, Text(3)]).validate_python("abcd")

    def test_several(self) -> None:
        assert Several(2).read(["a", "b"]) == ("a", "b")
        for bad in (["a", "b", "c"], "ab", None, {"a"}):
            with pytest.raises(ValueError, match="at most 2"):
                Several(2).read(bad)

    def test_the_kinds_of_a_domain(self) -> None:
        assert Size().read("64GiB") == 64 << 30
        assert [Size().read(0), Node("auto").read("auto"), Node("auto").read("3")] == [0, "auto", 3]
        for bad in (8, 1.5, None):
            with pytest.raises(ValueError, match="a size with a unit is needed"):
                Size().read(bad)

    def test_checked(self) -> None:
        assert Checked(str.upper).read("a") == "A"


def test_settings_have_one_json_form() -> None:
    found = read_document(ClaimSettings, {"reserved_cpus": "0-1", "reserved": ["10DE:2330"], "quotas": {"vm/*": 2}})
    assert (found.reserved_cpus, found.reserved) == (CpuSet((0, 1)), ("10de:2330",))
    assert json_of(found)["reserved_cpus"] == "0-1"
    assert ClaimSettings() == read_document(ClaimSettings, {})


class TestRequests:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"gpus": -1}, "gpus must be at least 0"),
            ({"gpus": 1025}, "at most 1024"),
            ({"vgpus": 0}, "vgpus must be at least 1"),
            ({"memory_min": -1}, "memory_min must be at least 0"),
            ({"cpus": 8193}, "cpus must be at most 8192"),
            ({"hugepages": (1 << 50) + 1}, "hugepages must be"),
            ({"model": "x" * 256}, "longer than 255"),
            ({"vgpu": "x" * 256}, "longer than 255"),
            ({"ttl": 0.0}, "ttl must be more than 0"),
            ({"labels": {"a": "x" * 254}}, "longer than 253"),
            ({"labels": {"x" * 254: "a"}}, "longer than 253"),
            ({"devices": (PciAddress("01:00.0"),) * 8193}, "that many devices"),
            ({"owner": "nobody"}, "owner"),
        ],
    )
    def test_beyond_their_limits_are_refused(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(BadSpec, match=said):
            ClaimRequest(**{"owner": "vm/a", **given})

    def test_that_are_equal_have_equal_text(self) -> None:
        one = ClaimRequest(owner="vm/a", gpus=2, labels={"b": "1", "a": "2"})
        other = ClaimRequest(labels={"a": "2", "b": "1"}, gpus=2, owner="vm/a")
        assert one.canonical() == other.canonical()
        assert '"gpus":2' in one.canonical()
        assert one.canonical() != ClaimRequest(owner="vm/a", gpus=1).canonical()


def test_a_spec_in_the_library_is_checked_as_options_are() -> None:
    with pytest.raises(BadSpec, match="gpus must be at most 1024"):
        DomainApi(sources.recorded(Session, "hgx8")).spec({"name": "a", "gpus": 1025})

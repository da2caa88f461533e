"""`vfioctl domain check`: what it prints, and how it exits."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from tests.schema import schema_problems
from tests.unit.conftest import Run
from tests.unit.domain.documents import GOOD, changed
from vfioctl.domain.check.checker import ask
from vfioctl.errors import BadDocument, NotPermitted, VfioctlError

TWICE = changed(("vcpu='1'", "vcpu='0'"))


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    return tmp_path / "domain.xml"


def test_a_good_domain(run: Run, xml: Path) -> None:
    xml.write_text(GOOD)
    answer = run(f"domain check {xml} --no-host")
    assert (answer.code, answer.out) == (0, "The domain would work as far as the document shows.\n")


def test_a_bad_domain(run: Run, xml: Path) -> None:
    xml.write_text(TWICE)
    answer = run(f"domain check {xml} --no-host")
    assert answer.code == 2
    assert "error: line 13: vCPU 0 is pinned twice [pin-vcpu]\n  at /domain/cputune/vcpupin[2]\n  -> keep" in answer.out
    assert "vfioctl: the domain would not work: 1 error" in answer.err


def test_a_warning_is_no_failure(run: Run, xml: Path) -> None:
    xml.write_text(changed((">8</memory>", ">9</memory>")))
    answer = run(f"domain check {xml} --no-host")
    assert answer.code == 0
    assert answer.out.endswith("The domain would work as far as the document shows, with 1 warning.\n")


@pytest.mark.parametrize(("text", "code"), [(GOOD, 0), (TWICE, 2)])
def test_as_json(run: Run, xml: Path, text: str, code: int) -> None:
    xml.write_text(text)
    answer = run(f"domain check {xml} --no-host --json")
    assert answer.code == code
    assert answer.document["ok"] is (code == 0)
    assert answer.document["domain"] == "ml1"
    assert answer.document["host"] is False
    assert schema_problems(answer.document, "domain-check") == []


def test_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TWICE.encode())))
    assert run("domain check - --no-host").code == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [("<domain>", "no element found"), ("<!DOCTYPE domain><domain/>", "has a DTD"), ("<domain><", "unclosed token")],
)
def test_what_is_no_xml(run: Run, xml: Path, text: str, reason: str) -> None:
    xml.write_text(text)
    answer = run(f"domain check {xml} --no-host")
    assert answer.code == 2
    assert reason in answer.err


def test_the_version_of_libvirt(run: Run, xml: Path) -> None:
    xml.write_text(GOOD)
    assert run(f"domain check {xml} --no-host --libvirt 9.3.0").code == 0
    answer = run(f"domain check {xml} --no-host --libvirt 9.0")
    assert answer.code == 2
    assert "libvirt 9.0 drops limit without a word [name-too-new]" in answer.out
    assert "is no version" in run(f"domain check {xml} --no-host --libvirt nine").err


class TestWithLibvirt:
    """libvirt's test driver, which reads documents as QEMU's driver does."""

    @pytest.fixture(autouse=True)
    def with_libvirt(self) -> None:
        pytest.importorskip("libvirt")

    ARGUMENTS = "--no-host --simulate laptop --connect test:///default"

    def test_a_document_that_its_schema_refuses(self, run: Run, xml: Path) -> None:
        xml.write_text(changed(("<devices>", "<gpus/><devices>")))
        answer = run(f"domain check {xml} {self.ARGUMENTS} --libvirt 9.3 --json")
        assert answer.code == 2
        (found,) = [each for each in answer.document["findings"] if each["rule"] == "libvirt"]
        assert "failed to validate" in found["reason"]
        assert found["severity"] == "error"
        assert schema_problems(answer.document, "domain-check") == []

    def test_its_version_counts(self, run: Run, xml: Path) -> None:
        import libvirt

        xml.write_text(changed(("<driver name='vfio'/>", "<driver name='vfio' iommufd='yes'/>")))
        answer = run(f"domain check {xml} {self.ARGUMENTS} --json")
        rules = {each["rule"] for each in answer.document["findings"]}
        assert ("name-too-new" in rules) is (libvirt.getVersion() < 12_001_000)

    def test_a_domain_by_its_name(self, run: Run) -> None:
        answer = run(f"domain check test {self.ARGUMENTS} --json")
        assert (answer.code, answer.document["domain"]) == (0, "test")

    def test_the_variable_says_where_a_domain_is_and_a_file_needs_no_libvirt(
        self, run: Run, xml: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VFIOCTL_CONNECT", "test:///default")
        answer = run("domain check test --no-host --simulate laptop --json")
        assert (answer.code, answer.document["domain"]) == (0, "test")
        assert run("domain check test --no-host --simulate laptop --connect qemu:///system").code == 3
        xml.write_text(GOOD)
        monkeypatch.setenv("VFIOCTL_CONNECT", "qemu:///system")
        answer = run(f"domain check {xml} --no-host --simulate laptop --json")
        assert (answer.code, answer.document["unknown"]) == (0, [])

    def test_a_domain_that_it_does_not_have(self, run: Run) -> None:
        answer = run(f"domain check nope {self.ARGUMENTS}")
        assert answer.code == 2
        assert "nope is no file, and no domain of test:///default" in answer.err

    def test_one_that_cannot_be_asked_is_unknown(self, run: Run, xml: Path) -> None:
        xml.write_text(GOOD)
        answer = run(f"domain check {xml} --no-host --simulate laptop --connect qemu:///system --json")
        assert answer.code == 0
        assert answer.document["unknown"][0].startswith("libvirt: ")
        assert run("domain check nope --no-host --simulate laptop").code == 3


class Answering:
    """A kernel whose libvirt answers as told."""

    def __init__(self, **answers: Any) -> None:
        self._answers = {"facts": (9_000_000, None, []), "validated": "", "native": ""} | answers

    def ask_libvirt(self, _uri: str, question: str, *_words: str) -> Any:
        answer = self._answers[question]
        if isinstance(answer, VfioctlError):
            raise answer
        return answer


def refused(said: str) -> VfioctlError:
    error = BadDocument("libvirt refuses the document")
    error.kernel_said = said
    return error


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({}, []),
        ({"validated": refused("no\nway")}, [("libvirt", "error", "libvirt refuses it: no way")]),
        ({"native": refused("no way")}, [("libvirt-qemu", "error", "libvirt refuses it: no way")]),
        (
            {"native": refused("invalid PCI passthrough type 'default'")},
            [("libvirt-qemu", "warning", "libvirt refuses it: invalid PCI passthrough type 'default'")],
        ),
        ({"validated": refused("a"), "native": refused("b")}, [("libvirt", "error", "libvirt refuses it: a")]),
    ],
    ids=["nothing", "parser", "QEMU", "a host without VFIO", "the first"],
)
def test_what_libvirt_says(answers: dict[str, Any], told: list[tuple[str, str, str]]) -> None:
    asked = ask(cast("Any", Answering(**answers)), "qemu:///system", GOOD)
    assert [(each.rule, each.severity.value, each.reason) for each in asked.findings] == told
    assert (asked.version, asked.unknown) == ((9, 0), ())


def test_what_libvirt_cannot_say_is_unknown() -> None:
    denied = NotPermitted("translating the document: libvirt does not permit it", hint="run it as root")
    asked = ask(cast("Any", Answering(native=denied)), "qemu:///system", GOOD.encode("utf-16"))
    assert asked.unknown == ("translating the document: libvirt does not permit it: run it as root",)


def test_a_file_that_is_not_there(run: Run) -> None:
    answer = run("domain check ./nope.xml --no-host")
    assert answer.code == 2
    assert "./nope.xml does not exist" in answer.err

"""`vfioctl domain check`: what it prints, and how it exits."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.schema import schema_problems
from tests.unit.conftest import Run
from tests.unit.domain.documents import GOOD, changed

TWICE = changed(("vcpu='1'", "vcpu='0'"))


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    return tmp_path / "domain.xml"


def test_a_good_domain(run: Run, xml: Path) -> None:
    xml.write_text(GOOD)
    answer = run(f"domain check {xml} --no-host")
    assert (answer.code, answer.out) == (0, "The domain would work as far as the document tells.\n")


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
    assert answer.out.endswith("The domain would work as far as the document tells, with 1 warning.\n")


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

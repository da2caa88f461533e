"""The adapter of libvirt: answers, refusals, a missing library, a daemon that hangs."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vfioctl.domain.probe.domains import read_libvirt, to_native, validate
from vfioctl.errors import (
    BadDocument,
    Foreign,
    HostError,
    KernelRefused,
    MissingLibrary,
    NotPermitted,
    Stuck,
    UnknownDomain,
    VfioctlError,
)
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.libvirt import domains
from vfioctl.kernel.libvirt.answers import value_of
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.recorded.host import Recorded, read_tree
from vfioctl.kernel.recorded.tree import form, parse
from vfioctl.kernel.simulated.files import simulated_file
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kernel.timeouts import Timeouts

pytest.importorskip("libvirt")
TEST, SYSTEM = "test:///default", "qemu:///system"
OTHER_UUID = "11111111-c4fa-4719-904f-5579cd5ac35f"
XML = """<domain type='kvm'><name>web1</name><uuid>4e8c5df7-c4fa-4719-904f-5579cd5ac35f</uuid>
  <memory unit='GiB'>4</memory><vcpu>4</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"""


@pytest.fixture
def simulated() -> Simulated:
    return Simulated(read_tree(simulated_file("laptop")), "a simulated host")


@pytest.fixture
def live() -> Iterator[Live]:
    host = Live()
    yield host
    host.close()


def names(kernel: Simulated | Live | Recorded, uri: str = TEST) -> list[str]:
    found = read_libvirt(kernel, uri)
    assert found.unknown == ""
    return [each.name for each in found.domains]


class TestAsked:
    @pytest.mark.parametrize("kind", ["live", "simulated", "recorded"])
    def test_versions_and_domains(self, kind: str, live: Live, simulated: Simulated) -> None:
        recorded = Recorded(simulated.tree, "a recorded host")
        kernel = live if kind == "live" else simulated if kind == "simulated" else recorded
        found = read_libvirt(kernel, TEST)
        assert found.version is not None
        assert found.version >= 9_000_000
        assert found.hypervisor == 2
        (domain,) = found.domains
        assert (domain.name, domain.is_active, domain.is_defined) == ("test", True, True)
        assert domain.xml == domain.live
        assert "id='1'" in domain.live
        assert "id='1'" not in domain.defined
        assert found.find(domain.uuid.upper()) == found.find("test") == domain
        assert found.find("nothing") is None

    @pytest.mark.parametrize("question", ["facts", "definition", "capabilities", "native"])
    def test_a_recorded_host_never_asks_this_machine(self, simulated: Simulated, tmp_path: Path, question: str) -> None:
        for kernel in (simulated, Recorded(simulated.tree, "recorded"), Captured(str(tmp_path))):
            with pytest.raises(HostError, match="it is simulated or recorded"):
                kernel.ask_libvirt(SYSTEM, question, "web1")
            assert "it is simulated or recorded" in read_libvirt(kernel, SYSTEM).unknown

    def test_a_document(self, live: Live) -> None:
        canonical = validate(live, SYSTEM, XML)
        assert "<memory unit='KiB'>4194304</memory>" in canonical
        assert validate(live, SYSTEM, canonical) == canonical
        with pytest.raises(BadDocument) as refused:
            validate(live, SYSTEM, XML.replace("<vcpu>", "<bogus/><vcpu>"))
        assert "Element domain has extra content: bogus" in refused.value.kernel_said
        assert to_native(live, TEST, XML) == ""
        assert names(live) == ["test"]

    def test_capabilities(self, live: Live) -> None:
        assert live.ask_libvirt(TEST, "capabilities").startswith("<capabilities>")

    def test_the_library_is_missing(self, simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "libvirt", None)
        with pytest.raises(MissingLibrary) as missing:
            simulated.ask_libvirt(TEST, "facts")
        assert missing.value.hint == "pip install 'vfioctl[libvirt]'"
        assert "libvirt-python" in read_libvirt(simulated, TEST).unknown


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (42, "Domain not found", UnknownDomain),
        (29, "operation forbidden", NotPermitted),
        (38, "Failed to connect socket to '/run/x': Permission denied", NotPermitted),
        (38, "Failed to connect socket to '/run/x': No such file or directory", HostError),
        (92, "XML document failed to validate", BadDocument),
        (9, "operation failed: domain 'a' already exists with uuid b", Foreign),
        (9, "operation failed: something", HostError),
        (1, "internal error", HostError),
    ],
)
def test_each_error_says_who_must_act(code: int, text: str, kind: type[VfioctlError]) -> None:
    with pytest.raises(VfioctlError) as error:
        value_of((None, code, text), SYSTEM, "define", [XML])
    assert type(error.value) is kind
    assert error.value.kernel_said == text
    assert error.value.facts == {"uri": SYSTEM, "libvirt": code, "text": text}


@pytest.mark.parametrize(
    ("what", "words", "kind"),
    [
        ("define", [XML], BadDocument),
        ("validated", [XML], BadDocument),
        ("native", [XML], BadDocument),
        ("start", ["web1"], BadDocument),
        ("facts", [], HostError),
        ("definition", ["web1"], HostError),
        ("undefine", ["web1"], HostError),
        ("create_image", ["default", "web1.qcow2", "0"], HostError),
    ],
)
def test_a_document_is_blamed_only_where_there_is_one(what: str, words: list[str], kind: type[VfioctlError]) -> None:
    with pytest.raises(VfioctlError) as error:
        value_of((None, 8, "invalid argument: An event loop implementation must be registered"), SYSTEM, what, words)
    assert type(error.value) is kind


class TestTold:
    def test_a_simulated_host_keeps_definitions(self, tmp_path: Path) -> None:
        file = tmp_path / "host"
        file.write_text(simulated_file("laptop").read_text())
        Simulated.at(file).tell_libvirt(TEST, "define", XML)
        again = Simulated.at(file)
        assert names(again) == ["test", "web1"]
        assert form(parse(form(again.tree), "host")) == form(again.tree)
        kept = again.ask_libvirt(TEST, "definition", "web1")
        assert validate(again, TEST, kept).strip() == kept.strip()
        again.reboot("11111111-2222-4333-8444-555555555555")
        assert names(again) == ["test", "web1"]
        again.tell_libvirt(TEST, "undefine", "web1")
        assert (names(again), again.ask_libvirt(TEST, "definition", "web1")) == (["test"], "")
        assert not again.has("/etc/libvirt/qemu/web1.xml")  # its claim is stale, as on a machine
        again.tell_libvirt(TEST, "undefine", "test")
        (running,) = read_libvirt(again, TEST).domains
        assert (running.is_active, running.is_defined) == (True, False)

    def test_as_libvirt_refuses(self, simulated: Simulated) -> None:
        before = form(simulated.tree)
        with pytest.raises(BadDocument):
            simulated.tell_libvirt(TEST, "define", XML.replace("<vcpu>", "<bogus/><vcpu>"))
        with pytest.raises(UnknownDomain):
            simulated.tell_libvirt(TEST, "undefine", "web1")
        assert form(simulated.tree) == before
        simulated.tell_libvirt(TEST, "define", XML)
        for clash in (XML.replace("web1", "web2"), XML.replace("4e8c5df7", "11111111")):
            with pytest.raises(Foreign):
                simulated.tell_libvirt(TEST, "define", clash)
        assert names(simulated) == ["test", "web1"]

    def test_only_a_simulated_host_remembers(self, live: Live, simulated: Simulated, tmp_path: Path) -> None:
        with pytest.raises(HostError, match="forgets"):
            live.tell_libvirt(TEST, "define", XML)
        for kernel in (Recorded(simulated.tree, "recorded"), Captured(str(tmp_path))):
            with pytest.raises(HostError, match="read-only"):
                kernel.tell_libvirt(TEST, "define", XML)


class TestHanging:
    @pytest.fixture
    def hanging(self, tmp_path: Path) -> Iterator[str]:
        """A libvirtd that accepts connections, and never answers."""
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(str(tmp_path / "sock"))
            daemon.listen()
            yield f"qemu+unix:///system?socket={tmp_path / 'sock'}"

    def test_a_question(self, live: Live, hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(domains, "QUESTION_SECONDS", 0.5)
        begun = time.monotonic()
        assert "did not answer within 0.5 s" in read_libvirt(live, hanging).unknown
        assert time.monotonic() - begun < 20

    def test_an_order(self, hanging: str) -> None:
        live = Live(timeouts=Timeouts(steps={"libvirt": 0.5}))
        with pytest.raises(Stuck, match=r"did not return in 0\.5 s"):
            live.tell_libvirt(hanging, "define", XML)


def test_a_fault_of_the_host(tmp_path: Path) -> None:
    """Defining is one change of the host, as each write is: tests can make it fail."""
    from vfioctl.kernel.simulated.faults import Fault

    host = Simulated(read_tree(simulated_file("laptop")), "simulated", faults=[Fault(1, "errno", 5)])
    with pytest.raises(KernelRefused):
        host.tell_libvirt(TEST, "define", XML)
    assert names(host) == ["test"]

"""`vfioctl domain verify`: on a simulated server, whose /proc has the domain's QEMU."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schema import schema_problems
from tests.unit.conftest import Golden, Run
from tests.unit.domain.running import DOMAIN, GIB, GPU, MDEV, PID, UUID, Process, host, libvirt
from vfioctl.domain.api import DomainApi
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.xml import parse
from vfioctl.domain.model.verification import State, Verification, VerifiedFact
from vfioctl.domain.probe.process import NotFound, read_qemu, read_threads
from vfioctl.domain.run.verify.devices import device_facts
from vfioctl.domain.run.verify.guest import Wanted, guest_facts, why_no_agent
from vfioctl.domain.run.verify.subject import Subject
from vfioctl.errors import HostError, UnknownDomain
from vfioctl.kernel.libvirt import domains as asked
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.recorded.tree import Node, Tree, form
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

pytest.importorskip("libvirt")
EDIT = Callable[[Process], None]


def verify(folder: Path, *processes: Process, domain: str = DOMAIN, name: str = "ml1") -> Verification:
    kernel = Simulated(host(*processes), "simulated")
    return DomainApi(Session(kernel, folder / "ledger.db")).verify(name, connect=libvirt(folder, domain))


def different(found: Verification) -> list[VerifiedFact]:
    return [each for each in found.facts if each.state is State.DIFFERS]


def unknown(found: Verification) -> dict[str, str]:
    return {each.what: each.why for each in found.facts if each.state is State.UNKNOWN}


class TestAsItShould:
    def test_every_fact(self, tmp_path: Path) -> None:
        found = verify(tmp_path, Process())
        assert (found.name, found.uuid, found.pid, found.state) == ("ml1", UUID, PID, State.OK)
        assert not different(found)
        seen = {each.what: (each.wanted, each.found) for each in found.facts if each.state is State.OK}
        assert seen == {
            "vCPU 0": ("1", "1"),
            "vCPU 1": ("97", "97"),
            "vCPU 2": ("49", "49"),
            "vCPU 3": ("145", "145"),
            "emulator": ("0,48", "0,48"),
            "I/O thread 1": ("0", "0"),
            "other threads of QEMU": ("0,48", "0,97"),
            "memory of cell 0": ("4 GiB on node 0 (strict)", "4 GiB on node 0"),
            "memory of cell 1": ("4 GiB on node 1 (strict)", "4 GiB on node 1"),
            "hugepages of cells 0-1": ("8 GiB in pages of 1 GiB", "8 GiB in use, 8 GiB mapped"),
            f"{GPU} on QEMU's command line": ("there", "there"),
            f"{MDEV} on QEMU's command line": ("there", "there"),
            "NUMA node of the expander bus pci.1": ("1", "1"),
            f"bus of {GPU} in the guest": ("pci.1/pci.2", "pcie.0/pci.1/pci.2"),
            "devices of the definition": (f"{GPU} {MDEV}", f"{GPU} {MDEV}"),
            "pins of the definition": ("0 to 1, 1 to 97, 2 to 49, 3 to 145, emulator to 0,48, I/O thread 1 to 0",) * 2,
            "NUMA nodes of the definition": ("0-1, cell 0: 0, cell 1: 1",) * 2,
        }
        no_agent = "no agent: none is running in the guest"
        assert unknown(found) == {f"{device} in the guest": no_agent for device in (GPU, MDEV)}

    def test_a_domain_that_says_nothing(self, tmp_path: Path) -> None:
        plain = f"<domain type='kvm'><name>ml1</name><uuid>{UUID}</uuid><memory>1024</memory><os><type>hvm</type></os>"
        process = Process()
        process.arguments = [each.replace("vfio-pci", "virtio-blk") for each in process.arguments]
        found = verify(tmp_path, process, domain=f"{plain}<vcpu>2</vcpu></domain>")
        assert found.state is State.OK
        assert {each.wanted for each in found.facts} == {"any CPU", "any NUMA node", "none"}

    def test_by_the_uuid(self, tmp_path: Path) -> None:
        assert verify(tmp_path, Process(), name=UUID).name == "ml1"


def _thread(number: int, name: str, cpus: str) -> EDIT:
    def edit(process: Process) -> None:
        process.threads[PID + number] = (name, cpus)

    return edit


def _without(number: int) -> EDIT:
    def edit(process: Process) -> None:
        del process.threads[PID + number]

    return edit


def _memory(number: int, was: str, becomes: str) -> EDIT:
    def edit(process: Process) -> None:
        says, size, rights = process.memory[number]
        assert was in says
        process.memory[number] = (says.replace(was, becomes), size, rights)

    return edit


def _argument(was: str, becomes: str) -> EDIT:
    def edit(process: Process) -> None:
        assert any(was in each for each in process.arguments)
        process.arguments = [each.replace(was, becomes) for each in process.arguments]

    return edit


class TestWhatDiffers:
    @pytest.mark.parametrize(
        ("edit", "what", "found", "remedy"),
        [
            (_thread(5, "CPU 1/KVM", "0-191"), "vCPU 1", "0-191", "vcpupin ml1 1 97 --live"),
            (_thread(7, "CPU 3/TCG", "140-145"), "vCPU 3", "140-145", "vcpupin ml1 3 145 --live"),
            (_without(6), "vCPU 2", "no such thread", "dumpxml"),
            (_thread(0, "qemu-system-x86", "0"), "emulator", "0", "emulatorpin ml1 0,48 --live"),
            (_thread(1, "IO iothread1", "48"), "I/O thread 1", "48", "iothreadpin ml1 1 0 --live"),
            (_thread(8, "worker", "1"), "other threads of QEMU", "1 (thread 4250, worker)", "stop ml1"),
            (_thread(8, "CPU 7/KVM", "1"), "other threads of QEMU", "1 (thread 4250, CPU 7/KVM)", "stop ml1"),
            (_thread(8, "IO iothread9", "1"), "other threads of QEMU", "1 (thread 4250, IO iothread9)", "stop ml1"),
            (_thread(3, "vhost-4242", "2"), "other threads of QEMU", "2 (thread 4245, vhost-4242)", "stop ml1"),
            (_memory(1, "N0=4", "N0=3 N1=1"), "memory of cell 0", "3 GiB on node 0, 1 GiB on node 1", "free memory"),
            (
                _memory(2, "bind:1", "prefer:1"),
                "memory of cell 1",
                "0 B has this policy; there are bind:0, prefer:1",
                "stop ml1",
            ),
            (
                _memory(
                    2, "huge dirty=4 N1=4 kernelpagesize_kB=1048576", "anon=1048576 N1=1048576 kernelpagesize_kB=4"
                ),
                "hugepages of cells 0-1",
                "4 GiB in use, 4 GiB mapped",
                "vfioctl place",
            ),
            (_memory(2, "N1=4", "N1=3"), "hugepages of cells 0-1", "7 GiB in use, 8 GiB mapped", "free hugepages"),
            (_argument(GPU, "0000:1b:00.1"), f"{GPU} on QEMU's command line", "not there", "start it again"),
            (
                _argument(f"devices/{MDEV}", "devices/x"),
                f"{MDEV} on QEMU's command line",
                "not there",
                "start it again",
            ),
            (
                _argument('"bus":"pci.1"', '"bus":"pcie.0"'),
                f"bus of {GPU} in the guest",
                "pcie.0/pci.2",
                "start it again",
            ),
            (_argument('"bus":"pci.2"', '"bus":"pcie.0"'), f"bus of {GPU} in the guest", "pcie.0", "start it again"),
            (_argument("numa_node=1", "numa_node=0"), "NUMA node of the expander bus pci.1", "0", "start it again"),
            (_argument("numa_node=1,", ""), "NUMA node of the expander bus pci.1", "no node", "start it again"),
            (_argument("pxb-pcie", "e1000"), "NUMA node of the expander bus pci.1", "no such bus", "start it again"),
            (_argument("vfio-pci", "virtio-blk"), f"{GPU} on QEMU's command line", "not there", "start it again"),
        ],
    )
    def test_exactly_this(self, tmp_path: Path, edit: EDIT, what: str, found: str, remedy: str) -> None:
        process = Process()
        edit(process)
        seen = verify(tmp_path, process)
        assert seen.state is State.DIFFERS
        facts = different(seen)
        assert (facts[0].what, facts[0].found) == (what, found)
        assert remedy in facts[0].remedy
        assert len(facts) == (2 if "virtio" in str(process.arguments) else 1)

    def test_a_thread_that_begins_threads_on_a_node(self, tmp_path: Path) -> None:
        """libvirt 9 gives QEMU one for each cell whose pages are taken at once."""
        process = Process()
        process.threads[PID + 8] = ("TC tc-ram-node0", "0-47,96-143")
        assert not different(verify(tmp_path, process))

    def test_the_definition(self, tmp_path: Path) -> None:
        uri = libvirt(tmp_path)
        tree = host(Process())
        kernel = Simulated(tree, "simulated")
        without = DOMAIN.replace("bus='0x1b'", "bus='0x43'").replace("cpuset='97'", "cpuset='98'")
        kernel.tell_libvirt(uri, "define", without)
        found = DomainApi(Session(kernel, tmp_path / "ledger.db")).verify("ml1", connect=uri)
        assert [(each.what, each.wanted) for each in different(found)] == [
            ("devices of the definition", f"0000:43:00.0 {MDEV}"),
            ("pins of the definition", "0 to 1, 1 to 98, 2 to 49, 3 to 145, emulator to 0,48, I/O thread 1 to 0"),
        ]

    @pytest.mark.parametrize("pin", ["<emulatorpin cpuset='0,48'/>", "<iothreadpin iothread='1' cpuset='0'/>"])
    def test_a_pin_that_was_changed_while_it_runs(self, tmp_path: Path, pin: str) -> None:
        assert pin in DOMAIN
        uri = libvirt(tmp_path)
        kernel = Simulated(host(Process()), "simulated")
        kernel.tell_libvirt(uri, "define", DOMAIN.replace(pin, pin.replace("cpuset='0", "cpuset='5,0")))
        found = DomainApi(Session(kernel, tmp_path / "ledger.db")).verify("ml1", connect=uri)
        assert [each.what for each in different(found)] == ["pins of the definition"]

    def test_a_policy_of_the_control_group(self, tmp_path: Path) -> None:
        """libvirt may leave the nodes to the control group: then QEMU's policy is the default."""
        one = DOMAIN.replace("<memnode cellid='0' mode='strict' nodeset='0'/>", "")
        one = one.replace("<memnode cellid='1' mode='strict' nodeset='1'/>", "").replace(
            "nodeset='0-1'/>\n", "nodeset='1'/>"
        )
        process = Process(allowed_nodes="1")
        process.memory[1:3] = [("default anon=3 N1=3 kernelpagesize_kB=4", 8 * GIB, "rw-p")]
        one = one.replace("<hugepages><page size='1' unit='GiB' nodeset='0-1'/></hugepages>", "")
        assert not different(verify(tmp_path, process, domain=one))
        process.memory[1] = ("default anon=3 N1=2 N0=1 kernelpagesize_kB=4", 8 * GIB, "rw-p")
        (fact,) = different(verify(tmp_path, process, domain=one))
        assert (fact.what, fact.found) == ("memory of cells 0-1", "4 KiB on node 0, 8 KiB on node 1")
        process.allowed_nodes = "0-1"
        (fact,) = different(verify(tmp_path, process, domain=one))
        assert fact.found == "0 B has this policy; there are default"


HUGEPAGES = "<hugepages><page size='1' unit='GiB' nodeset='0-1'/></hugepages>"
WITHOUT_DEVICES = DOMAIN[: DOMAIN.index("<hostdev")] + DOMAIN[DOMAIN.index("<channel") :]


class TestMemory:
    """What is not in hugepages: pages of 4 KiB, here with their number on each node."""

    def facts(
        self, folder: Path, domain: str, *cells: str, page: int = 4, allowed: str = "0-1"
    ) -> dict[str, tuple[State, str]]:
        process = Process(allowed_nodes=allowed)
        process.memory[1:] = [(f"{each} kernelpagesize_kB={page}", 4 * GIB, "rw-p") for each in cells]
        if "<hostdev" not in domain:
            process.arguments = [each.replace("vfio-pci", "virtio-blk") for each in process.arguments]
        facts = verify(folder, process, domain=domain).facts
        return {each.what: (each.state, each.found or each.why) for each in facts if each.area == "memory"}

    def restrictive(self, folder: Path, *cells: str) -> list[tuple[State, str]]:
        domain = DOMAIN.replace("'strict'", "'restrictive'").replace(HUGEPAGES, "")
        return list(self.facts(folder, domain, *cells).values())

    def test_restrictive_on_the_right_nodes(self, tmp_path: Path) -> None:
        """libvirt leaves it to the control group, and the policy of the mappings is the default."""
        found = self.restrictive(tmp_path, "default anon=1048576 N0=1048576", "default anon=1048576 N1=1048576")
        assert found == [(State.OK, "4 GiB on node 0, 4 GiB on node 1")] * 2

    def test_restrictive_on_a_wrong_node(self, tmp_path: Path) -> None:
        cells = "default anon=1048576 N0=1048576", "default anon=1048576 N0=1024 N1=1047552"
        assert [state for state, _ in self.restrictive(tmp_path, *cells)] == [State.OK, State.DIFFERS]

    def test_restrictive_and_not_all_in_use(self, tmp_path: Path) -> None:
        found = self.restrictive(tmp_path, "default anon=1024 N0=1024", "default anon=1024 N1=1024")
        why = "libvirt sets no policy for it, and not all memory of the guest is in use"
        assert found == [(State.UNKNOWN, why)] * 2

    @pytest.mark.parametrize(
        ("size", "page", "is_checked"),
        [("size='4' unit='KiB'", 4, False), ("size='64' unit='KiB'", 64, False), ("size='2' unit='MiB'", 4, True)],
    )
    def test_normal_pages_are_no_hugepages(self, tmp_path: Path, size: str, page: int, is_checked: bool) -> None:
        domain = DOMAIN.replace("size='1' unit='GiB'", size)
        found = self.facts(
            tmp_path, domain, f"bind:0 N0={(4 << 20) // page}", f"bind:1 N1={(4 << 20) // page}", page=page
        )
        assert ("hugepages of cells 0-1" in found) == is_checked
        assert found["memory of cell 1"] == (State.OK, "4 GiB on node 1")

    def test_no_page_in_use(self, tmp_path: Path) -> None:
        """VFIO pins all memory when the device is opened, so such a guest's must be there."""
        domain = DOMAIN.replace(HUGEPAGES, "")
        found = self.facts(tmp_path, domain, "bind:0", "bind:1 N1=4")
        assert found["memory of cell 0"][0] is State.UNKNOWN
        assert "although VFIO pins all memory" in found["memory of cell 0"][1]
        assert found["memory of cell 1"] == (State.OK, "16 KiB on node 1")
        plain = WITHOUT_DEVICES.replace(HUGEPAGES, "")
        assert self.facts(tmp_path, plain, "bind:0", "bind:1")["memory of cell 0"] == (State.OK, "none in use")


class TestAttached:
    """A device that `virsh attach-device` gave to a running domain is not on QEMU's command line."""

    def seen(self, folder: Path, *groups: str, argument: str = "virtio") -> tuple[str, State]:
        process = Process()
        process.arguments = [each.replace(f"{GPU}", argument) for each in process.arguments]
        tree = host(process)
        for number, group in enumerate(groups):
            tree.put_link(f"/proc/{PID}/fd/{number}", f"/dev/vfio/{group}")
            tree.put_node(f"/dev/vfio/{group}", Node("c", 511, int(group)))
        api = DomainApi(Session(Simulated(tree, "simulated"), folder / "ledger.db"))
        facts = {each.what: each for each in api.verify("ml1", connect=libvirt(folder)).facts}
        fact = facts[f"{GPU} on QEMU's command line"]
        return fact.found, fact.state

    def test_its_group_is_open(self, tmp_path: Path) -> None:
        group = host().links[host().resolve(f"/sys/bus/pci/devices/{GPU}") + "/iommu_group"].rpartition("/")[2]
        assert self.seen(tmp_path, group) == (f"attached while it runs: group {group} is open", State.OK)
        assert self.seen(tmp_path, f"{int(group) + 1000}") == ("not there", State.DIFFERS)
        assert self.seen(tmp_path) == ("not there", State.DIFFERS)


class TestWithheld:
    """A device that libvirt takes from the host and does not give to QEMU."""

    def test_it_is_not_missed(self) -> None:
        text = (
            "<domain><devices><hostdev type='pci'><source><address bus='0x1b'/></source>"
            "<address type='unassigned'/></hostdev></devices></domain>"
        )
        subject = Subject(Domain(parse(text)), "ml1", "virsh")
        assert not list(device_facts(subject, [], {}, lambda: None))


class TestOthers:
    """A device on QEMU's command line that the document does not name."""

    OTHER = "0000:43:00.0"
    WHAT = f"{OTHER} on QEMU's command line"

    def process(self, argument: str = f"vfio-pci,host={OTHER}") -> Process:
        process = Process()
        process.arguments += ["-device", argument]
        return process

    @pytest.mark.parametrize(
        "argument",
        [
            f"vfio-pci,host={OTHER}",
            f'{{"driver":"vfio-pci-nohotplug","sysfsdev":"/sys/bus/pci/devices/{OTHER}","bus":"pci.9"}}',
        ],
    )
    def test_it_differs(self, tmp_path: Path, argument: str) -> None:
        found = verify(tmp_path, self.process(argument))
        assert [(each.what, each.wanted, each.found) for each in different(found)] == [
            (self.WHAT, "not there", "there")
        ]
        assert found.state is State.DIFFERS

    def test_it_was_detached(self, tmp_path: Path) -> None:
        """Then QEMU has its group no longer open, but those of its other devices."""
        tree = host(self.process())
        (gone,) = (
            path
            for path in list(tree.links)
            if path.startswith(f"/proc/{PID}/fd/") and tree.links[path].endswith(f"/{self.group(tree)}")
        )
        tree.remove(gone)
        api = DomainApi(Session(Simulated(tree, "simulated"), tmp_path / "ledger.db"))
        found = api.verify("ml1", connect=libvirt(tmp_path))
        assert self.WHAT not in {each.what for each in found.facts}
        assert found.state is State.OK

    def group(self, tree: Tree) -> str:
        return tree.links[tree.resolve(f"/sys/bus/pci/devices/{self.OTHER}") + "/iommu_group"].rpartition("/")[2]

    @pytest.mark.parametrize("way", ["refused", "no groups"])
    def test_it_is_not_known(self, tmp_path: Path, way: str) -> None:
        """Only root may read which files QEMU has open, and with iommufd they are no groups."""
        tree = host(self.process())
        for path in [path for path in tree.links if path.startswith(f"/proc/{PID}/fd/")]:
            tree.remove(path)
        if way == "refused":
            tree.put_refused(f"/proc/{PID}/fd", 13)
        api = DomainApi(Session(Simulated(tree, "simulated"), tmp_path / "ledger.db"))
        found = api.verify("ml1", connect=libvirt(tmp_path))
        assert not different(found)
        assert "whether it was detached" in unknown(found)[self.WHAT]

    def test_it_is_the_documents_own(self) -> None:
        """libvirt's test driver knows no <qemu:commandline>."""
        space = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'"
        words = ("-device", f"vfio-pci,host={self.OTHER}")
        own = "".join(f"<qemu:arg value='{word}'/>" for word in words)
        text = DOMAIN.replace("<domain ", f"<domain {space} ").replace(
            "</domain>", f"<qemu:commandline>{own}</qemu:commandline></domain>"
        )
        groups = {self.OTHER: "1", GPU: "2"}

        def facts(text: str) -> list[VerifiedFact]:
            subject = Subject(Domain(parse(text)), "ml1", "virsh")
            return list(device_facts(subject, self.process().arguments, groups, lambda: ["1", "2"]))

        assert {each.state for each in facts(text)} == {State.OK}
        assert [each.what for each in facts(DOMAIN) if each.state is State.DIFFERS] == [self.WHAT]


class TestWiring:
    def facts(self, domain: str, *arguments: str) -> list[tuple[str, str, str, State]]:
        words = [word for each in arguments for word in ("-device", each)]
        found = device_facts(Subject(Domain(parse(domain)), "ml1", "virsh"), words, {}, lambda: None)
        return [(each.what, each.wanted, each.found, each.state) for each in found][1:]

    def domain(self, devices: str) -> str:
        source = "<source><address bus='0x1b' slot='0' function='0'/></source>"
        gpu = f"<hostdev type='pci'>{source}<address type='pci' bus='0x05'/></hostdev>"
        return f"<domain><devices>{devices}{gpu}</devices></domain>"

    def test_aliases_and_the_root(self) -> None:
        """The document of a domain that runs has the alias of each controller."""
        devices = "<controller type='pci' index='5' model='pcie-root-port'><alias name='ua-port'/>"
        devices += "<address type='pci' bus='0x00' slot='0x01'/></controller>"
        devices += "<controller type='pci' index='0' model='pcie-root'><alias name='pcie.0'/></controller>"
        port, gpu = (
            "pcie-root-port,id=ua-port,bus=pcie.0",
            '{"driver":"vfio-pci","host":"0000:1b:00.0","bus":"ua-port"}',
        )
        what = f"bus of {GPU} in the guest"
        assert self.facts(self.domain(devices), port, gpu) == [(what, "pcie.0/ua-port", "pcie.0/ua-port", State.OK)]
        assert self.facts(self.domain(devices), gpu) == [(what, "pcie.0/ua-port", "", State.UNKNOWN)]
        assert self.facts(self.domain(devices), port, gpu.replace("ua-port", "pci.5"))[0][3] is State.DIFFERS
        assert self.facts(self.domain(devices), port, "vfio-pci,host=1b:00.0")[0][3] is State.UNKNOWN

    def test_what_the_document_does_not_tell(self) -> None:
        gpu = "vfio-pci,host=0000:1b:00.0,bus=pci.5.0"
        assert self.facts(self.domain(""), gpu) == []
        assert self.facts(self.domain("<controller type='pci' index='5' model='pci-root'/>"), gpu) == []

    def test_buses_in_a_circle(self) -> None:
        controller = "<controller type='pci' index='5'><address type='pci' bus='0x05'/></controller>"
        gpu = "vfio-pci,host=0000:1b:00.0,id=pci.5,bus=pci.5"
        assert [each[3] for each in self.facts(self.domain(controller), gpu)] == [State.OK]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a process as another user")
class TestTwoUsers:
    """Real processes that say that they are the domain's QEMU."""

    @contextmanager
    def process(self, user: int) -> Iterator[int]:
        command = ["/bin/sh", "-c", "echo qemu-system-x86 > /proc/$$/comm; echo; read x", "-uuid", UUID]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user) as child:
            assert child.stdout is not None
            child.stdout.readline()
            yield child.pid
            child.communicate()

    def test_root_is_believed_and_nobody_is_not(self) -> None:
        kernel = Live()
        with self.process(65534) as forged:
            with pytest.raises(NotFound, match=f"process {forged} says that it is, but user"):
                read_qemu(kernel, "ml1", UUID)
            with self.process(0) as real:
                found = read_qemu(kernel, "ml1", UUID)
        assert (found.pid, len(found.threads), found.memory_unknown) == (real, 1, "")
        with pytest.raises(NotFound, match="no process"):
            read_qemu(kernel, "ml1", UUID)


class TestWhichProcess:
    def test_none(self, tmp_path: Path) -> None:
        found = verify(tmp_path)
        assert (found.pid, found.state) == (None, State.UNKNOWN)
        assert unknown(found)["the domain's QEMU process"] == "no process has its UUID on the command line"

    def test_one_of_another_user(self, tmp_path: Path) -> None:
        found = verify(tmp_path, Process(user=1000))
        assert (found.pid, found.state) == (None, State.UNKNOWN)
        assert "user mallory runs it" in unknown(found)["the domain's QEMU process"]

    def test_beside_one_of_another_user(self, tmp_path: Path) -> None:
        forged = Process(user=1000, threads={PID: ("CPU 0/KVM", "0-191")})
        assert verify(tmp_path, forged, Process()).pid == PID + 1000

    @pytest.mark.parametrize("option", ["-name", "-uuid"])
    def test_one_with_another_uuid(self, tmp_path: Path, option: str) -> None:
        process = Process()
        process.arguments = ["qemu", option, UUID.replace("4", "5") if option == "-uuid" else UUID]
        assert verify(tmp_path, process).pid is None

    def test_two(self, tmp_path: Path) -> None:
        found = verify(tmp_path, Process(), Process())
        assert (found.pid, found.state) == (None, State.UNKNOWN)
        assert unknown(found)["the domain's QEMU process"].startswith("processes 4242, 5242")

    def test_the_pid_file_tells(self, tmp_path: Path) -> None:
        tree = host(Process(), Process())
        tree.put("/run/libvirt/qemu/ml1.pid", f"{PID + 1000}")
        api = DomainApi(Session(Simulated(tree, "simulated"), tmp_path / "ledger.db"))
        assert api.verify("ml1", connect=libvirt(tmp_path)).pid == PID + 1000

    @pytest.mark.parametrize("text", ["1", "-1", "x", "4242\n4243", "99999999999999", "0"])
    def test_a_stale_pid_file(self, tmp_path: Path, text: str) -> None:
        tree = host(Process())
        tree.put("/run/libvirt/qemu/ml1.pid", text)
        api = DomainApi(Session(Simulated(tree, "simulated"), tmp_path / "ledger.db"))
        assert api.verify("ml1", connect=libvirt(tmp_path)).pid == PID

    def test_what_root_alone_may_read(self, tmp_path: Path) -> None:
        tree = host(Process())
        tree.remove(f"/proc/{PID}/numa_maps")
        tree.put_refused(f"/proc/{PID}/numa_maps", 13)
        api = DomainApi(Session(Simulated(tree, "simulated"), tmp_path / "ledger.db"))
        found = api.verify("ml1", connect=libvirt(tmp_path), guest=False)
        assert found.state is State.OK
        assert unknown(found) == {"memory": f"reading /proc/{PID}/numa_maps: EACCES"}

    @pytest.mark.parametrize("memory", [[], None])
    def test_neither_threads_nor_memory(self, tmp_path: Path, memory: list[tuple[str, int, str]] | None) -> None:
        """The command line and the definition are no sign of what runs."""
        tree = host(Process(threads={}, memory=memory or []))
        if memory is None:
            tree.put_refused(f"/proc/{PID}/numa_maps", 13)
        api = DomainApi(Session(Simulated(tree, "simulated"), tmp_path / "ledger.db"))
        found = api.verify("ml1", connect=libvirt(tmp_path))
        assert not different(found)
        assert found.state is State.UNKNOWN

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("cmdline", ""),  # a zombie
            ("cmdline", f"qemu-system-x86_64\0-uuid\0{UUID}"),
            ("stat", "4242 (a) b) S 1 4242 4242 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 8 0 7778 1 1"),
            ("status", "Name:\tqemu\nUid:\t1000\t1000\t1000\t1000"),
        ],
    )
    def test_one_that_ends_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
    ) -> None:
        tree = host(Process())
        tree.put(f"/proc/{PID}/stat", "4242 (a) b) S 1 4242 4242 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 8 0 7777 1 1")
        kernel = Simulated(tree, "simulated")
        api = DomainApi(Session(kernel, tmp_path / "ledger.db"))
        assert api.verify("ml1", connect=libvirt(tmp_path)).state is State.OK
        known = kernel.survey

        def survey(measure: Any, *words: Any, **options: Any) -> Any:
            found = known(measure, *words, **options)
            if measure is read_threads:
                tree.put(f"/proc/{PID}/{file}", text)
            return found

        monkeypatch.setattr(kernel, "survey", survey)
        with pytest.raises(HostError, match="process 4242 of domain ml1 ended while it was looked at") as caught:
            api.verify("ml1", connect=libvirt(tmp_path))
        assert caught.value.exit_code == 3

    def test_threads_that_say_nothing_or_nonsense(self, tmp_path: Path) -> None:
        process = Process()
        process.threads[PID + 4] = ("CPU 0/KVM", "1-")
        process.threads[PID + 5] = ("CPU 1/KVM", "\x1b[2J")
        process.threads[PID + 9] = ("CPU 99999999999/KVM", "1")
        found = verify(tmp_path, process)
        assert [each.what for each in different(found)] == ["vCPU 0", "other threads of QEMU"]
        assert unknown(found)["vCPU 1"] == f"/proc does not show the CPUs of thread {PID + 5}"

    def test_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownDomain):
            verify(tmp_path, Process(), name="web1")
        kernel = Simulated(host(), "simulated")
        kernel.tell_libvirt("test:///default", "define", DOMAIN)
        with pytest.raises(HostError, match="does not run"):
            DomainApi(Session(kernel, tmp_path / "ledger.db")).verify("ml1", connect="test:///default")


class TestCommand:
    def command(self, run: Run, folder: Path, process: Process, words: str = "") -> tuple[int, str, object]:
        file = folder / "hgx8.host"
        file.write_text(form(host(process)))
        done = run(f"domain verify ml1 {words} --simulate {file} --connect {libvirt(folder)}")
        return done.code, done.out + done.err, done.document if "--json" in words else None

    def test_exit_codes_and_document(self, run: Run, tmp_path: Path) -> None:
        code, text, _ = self.command(run, tmp_path, Process())
        assert code == 0
        assert "CPUs: 7 of 7 as wanted\nmemory: 3 of 3 as wanted\n  memory of cell 0: 4 GiB on node 0\n" in text
        code, _, document = self.command(run, tmp_path, Process(), "--json --no-guest")
        assert code == 0
        assert schema_problems(document, "domain-verify") == []

    def test_what_differs(self, run: Run, tmp_path: Path) -> None:
        process = Process()
        process.threads[PID + 5] = ("CPU 1/KVM", "0-191")
        code, text, _ = self.command(run, tmp_path, process)
        assert code == 6
        assert "differs: vCPU 1: wanted 97, found 0-191" in text
        assert f"-> virsh -c {libvirt(tmp_path)} vcpupin ml1 1 97 --live" in text
        code, _, document = self.command(run, tmp_path, process, "--json")
        assert code == 6
        assert schema_problems(document, "domain-verify") == []

    def test_wholly_unknown(self, run: Run, tmp_path: Path) -> None:
        code, text, _ = self.command(run, tmp_path, Process(user=1000))
        assert code == 3
        assert "cannot be verified" in text
        assert self.command(run, tmp_path, Process(user=1000), "--json")[0] == 3

    def test_the_page(self, terminal: Run, golden: Golden, tmp_path: Path) -> None:
        process = Process()
        process.threads[PID + 5] = ("CPU 1/KVM", "0-191")
        process.memory[1] = (process.memory[1][0].replace("N0=4", "N0=3 N1=1"), *process.memory[1][1:])
        code, text, _ = self.command(terminal, tmp_path, process)
        golden("domains/verify.txt", f"{text}[exit code {code}]\n".replace(libvirt(tmp_path), "URI"))
        golden(
            "domains/verify.json",
            self.command(terminal, tmp_path, process, "--json")[1].replace(libvirt(tmp_path), "URI"),
        )


# -- in the guest ------------------------------------------------------------------------------------------

PORT, HOME = "/sys/bus/pci/devices/0000:fc:00.0", "/sys/bus/pci/devices/0000:fd:00.0"
GUEST = {
    f"{PORT}/secondary_bus_number": "253\n",
    f"{HOME}/vendor": "0x10de\n",
    f"{HOME}/device": "0x2330\n",
    f"{HOME}/numa_node": "1\n",
    f"{HOME}/current_link_speed": "32.0 GT/s PCIe\n",
    f"{HOME}/current_link_width": "16\n",
}


class TestGuest:
    def facts(self, files: Mapping[str, str], domain: str = DOMAIN) -> list[VerifiedFact]:
        def ask(paths: Sequence[str]) -> Mapping[str, str]:
            return {path: files[path] for path in paths if path in files}

        subject = Subject(Domain(parse(domain)), "ml1", "virsh")
        return list(guest_facts(subject, [Wanted(GPU, "16", "10de:2330")], ask))

    def test_as_it_should(self) -> None:
        assert [(each.what, each.wanted, each.found, each.state) for each in self.facts(GUEST)] == [
            (f"NUMA node of {GPU} in the guest, at 0000:fd:00.0", "1", "1", State.OK),
            (f"link of {GPU} in the guest, at 0000:fd:00.0", "x16", "x16 at 32.0 GT/s PCIe", State.OK),
        ]

    def test_addresses_are_read_as_libvirt_does(self) -> None:
        """The device is on bus 16, in decimal, and its port is at slot 8, in octal."""
        domain = DOMAIN.replace("index='2'", "index='16'").replace("bus='0x02' slot='0x00'", "bus='16' slot='0'")
        domain = domain.replace("bus='0x01' slot='0x00'", "bus='01' slot='010'").replace("bus='0x1b'", "bus='27'")
        moved = {path.replace(":fc:00.0", ":fc:08.0"): text for path, text in GUEST.items()}
        assert [each.state for each in self.facts(moved, domain)] == [State.OK] * 2

    @pytest.mark.parametrize(("name", "text"), [("numa_node", "-1"), ("numa_node", "0"), ("current_link_width", "8")])
    def test_what_differs(self, name: str, text: str) -> None:
        (fact,) = (each for each in self.facts({**GUEST, f"{HOME}/{name}": text}) if each.state is State.DIFFERS)
        assert fact.remedy
        assert text in fact.found

    def test_a_width_that_the_guest_does_not_know(self) -> None:
        (fact,) = (each for each in self.facts({**GUEST, f"{HOME}/current_link_width": "0"}) if "link" in each.what)
        assert (fact.state, fact.why) == (State.UNKNOWN, "the guest does not report it")

    @pytest.mark.parametrize(
        "edit",
        [
            {f"{PORT}/secondary_bus_number": "no number"},
            {f"{HOME}/device": "0x1234"},
            {f"{HOME}/vendor": ""},
        ],
    )
    def test_another_device(self, edit: dict[str, str]) -> None:
        assert [each.state for each in self.facts({**GUEST, **edit})] == [State.UNKNOWN]

    def test_a_hostile_guest(self) -> None:
        """What it says is shown only where it has the form that the kernel gives it."""
        hostile = {path: "\x1b[2J" * 9 if "numa" in path or "link" in path else text for path, text in GUEST.items()}
        found = self.facts(hostile)
        assert [each.state for each in found] == [State.UNKNOWN] * 2
        assert "\x1b" not in str(found)
        assert [each.state for each in self.facts({})] == [State.UNKNOWN]

    @pytest.mark.parametrize(
        ("channel", "says"),
        [("", "none is running"), ("state='disconnected'", "none is running"), ("state='connected'", "")],
    )
    def test_whether_there_is_an_agent(self, channel: str, says: str) -> None:
        text = DOMAIN.replace("name='org.qemu.guest_agent.0'", f"name='org.qemu.guest_agent.0' {channel}")
        assert says in why_no_agent(Subject(Domain(parse(text)), "ml1", "virsh"))
        assert bool(says) == bool(why_no_agent(Subject(Domain(parse(text)), "ml1", "virsh")))
        assert "no channel" in why_no_agent(Subject(Domain(parse("<domain/>")), "ml1", "virsh"))

    def test_a_whole_domain(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The agent is libvirt's: the test driver has none, so what it would say is put in its place."""
        kernel = Simulated(host(Process()), "simulated")
        uri = libvirt(tmp_path, DOMAIN)
        known = kernel.ask_libvirt

        def ask(uri: str, question: str, *words: str) -> Any:
            if question == "guest_files":
                return {path: GUEST[path] for path in words[1:] if path in GUEST}
            found = known(uri, question, *words)
            mark = "name='org.qemu.guest_agent.0'"
            return json.loads(json.dumps(found).replace(mark, f"{mark} state='connected'"))

        monkeypatch.setattr(kernel, "ask_libvirt", ask)
        found = DomainApi(Session(kernel, tmp_path / "ledger.db")).verify("ml1", connect=uri)
        seen = {each.what: each.state for each in found.facts if each.area == "guest"}
        assert seen[f"NUMA node of {GPU} in the guest, at 0000:fd:00.0"] is State.OK
        assert seen[f"{MDEV} in the guest"] is State.UNKNOWN

    def test_an_agent_that_does_not_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel = Simulated(host(Process()), "simulated")
        known = kernel.ask_libvirt

        def ask(uri: str, question: str, *words: str) -> Any:
            if question == "guest_files":
                raise HostError("asking the guest agent of ml1: failed", hint="it does not respond")
            found = known(uri, question, *words)
            mark = "name='org.qemu.guest_agent.0'"
            return json.loads(json.dumps(found).replace(mark, f"{mark} state='connected'"))

        monkeypatch.setattr(kernel, "ask_libvirt", ask)
        found = DomainApi(Session(kernel, tmp_path / "ledger.db")).verify("ml1", connect=libvirt(tmp_path))
        assert found.state is State.OK
        assert set(unknown(found).values()) == {"asking the guest agent of ml1: failed: it does not respond"}


class TestAgent:
    """The question to libvirt, with an agent in the place of libvirt's."""

    def ask(self, monkeypatch: pytest.MonkeyPatch, agent: Callable[[str, dict[str, Any]], Any]) -> Any:
        said: list[str] = []

        def command(_domain: object, text: str, _timeout: int, _flags: int) -> str:
            document = json.loads(text)
            answer = agent(document["execute"], document["arguments"])
            said.append(document["execute"])
            return json.dumps({"return": answer})

        monkeypatch.setitem(sys.modules, "libvirt_qemu", SimpleNamespace(qemuAgentCommand=command))
        value, code, text = asked.guest_files("test:///default", "test", "/a", "/b")
        assert said.count("guest-file-open") == said.count("guest-file-close")
        return value, code, text

    def test_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def agent(command: str, given: dict[str, Any]) -> Any:
            if command == "guest-file-open":
                assert given["mode"] == "r"
                return {"/a": 1000, "/b": 1001}[given["path"]]
            content = {1000: b"1\n", 1001: b"x" * 5000}[given["handle"]]
            return {"buf-b64": base64.b64encode(content).decode()} if command == "guest-file-read" else {}

        value, _, _ = self.ask(monkeypatch, agent)
        assert value == {"/a": "1\n", "/b": "x" * 256}

    @pytest.mark.parametrize("answer", ["", [], {}, {"buf-b64": "%"}, {"buf-b64": []}, None])
    def test_nonsense(self, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
        value, code, _ = self.ask(monkeypatch, lambda command, _: 1 if command == "guest-file-open" else answer)
        assert code == 0
        assert set(value.values()) <= {""}

    @pytest.mark.parametrize(
        "text",
        [
            '{"return": 1e999}',
            '{"return": -Infinity}',
            '{"return": NaN}',
            f'{{"return": {"9" * 5000}}}',
            f'{{"return": {"9" * 4000}}}',
            f'{{"return": {"[" * 100_000}{"]" * 100_000}}}',
            '{"return": {"buf-b64": 1e999}}',
            '{"return": {"buf-b64": "\\ud800"}}',
            f'{{"return": {{"buf-b64": "{"A" * 10_000_000}"}}}}',
            '{"return": {"buf-b64": "AAA"}}',
            '{"return": "1e999"}',
            '{"return": "\\u0661"}',
            '{"error": {}}',
            "[1]",
            '"return"',
            "1e999",
            "null",
            "",
        ],
    )
    @pytest.mark.parametrize("opens", [True, False])
    def test_a_hostile_one(self, monkeypatch: pytest.MonkeyPatch, text: str, opens: bool) -> None:
        def command(_domain: object, said: str, _timeout: int, _flags: int) -> str:
            return '{"return": 1000}' if opens and json.loads(said)["execute"] == "guest-file-open" else text

        monkeypatch.setitem(sys.modules, "libvirt_qemu", SimpleNamespace(qemuAgentCommand=command))
        value, code, _ = asked.guest_files("test:///default", "test", "/a", "/b")
        assert code == 0
        assert all(len(each) <= 256 for each in value.values())

    @pytest.mark.parametrize(("code", "answered"), [(1, True), (86, False)])
    def test_a_refusal_costs_one_file_and_silence_all(
        self, monkeypatch: pytest.MonkeyPatch, code: int, answered: bool
    ) -> None:
        import libvirt as driver

        def refuse(_command: str, _given: dict[str, Any]) -> Any:
            error = driver.libvirtError("refused")
            error.err = (code, 10, "refused", 2, "", "", "", 0, 0)
            raise error

        value, found, _ = self.ask(monkeypatch, refuse)
        assert (value, found) == (({}, 0) if answered else (None, code))

"""The simulated kernel beyond the contract: its file, its faults, and the rules that no lab host can show."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import HOSTS, copy, original, state, unhurried
from vfioctl.binding.model.intents import BindIntent
from vfioctl.errors import BadDocument, BadSpec, Busy, HostError, KernelRefused, NotPermitted, Stuck
from vfioctl.host import Host
from vfioctl.kernel.protocol import DRIVERS_PROBE, PCI_DEVICES, PCI_DRIVERS, Unanswered, per_subject
from vfioctl.kernel.recorded.bundled import bundled_hosts
from vfioctl.kernel.recorded.host import Recorded, read_tree
from vfioctl.kernel.recorded.tree import Node, Tree, form, parse
from vfioctl.kernel.simulated.faults import DIE, HANG, HANG_THEN_RETURN, SLOW, Fault, SimulatedDeath, parse_fault
from vfioctl.kernel.simulated.files import replace, reset_simulated, simulated_file
from vfioctl.kernel.simulated.groups import driver_of
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kernel.timeouts import Timeouts

GPU, AUDIO = "0000:0a:00.0", "0000:0a:00.1"


def simulated(name: str = "workstation", *faults: Fault) -> Simulated:
    return Simulated(copy(original(name)), name, faults=faults)


def refusal(kernel: Simulated, path: str, value: str) -> str:
    with pytest.raises(KernelRefused) as caught:
        kernel.write(path, value)
    return caught.value.symbol


def driver(kernel: Simulated, address: str) -> str | None:
    found = driver_of(kernel.tree, kernel.tree.resolve(f"{PCI_DEVICES}/{address}"))
    return found.rpartition("/")[2] if found else None


def to_vfio(kernel: Simulated, address: str) -> None:
    kernel.load("vfio-pci")
    kernel.write(f"{PCI_DEVICES}/{address}/driver_override", "vfio-pci")
    if now := driver(kernel, address):
        kernel.write(f"{PCI_DRIVERS}/{now}/unbind", address)


class TestRules:
    def test_a_physical_function_with_live_vfs_is_busy_for_vfio(self) -> None:
        kernel, pf = simulated("mi300x"), "0000:e5:00.0"
        to_vfio(kernel, pf)
        assert refusal(kernel, f"{PCI_DRIVERS}/vfio-pci/bind", pf) == "EBUSY"
        assert refusal(kernel, DRIVERS_PROBE, pf) == "EINVAL"
        assert driver(kernel, pf) is None

    def test_a_device_in_no_group_is_refused_by_vfio(self) -> None:
        kernel, gpu = simulated("iommu-off"), "0000:01:00.0"
        to_vfio(kernel, gpu)
        assert refusal(kernel, f"{PCI_DRIVERS}/vfio-pci/bind", gpu) == "EINVAL"

    def test_loading_a_module_binds_the_devices_that_wait_for_it(self) -> None:
        kernel = simulated()
        for address in (GPU, AUDIO):
            kernel.write(f"{PCI_DEVICES}/{address}/driver_override", "vfio-pci")
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", GPU)
        kernel.load("vfio-pci")
        assert driver(kernel, GPU) == "vfio-pci"
        assert driver(kernel, AUDIO) == "snd_hda_intel"

    def test_loading_a_module_binds_nothing_without_autoprobe(self) -> None:
        kernel = simulated()
        kernel.write("/sys/bus/pci/drivers_autoprobe", "0")
        kernel.write(f"{PCI_DEVICES}/{GPU}/driver_override", "vfio-pci")
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", GPU)
        kernel.load("vfio-pci")
        assert driver(kernel, GPU) is None
        kernel.write("/sys/bus/pci/drivers_autoprobe", "1")
        assert kernel.read("/sys/bus/pci/drivers_autoprobe") == "1"

    def test_loading_a_module_passes_over_devices_that_it_cannot_have(self) -> None:
        kernel, pf = simulated("mi300x"), "0000:e5:00.0"
        kernel.tree.remove("/sys/module/vfio_pci")
        kernel.tree.remove(f"{PCI_DRIVERS}/vfio-pci")
        kernel.write(f"{PCI_DEVICES}/{pf}/driver_override", "vfio-pci")
        kernel.write(f"{PCI_DRIVERS}/gim/unbind", pf)
        kernel.load("vfio-pci")
        assert driver(kernel, pf) is None

    def test_a_driver_that_was_there_from_the_start_takes_its_device_again(self) -> None:
        for name in ("vmd-domain", "shared-group", "laptop"):
            kernel = simulated(name)
            for address in kernel.children(PCI_DEVICES):
                if native := driver(kernel, address):
                    kernel.write(f"{PCI_DRIVERS}/{native}/unbind", address)
                    kernel.write(DRIVERS_PROBE, address)
                    assert driver(kernel, address) == native, f"{name} {address}"

    def test_two_devices_on_vfio_have_device_nodes_of_their_own(self) -> None:
        kernel = simulated()
        for address in (GPU, AUDIO, "0000:0b:00.0"):
            to_vfio(kernel, address)
            kernel.write(DRIVERS_PROBE, address)
        names = [kernel.children(f"{PCI_DEVICES}/{address}/vfio-dev") for address in (GPU, AUDIO, "0000:0b:00.0")]
        assert names == [["vfio0"], ["vfio1"], ["vfio2"]]
        assert kernel.device_number("/dev/vfio/10") == Node("c", 243, 0)
        assert kernel.device_number("/dev/vfio/12") == Node("c", 243, 1)

    @pytest.mark.parametrize("value", [f"{GPU}\n\n", GPU.upper(), GPU[5:], f" {GPU}", f"{GPU}\0"])
    def test_an_address_is_taken_as_the_kernel_spells_it(self, value: str) -> None:
        assert refusal(simulated(), DRIVERS_PROBE, value) == "ENODEV"

    def test_a_device_whose_driver_is_not_asked_for_keeps_it(self) -> None:
        kernel = simulated()
        kernel.write(DRIVERS_PROBE, GPU)
        assert driver(kernel, GPU) == "nvidia"

    def test_what_no_driver_wants_stays_alone(self) -> None:
        kernel = simulated()
        kernel.write(f"{PCI_DEVICES}/{GPU}/driver_override", "none")
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", GPU)
        kernel.write(DRIVERS_PROBE, GPU)
        assert driver(kernel, GPU) is None

    def test_a_loop_of_links_is_refused(self) -> None:
        tree = copy(original("workstation"))
        tree.put_link(f"{PCI_DEVICES}/0000:ff:00.0", "0000:ff:00.0")
        with pytest.raises(KernelRefused) as caught:
            Simulated(tree, "")
        assert caught.value.symbol == "ELOOP"


class TestFaults:
    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("1:EBUSY", Fault(1, "errno", errno.EBUSY)),
            ("12:hang", Fault(12, HANG)),
            ("12:hang-then-return", Fault(12, HANG_THEN_RETURN)),
            ("3:die", Fault(3, DIE)),
            ("3:slow=2", Fault(3, SLOW, seconds=2.0)),
            ("3:slow=600.0", Fault(3, SLOW, seconds=600.0)),
            ("3:slow=0.125", Fault(3, SLOW, seconds=0.125)),
        ],
    )
    def test_are_written_in_one_word(self, text: str, fault: Fault) -> None:
        assert parse_fault(text) == fault

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "1",
            "EBUSY",
            "1:",
            "1:ENONE",
            "x:die",
            "1:die ",
            "-1:die",
            "1:ebusy",
            "9999999:die",
            "1:errorcode",
            "1:hang-then-",
            "1:slow",
            "1:slow=",
            "1:slow=600.1",
            "1:slow=-1",
            "1:slow=1e3",
            "1:slow=nan",
            "\u0661:die",
            "1:E" + "X" * 10_000,
        ],
    )
    def test_that_are_none_are_refused(self, text: str) -> None:
        with pytest.raises(BadSpec) as caught:
            parse_fault(text)
        assert len(caught.value.message) < 100

    def test_a_slow_write_is_done_in_the_end_and_others_read_meanwhile(self) -> None:
        kernel = simulated("workstation", Fault(1, SLOW, seconds=0.3))
        path = f"{PCI_DEVICES}/{GPU}/driver_override"
        before, began = kernel.read(path), time.monotonic()
        writing = Thread(target=kernel.write, args=(path, "vfio-pci"))
        writing.start()
        assert kernel.read(path) == before
        writing.join()
        assert time.monotonic() - began >= 0.3
        assert kernel.read(path) == "vfio-pci"

    def test_a_write_slower_than_its_timeout_is_given_up_and_returns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Simulated, "timeouts", Timeouts(0.05))
        kernel = simulated("workstation", Fault(1, SLOW, seconds=600.0))
        path = f"{PCI_DEVICES}/{GPU}/driver_override"
        with pytest.raises(Stuck) as caught:
            kernel.write(path, "vfio-pci")
        assert kernel.write_ended(str(caught.value.facts["ticket"])) == "returned"
        assert kernel.read(path) == "vfio-pci"

    def test_an_errno_comes_in_place_of_the_write(self) -> None:
        kernel = simulated("workstation", Fault(2, "errno", errno.EIO))
        path = f"{PCI_DEVICES}/{GPU}/driver_override"
        kernel.write(path, "one")
        assert refusal(kernel, path, "two") == "EIO"
        assert kernel.read(path) == "one"
        kernel.write(path, "three")
        assert kernel.read(path) == "three"

    def test_a_write_that_never_returns_is_stuck(self) -> None:
        kernel = simulated("workstation", Fault(1, HANG))
        with pytest.raises(Stuck, match="did not return") as caught:
            kernel.write(DRIVERS_PROBE, GPU)
        assert caught.value.next_command == "vfioctl recover"

    def test_death_may_be_told_of(self) -> None:
        told: list[str] = []
        kernel = Simulated(copy(original("workstation")), "", faults=[Fault(1, DIE)], die=lambda: told.append("dead"))
        with pytest.raises(SimulatedDeath):
            kernel.write(DRIVERS_PROBE, GPU)
        assert told == ["dead"]

    def test_death_comes_just_after_the_write(self) -> None:
        kernel, path = simulated("workstation", Fault(1, DIE)), f"{PCI_DEVICES}/{GPU}/driver_override"
        with pytest.raises(SimulatedDeath):
            kernel.write(path, "x")
        assert kernel.read(path) == "x"


class TestFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        file = tmp_path / "my.host"
        file.write_text((HOSTS / "workstation.host").read_text(encoding="utf-8"), encoding="utf-8")
        return file

    def test_what_is_written_is_there_for_the_next_one(self, file: Path) -> None:
        first, second = Simulated.at(file), Simulated.at(file)
        path = f"{PCI_DEVICES}/{GPU}/driver_override"
        first.write(path, "vfio-pci")
        assert second.read(path) == Simulated.at(file).read(path) == "vfio-pci"
        second.load("vfio-pci")
        assert first.has(f"{PCI_DRIVERS}/vfio-pci")
        assert (first.description, first.read_only, first.writable(path)) == ("simulated host my.host", "", True)

    def test_the_text_of_the_file_is_kept_but_for_what_changed(self, file: Path) -> None:
        before = file.read_text()
        Simulated.at(file).write(f"{PCI_DEVICES}/{GPU}/driver_override", "x")
        old, new = set(before.split("\n")), set(file.read_text().split("\n"))
        assert len(old - new) == 1
        assert [line.rpartition("/")[2] for line in new - old if not line.startswith("sim:")] == ["driver_override = x"]

    def test_a_refused_write_leaves_the_file_alone(self, file: Path) -> None:
        kernel, before = Simulated.at(file), file.stat()
        assert refusal(kernel, f"{PCI_DRIVERS}/vfio-pci/bind", GPU) == "ENOENT"
        assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    def test_death_is_real_and_leaves_a_whole_file(self, file: Path) -> None:
        program = (
            "import sys\nfrom pathlib import Path\nfrom vfioctl.kernel.simulated.host import Simulated\n"
            "from vfioctl.kernel.simulated.faults import Fault\n"
            "Simulated.at(Path(sys.argv[1]), faults=[Fault(1, 'die')]).write(sys.argv[2], 'x')\n"
        )
        path = f"{PCI_DEVICES}/{GPU}/driver_override"
        done = subprocess.run([sys.executable, "-c", program, str(file), path], cwd=HOSTS.parents[1], check=False)
        assert done.returncode == 137
        assert Simulated.at(file).read(path) == "x"

    def test_a_file_that_cannot_be_replaced_stays_as_it_was(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = file.read_text()

        def full(old: str, new: str, **directories: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            replace(file, "new")
        with pytest.raises(NotPermitted, match="cannot be written: No space"):
            Simulated.at(file).write(f"{PCI_DEVICES}/{GPU}/driver_override", "x")
        assert file.read_text() == before
        assert not [name for name in os.listdir(file.parent) if name.startswith(".")]

    def test_a_replaced_file_can_be_read_by_all(self, file: Path) -> None:
        replace(file, "x")
        assert stat.S_IMODE(file.stat().st_mode) == 0o644

    def test_a_file_that_has_gone_is_a_bad_document(self, file: Path) -> None:
        kernel = Simulated.at(file)
        file.unlink()
        with pytest.raises(BadDocument):
            kernel.read(DRIVERS_PROBE)

    def test_the_hosts_lock_is_held_by_one(self, file: Path, tmp_path: Path) -> None:
        lock = tmp_path / "lock"
        first, second = Simulated.at(file), Simulated.at(file)
        waits: list[str] = []
        with (
            first.exclusive(lock, wait=0, waiting=lambda: waits.append("first")),
            pytest.raises(Busy),
            second.exclusive(lock, wait=0, waiting=lambda: waits.append("second")),
        ):
            pytest.fail("held twice")
        assert waits == ["second"]
        with simulated().exclusive(lock, wait=0), simulated().exclusive(lock, wait=0):
            pass  # in memory there is nobody else


class TestBundledHosts:
    def test_each_can_be_had_by_name(self) -> None:
        assert {"hgx8", "workstation", "laptop"} <= set(bundled_hosts())
        for name in bundled_hosts():
            assert Host.recorded(name).inventory().functions

    def test_a_simulated_one_is_a_copy_that_lasts(self) -> None:
        first = Host.simulated("laptop")
        file = simulated_file("laptop")
        assert file.is_relative_to(os.environ["XDG_STATE_HOME"])
        first.apply(first.binding.plan_bind(["01:00.0"]))
        second = Host.simulated("laptop")
        assert second.inventory().by_address == first.inventory().by_address
        intent = second.history()[0].plan.intent
        assert isinstance(intent, BindIntent)
        assert intent.devices == ("0000:01:00.0",)
        assert state(read_tree(HOSTS / "laptop.host")) == state(original("laptop"))

    def test_a_simulated_one_can_be_put_back_to_its_start(self) -> None:
        host = Host.simulated("laptop")
        host.apply(host.binding.plan_bind(["01:00.0"]))
        reset_simulated("laptop")
        fresh = Host.simulated("laptop")
        assert fresh.history() == ()
        assert fresh.inventory() == Host.recorded("laptop").inventory()

    @pytest.mark.parametrize("name", ["no-such-host", "hgx", "x" * 64])
    def test_an_unknown_name_says_which_there_are(self, name: str) -> None:
        for make in (Host.recorded, Host.simulated):
            with pytest.raises(BadDocument, match="no bundled host") as caught:
                make(name)
            assert "workstation" in caught.value.hint

    @pytest.mark.parametrize("name", ["../laptop", "./none.host", "", "x" * 65])
    def test_what_is_no_name_is_a_file(self, name: str) -> None:
        with pytest.raises(BadDocument, match="cannot be read"):
            Host.recorded(name)

    def test_without_the_hosts_there_are_none(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("vfioctl.kernel.recorded.bundled._PACKAGE", tmp_path / "vfioctl")
        assert bundled_hosts() == {}

    def test_a_state_folder_that_cannot_be_written_is_named(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
        with pytest.raises(NotPermitted, match="cannot be written") as caught:
            Host.simulated("laptop")
        assert "XDG_STATE_HOME" in caught.value.hint

    def test_faults_can_be_asked_for_in_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", "1:EIO,2:EBUSY")
        with pytest.raises(KernelRefused) as caught:
            Host.simulated("laptop").session.kernel.write(DRIVERS_PROBE, "0000:01:00.0")
        assert caught.value.symbol == "EIO"

    def test_a_module_that_nobody_has_cannot_be_loaded(self) -> None:
        with pytest.raises(HostError, match="could not be loaded"):
            simulated().load("no-such-module")


WRITES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                DRIVERS_PROBE,
                *(f"{PCI_DRIVERS}/{name}" for name in ("nvidia/unbind", "vfio-pci/bind", "vfio-pci/unbind")),
                f"{PCI_DRIVERS}/snd_hda_intel/bind",
                *(f"{PCI_DEVICES}/{address}/driver_override" for address in (GPU, AUDIO)),
            ]
        ),
        st.sampled_from([GPU, AUDIO, "vfio-pci", "nvidia", "\n", "", "none", "snd_hda_intel"]),
    ),
    max_size=15,
)


@unhurried
@given(WRITES)
def test_whatever_is_written_the_tree_stays_one_that_linux_could_show(writes: list[tuple[str, str]]) -> None:
    kernel = simulated()
    kernel.load("vfio-pci")
    for path, value in writes:
        try:
            kernel.write(path, value)
        except KernelRefused:
            continue
    tree: Tree = kernel.tree
    for address in kernel.children(PCI_DEVICES):
        now = driver(kernel, address)
        holders = [d for d in kernel.children(PCI_DRIVERS) if address in kernel.children(f"{PCI_DRIVERS}/{d}")]
        assert holders == ([now] if now else [])
        assert kernel.has(f"{PCI_DEVICES}/{address}/vfio-dev") == (now == "vfio-pci")
    on_vfio = any(driver(kernel, address) == "vfio-pci" for address in (GPU, AUDIO))
    assert ("/dev/vfio/10" in tree.nodes) == on_vfio
    assert form(parse(form(tree), "again")) == form(tree)


@pytest.mark.parametrize("kind", [Recorded, Simulated])
def test_a_function_may_never_answer(kind: type[Recorded]) -> None:
    host = kind(copy(original("laptop")), "x")
    first, second = host.children(PCI_DEVICES)[:2]
    host.tree.properties[f"sim:{first}"] = {"unanswered": "1"}
    assert dict(host.survey(existing, [first, second])) == {first: Unanswered("no answer in 2 s"), second: second}


@per_subject
def existing(_: object, subject: str) -> str:
    return subject

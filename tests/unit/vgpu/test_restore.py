"""After a boot: what counts of the ledger, and `vfioctl vgpu restore`, which makes again what was kept."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import memory
from tests.hosts.machines import copy, original
from tests.hosts.vgpu_machines import (
    L40S,
    LIMITER,
    MDEVS,
    UUIDS,
    XE,
    BootableHost,
    beginning,
    create,
    differing,
    ours,
    remove_all,
    rows,
    vfs,
)
from tests.unit.binding.test_cli import at_a_terminal
from tests.unit.conftest import Answer, Run
from vfioctl.core.change import Plan
from vfioctl.errors import BadDocument, DeviceInUse, DeviceMissing, Stuck
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree, form
from vfioctl.kernel.simulated.faults import HANG, Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.vgpu.model.persistent import vfs_text

HERE, DEFINITIONS = "/etc/vfioctl/vgpu.d", "/etc/mdevctl.d"
FIRST, SECOND, THIRD = "0000:41:00.4", "0000:41:00.5", "0000:41:00.6"


def type_file(vf: str) -> str:
    return f"{PCI_DEVICES}/{vf}/nvidia/current_vgpu_type"


def restored(run: Run, machine: BootableHost, *words: str) -> Answer:
    return run("vgpu restore --simulate", str(machine.file), *words)


def made(answer: Answer) -> list[str]:
    """What each of the changes was about, in their order."""
    return [change["subject"] for each in answer.document["outcomes"] for change in each["plan"]["changes"][:1]]


def without_vfs(host_name: str, address: str) -> Tree:
    tree = copy(beginning(host_name))
    Simulated(tree, "").manage_vfs(address, on=False)
    return tree


def three_kept(host: Host) -> Plan:
    return host.vgpu.plan_create("L40S-12Q", count=3, parameters=LIMITER, persistent=True)


@pytest.fixture(scope="module")
def first_cut() -> Iterator[BootableHost]:
    with memory() as folder:
        machine = BootableHost(folder, without_vfs("l40s", L40S))
        machine.does(vfs(L40S, None, persistent=True), three_kept)
        yield machine


@pytest.fixture
def cut(first_cut: BootableHost, fast_folder: Path) -> BootableHost:
    """An L40S whose VFs, and three vGPUs on them, are kept."""
    return first_cut.twin(fast_folder)


@pytest.fixture(scope="module")
def first_mediated() -> Iterator[BootableHost]:
    with memory() as folder:
        machine = BootableHost(folder, copy(beginning("t4")))
        kept = create("T4-4C", UUIDS[:2], count=2, parameters=LIMITER, persistent=True)
        machine.does(kept, create("T4-4C", UUIDS[2:3]))
        yield machine


@pytest.fixture
def mediated(first_mediated: BootableHost, fast_folder: Path) -> BootableHost:
    """A T4 with two vGPUs that are kept, and one that is not."""
    return first_mediated.twin(fast_folder)


# -- the ledger ------------------------------------------------------------------------------------------


class TestWhatCountsOfTheLedger:
    def test_what_was_not_kept_is_forgotten(self, mediated: BootableHost) -> None:
        assert set(rows(mediated.host)) == set(UUIDS[:3])
        mediated.boots()
        assert set(rows(mediated.host)) == set(UUIDS[:2])
        assert ours(mediated.host) == set()

    def test_one_like_it_that_somebody_makes_after_a_boot_is_foreign(self, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, beginning("l40s"))
        machine.does(create("L40S-12Q"))
        assert ours(machine.host) == {FIRST}
        machine.boots()
        machine.other(type_file(FIRST), "1153")
        assert ours(machine.host) == set()

    def test_one_that_is_kept_is_ours_whoever_starts_it(self, mediated: BootableHost) -> None:
        mediated.boots()
        mediated.other("/sys/class/mdev_bus/0000:3b:00.0/mdev_supported_types/nvidia-319/create", UUIDS[0])
        assert ours(mediated.host) == {UUIDS[0]}

    def test_one_of_another_type_in_the_place_of_a_kept_one_is_foreign(self, cut: BootableHost) -> None:
        cut.boots()
        Simulated.at(cut.file).manage_vfs(L40S, on=True)
        cut.other(type_file(FIRST), "1163")
        assert ours(cut.host) == set()

    def test_a_change_after_the_boot_forgets_the_old_rows_and_not_the_kept(self, mediated: BootableHost) -> None:
        mediated.boots()
        mediated.does(create("T4-4C", UUIDS[3:4]))
        assert set(rows(mediated.host)) == {*UUIDS[:2], UUIDS[3]}


# -- all of it -------------------------------------------------------------------------------------------


class TestAll:
    def test_is_made_again_as_it_was_vfs_first(self, cut: BootableHost, run: Run) -> None:
        before, owned = cut.all_but_boot(), rows(cut.host)
        cut.boots()
        answer = restored(run, cut, "--json")
        assert answer.code == 0, answer.err
        assert made(answer) == [L40S, FIRST, SECOND, THIRD]
        assert differing(cut.all_but_boot(), before) == []
        assert rows(cut.host) == owned
        assert ours(cut.host) == {FIRST, SECOND, THIRD}

    def test_is_made_once(self, cut: BootableHost, run: Run) -> None:
        cut.boots()
        restored(run, cut)
        before = form(cut.tree)
        answer = restored(run, cut, "--json")
        assert (answer.code, answer.document["outcomes"]) == (0, [])
        assert form(cut.tree) == before

    def test_a_dry_run_is_saved_and_applied(self, mediated: BootableHost, run: Run, tmp_path: Path) -> None:
        before = mediated.tree.directories[MDEVS] - {UUIDS[2]}
        mediated.boots()
        file = tmp_path / "plans.json"
        file.write_text(restored(run, mediated, "--dry-run", "--json").out)
        answer = run(f"apply {file} --json --simulate", str(mediated.file))
        assert answer.code == 0, answer.err
        assert made(answer) == [*UUIDS[:2]]
        assert mediated.tree.directories[MDEVS] == before
        again = run(f"apply {file} --json --simulate", str(mediated.file))
        assert again.code != 0, "each of them exists"
        file.write_text(restored(run, mediated, "--dry-run", "--json").out)
        assert run(f"apply {file} --simulate", str(mediated.file)).out == "Nothing to do.\n"

    def test_mediated_devices_with_their_parameters_and_no_others(self, mediated: BootableHost, run: Run) -> None:
        mediated.boots()
        assert restored(run, mediated).code == 0
        assert mediated.tree.directories[MDEVS] == set(UUIDS[:2])
        for uuid in UUIDS[:2]:
            assert Simulated(mediated.tree, "").read(f"{MDEVS}/{uuid}/nvidia/vgpu_params") == "frame_rate_limiter=0"
        assert ours(mediated.host) == set(UUIDS[:2])

    @pytest.mark.parametrize("which", ["first_cut", "first_mediated"])
    def test_and_again_after_the_next_boot(
        self, request: pytest.FixtureRequest, fast_folder: Path, run: Run, which: str
    ) -> None:
        machine = request.getfixturevalue(which).twin(fast_folder)
        kept = {name: row for name, row in rows(machine.host).items() if row[1]}
        for _ in range(2):
            machine.boots()
            assert restored(run, machine).code == 0
            assert rows(machine.host) == kept
            assert ours(machine.host) == set(kept) - {L40S}

    def test_a_dry_run_makes_nothing(self, mediated: BootableHost, run: Run) -> None:
        mediated.boots()
        before = form(mediated.tree)
        answer = restored(run, mediated, "--dry-run")
        assert answer.code == 0
        assert all(uuid in answer.out for uuid in UUIDS[:2])
        assert form(mediated.tree) == before

    def test_on_a_terminal_it_asks(self, mediated: BootableHost) -> None:
        mediated.boots()
        line = ("vgpu", "restore", "--simulate", str(mediated.file))
        code, out, shown = at_a_terminal("n\n", *line)
        assert (code, out) == (1, "")
        assert all(uuid in shown for uuid in UUIDS[:2])
        code, out, _ = at_a_terminal("y\n", *line)
        assert code == 0
        assert all(uuid in out for uuid in UUIDS[:2])
        code, out, shown = at_a_terminal("", *line)
        assert (code, "Continue?" in shown) == (0, False), "nothing is missing"

    def test_what_was_removed_stays_away(self, cut: BootableHost, run: Run) -> None:
        cut.does(remove_all)
        cut.boots()
        assert made(restored(run, cut, "--json")) == [L40S]

    def test_an_order_to_remove_that_a_boot_cut_short_is_taken_back(self, mediated: BootableHost, run: Run) -> None:
        host = Host.simulated(str(mediated.file), faults=[Fault(3, HANG)])
        with pytest.raises(Stuck):
            host.apply(host.vgpu.plan_remove(list(UUIDS[:2])))
        assert not mediated.host.vgpu.persistent()
        mediated.boots()
        assert restored(run, mediated).code == 0
        assert ours(mediated.host) == set(UUIDS[:2])


class TestWhatIsThere:
    def test_one_that_mdevctl_has_started_is_left_and_is_ours(self, mediated: BootableHost, run: Run) -> None:
        mediated.boots()
        mediated.other("/sys/class/mdev_bus/0000:3b:00.0/mdev_supported_types/nvidia-319/create", UUIDS[0])
        answer = restored(run, mediated, "--json")
        assert (answer.code, made(answer)) == (0, [UUIDS[1]])
        assert ours(mediated.host) == set(UUIDS[:2])

    def test_a_definition_that_was_changed_since_is_taken_as_it_is(self, mediated: BootableHost, run: Run) -> None:
        path = f"{DEFINITIONS}/0000:3b:00.0/{UUIDS[0]}"
        text = json.dumps(
            {"attrs": [{"nvidia/vgpu_params": "enable_profiling=1"}], "mdev_type": "nvidia-318", "start": "auto"}
        )
        text = text.replace("nvidia-318", "nvidia-226")  # T4-2A has another size
        mediated.boots()
        mediated.edit(lambda tree: tree.put(path, text))
        mediated.edit(lambda tree: tree.remove(f"{DEFINITIONS}/0000:3b:00.0/{UUIDS[1]}"))
        answer = restored(run, mediated)
        assert answer.code == 0, answer.err
        kernel = Simulated(mediated.tree, "")
        assert kernel.link(f"{MDEVS}/{UUIDS[0]}/mdev_type").endswith("/nvidia-226")
        assert kernel.read(f"{MDEVS}/{UUIDS[0]}/nvidia/vgpu_params") == "enable_profiling=1"
        assert kernel.read(path) == text, "and it stays as it is"
        assert ours(mediated.host) == {UUIDS[0]}

    @pytest.mark.parametrize("start", ["manual", "never"])
    def test_one_that_is_not_to_start_by_itself_does_not(self, mediated: BootableHost, run: Run, start: str) -> None:
        path = f"{DEFINITIONS}/0000:3b:00.0/{UUIDS[0]}"
        mediated.boots()
        mediated.edit(lambda tree: tree.put(path, tree.files[path].replace('"auto"', f'"{start}"')))
        assert made(restored(run, mediated, "--json")) == [UUIDS[1]]

    def test_definitions_that_others_wrote_are_left_to_them(self, run: Run, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, beginning("a2"))
        assert any(path.startswith(DEFINITIONS) for path in machine.tree.files)
        answer = restored(run, machine, "--json")
        assert (answer.code, answer.document["outcomes"]) == (0, [])

    def test_vfs_in_another_number_are_left_alone(self, run: Run, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, beginning("xe"))
        machine.does(vfs(XE, 2, persistent=True), vfs(XE, 3))
        before = form(machine.tree)
        with pytest.raises(DeviceInUse, match="has 3 VFs already, but 2 are persistent"):
            machine.host.vgpu.plan_persistent(f"{HERE}/{XE}.json")
        assert restored(run, machine).code == 4
        assert form(machine.tree) == before


# -- what fails ------------------------------------------------------------------------------------------


class TestOneThatFails:
    def test_keeps_no_other_from_being_made_and_stays_kept(self, cut: BootableHost, run: Run) -> None:
        cut.boots()
        Simulated.at(cut.file).manage_vfs(L40S, on=True)
        cut.other(type_file(SECOND), "1163")
        answer = restored(run, cut)
        assert answer.code == 4
        assert f"{HERE}/{SECOND}.json: " in answer.err
        assert ours(cut.host) == {FIRST, THIRD}
        cut.other(type_file(SECOND), "0")
        assert made(restored(run, cut, "--json")) == [SECOND]
        assert ours(cut.host) == {FIRST, SECOND, THIRD}

    def test_in_the_kernel_stays_kept_too(
        self, mediated: BootableHost, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mediated.boots()
        monkeypatch.setenv("VFIOCTL_FAULTS", "1:EIO")
        answer = restored(run, mediated)
        assert answer.code == 4
        assert UUIDS[0] in answer.err
        assert ours(mediated.host) == {UUIDS[1]}
        assert set(rows(mediated.host)) == set(UUIDS[:2]), "the first is still to be made at the next boot"
        monkeypatch.delenv("VFIOCTL_FAULTS")
        assert made(restored(run, mediated, "--json")) == [UUIDS[0]]

    def test_because_its_card_has_gone_is_told(self, mediated: BootableHost, run: Run) -> None:
        mediated.boots()
        for name, wish in ((L40S, {"vfs": 32}), (FIRST, {"type": "1153"})):
            mediated.add(f"{HERE}/{name}.json", json.dumps({"device": name, "card": L40S, **wish}))
        answer = restored(run, mediated)
        assert answer.code == 2
        assert f"{HERE}/{L40S}.json: there is no device {L40S} here" in answer.err
        assert f"{HERE}/{FIRST}.json: " in answer.err
        assert ours(mediated.host) == set(UUIDS[:2])

    def test_the_exit_code_is_the_first_ones(self, cut: BootableHost, run: Run) -> None:
        cut.boots()
        cut.edit(lambda tree: tree.put(f"{HERE}/{THIRD}.json", "{"))
        Simulated.at(cut.file).manage_vfs(L40S, on=True)
        cut.other(type_file(FIRST), "1163")
        answer = restored(run, cut)
        assert answer.code == 4
        assert "2 could not be created again" in answer.err
        assert ours(cut.host) == {SECOND}

    def test_what_this_boot_left_undone_is_left_to_recover(self, mediated: BootableHost, run: Run) -> None:
        mediated.boots()
        host = Host.simulated(str(mediated.file), faults=[Fault(1, HANG)])
        with pytest.raises(Stuck):
            host.apply(host.vgpu.plan_create("T4-4C", uuids=(UUIDS[7],)))
        answer = restored(run, mediated)
        assert answer.code == 0
        assert len(mediated.host.unfinished()) == 1
        assert set(UUIDS[:2]) <= ours(mediated.host)


def test_one_that_is_not_there_can_be_kept_no_longer(cut: BootableHost, run: Run) -> None:
    cut.boots()
    answer = run("vgpu remove --simulate", str(cut.file), FIRST)
    assert answer.code == 0, answer.err
    assert f"{HERE}/{FIRST}.json" not in cut.tree.files
    restored(run, cut)
    assert FIRST not in ours(cut.host)


DAMAGED = [
    "",
    "{",
    "[]",
    '"x"',
    "\\u0000",
    '{"version": 2, "device": "0000:41:00.5", "card": "0000:41:00.0", "vfs": 1}',
    '{"device": "0000:41:00.5", "card": "0000:41:00.0"}',
    '{"device": "0000:41:00.5", "card": "0000:41:00.0", "vfs": 1, "type": "1153"}',
    '{"device": "0000:41:00.6", "card": "0000:41:00.0", "type": "1153"}',
    '{"device": "0000:41:00.5", "card": "0000:41:00.0", "type": "1153", "then": "rm"}',
    '{"device": "../../x", "card": "0000:41:00.0", "type": "1153"}',
    "[" * 5000,
]


class TestADamagedFile:
    @pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
    def test_costs_itself_only(self, cut: BootableHost, run: Run, text: str) -> None:
        path = f"{HERE}/{SECOND}.json"
        cut.boots()
        cut.edit(lambda tree: tree.put(path, text))
        assert cut.host.vgpu.persistent() == (
            f"{HERE}/{L40S}.json",
            f"{HERE}/{FIRST}.json",
            f"{HERE}/{THIRD}.json",
            path,
        )
        with pytest.raises(BadDocument, match=path):
            cut.host.vgpu.plan_persistent(path)
        answer = restored(run, cut)
        assert answer.code == 2
        assert path in answer.err
        assert ours(cut.host) == {FIRST, THIRD}

    def test_that_cannot_be_read_costs_itself_only(self, cut: BootableHost, run: Run) -> None:
        path = f"{HERE}/{SECOND}.json"
        cut.boots()

        def hide(tree: Tree) -> None:
            tree.remove(path)
            tree.put_refused(path, errno.EIO)

        cut.edit(hide)
        answer = restored(run, cut)
        assert (answer.code, f"{path}: EIO" in answer.err) == (2, True)
        assert ours(cut.host) == {FIRST, THIRD}

    def test_with_a_parameter_that_no_vf_has_costs_itself_only(self, cut: BootableHost, run: Run) -> None:
        path = f"{HERE}/{SECOND}.json"
        cut.boots()
        cut.edit(lambda tree: tree.put(path, tree.files[path].replace("nvidia/vgpu_params", "../../../etc/passwd")))
        assert "../../../etc/passwd" in cut.tree.files[path]
        answer = restored(run, cut)
        assert answer.code == 2
        assert ours(cut.host) == {FIRST, THIRD}

    def test_of_the_vfs_costs_those_on_them_too(self, cut: BootableHost, run: Run) -> None:
        cut.boots()
        cut.edit(lambda tree: tree.put(f"{HERE}/{L40S}.json", "{"))
        assert restored(run, cut).code == 2
        assert ours(cut.host) == set()

    @pytest.mark.parametrize("text", ["{", "[]", '{"mdev_type": 5}', '{"mdev_type": "nvidia-319", "attrs": 5}'])
    def test_of_mdevctls_is_told_where_it_is_ours(self, mediated: BootableHost, run: Run, text: str) -> None:
        home = f"{DEFINITIONS}/0000:3b:00.0"
        mediated.boots()
        mediated.edit(lambda tree: tree.put(f"{home}/{UUIDS[0]}", text))
        mediated.edit(lambda tree: tree.put(f"{home}/{UUIDS[8]}", text))
        answer = restored(run, mediated)
        assert answer.code == 2
        assert UUIDS[0] in answer.err
        assert UUIDS[8] not in answer.err
        assert ours(mediated.host) == {UUIDS[1]}


# -- waiting ---------------------------------------------------------------------------------------------


class TestWaiting:
    def test_tries_again_until_the_driver_is_there(
        self, cut: BootableHost, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cut.boots()
        path, pauses = f"{HERE}/{L40S}.json", []
        cut.edit(lambda tree: tree.remove(path))  # somebody else makes the VFs

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                Simulated.at(cut.file).manage_vfs(L40S, on=True)

        monkeypatch.setattr("vfioctl.core.restoring.time.sleep", pause)
        answer = restored(run, cut, "--wait", "60s", "--json")
        assert (answer.code, len(pauses)) == (0, 3)
        assert made(answer) == [FIRST, SECOND, THIRD]

    def test_is_not_for_what_no_waiting_helps(
        self, cut: BootableHost, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cut.boots()
        cut.edit(lambda tree: tree.put(f"{HERE}/{SECOND}.json", "{"))
        monkeypatch.setattr("vfioctl.core.restoring.time.sleep", lambda _: pytest.fail("it waited"))
        assert restored(run, cut, "--wait", "60s").code == 2
        assert ours(cut.host) == {FIRST, THIRD}

    def test_for_one_keeps_no_other_waiting(self, cut: BootableHost, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        cut.boots()
        Simulated.at(cut.file).manage_vfs(L40S, on=True)
        cut.other(type_file(FIRST), "1163")
        seen: list[set[str]] = []

        def pause(_: float) -> None:
            seen.append(ours(cut.host))
            cut.other(type_file(FIRST), "0")

        monkeypatch.setattr("vfioctl.core.restoring.time.sleep", pause)
        assert restored(run, cut, "--wait", "60s").code == 0
        assert seen == [{SECOND, THIRD}]
        assert ours(cut.host) == {FIRST, SECOND, THIRD}


def test_another_device_at_the_address_gets_no_vfs(fast_folder: Path) -> None:
    """As after a card was added, and the kernel numbered the buses anew."""
    machine = BootableHost(fast_folder, copy(original("laptop")))
    machine.does(vfs("0000:00:02.0", 2, persistent=True))
    file = f"{HERE}/0000:00:02.0.json"
    machine.add(file, machine.tree.files[file].replace('"identity": "8086:46a6', '"identity": "8086:9999'))
    machine.boots()
    ((failed, error),) = machine.host.persist.restore().failures.items()
    assert failed == file
    assert isinstance(error, DeviceMissing)
    assert "another device than when" in error.message
    assert machine.host.session.kernel.read(f"{PCI_DEVICES}/0000:00:02.0/sriov_numvfs") == "0"


def test_a_definition_of_an_earlier_release_has_no_identity(fast_folder: Path) -> None:
    machine = BootableHost(fast_folder, copy(original("laptop")))
    machine.does(vfs("0000:00:02.0", 2, persistent=True))
    machine.add(f"{HERE}/0000:00:02.0.json", vfs_text(PciAddress("0000:00:02.0"), 2))
    machine.boots()
    assert not machine.host.persist.restore().failures
    assert machine.host.session.kernel.read(f"{PCI_DEVICES}/0000:00:02.0/sriov_numvfs") == "2"

"""Which GPUs MPS takes, which it refuses and why, and that a fault at each step leaves *before* or *after*."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, differing, machine, reduced, state
from vfioctl.core.change import JournalState, Plan, Result
from vfioctl.errors import BadSpec, ClaimConflict, DeviceInUse, HostError, Stuck, UnknownDevice, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.sharing.mps.api import MpsApi

GPU, OTHER = FOUR_GPUS[:2]
GIB = 1 << 30


@pytest.fixture
def tree() -> Tree:
    return copy(reduced("hgx8", *FOUR_GPUS))


def start(host: Host) -> Plan:
    return MpsApi(host.session).plan_start(GPU, threads=40, memory=2 * GIB)


def stop(host: Host) -> Plan:
    return MpsApi(host.session).plan_stop()


def correct(host: Host) -> Plan:
    return MpsApi(host.session).plan_apply([GPU], threads=70, memory=4 * GIB)


class TestRefused:
    """With the reason, before anything is planned."""

    def test_in_mig_mode(self, tree: Tree, tmp_path: Path) -> None:
        tree.properties[f"nvml:{GPU}"]["mig_mode"] = "1"
        with pytest.raises(HostError, match="is in MIG mode"):
            start(machine(tree, tmp_path / "ledger.db"))

    def test_that_went_into_mig_mode_since(self, tree: Tree, tmp_path: Path) -> None:
        host = machine(tree, tmp_path / "ledger.db")
        host.apply(start(host))
        tree.properties[f"nvml:{GPU}"]["mig_mode"] = "1"
        with pytest.raises(HostError, match="is in MIG mode"):
            correct(host)
        host.apply(stop(host))

    def test_bound_for_guests(self, tree: Tree, tmp_path: Path) -> None:
        host = machine(tree, tmp_path / "ledger.db")
        host.apply(host.binding.plan_bind([GPU]))
        with pytest.raises(HostError, match="is bound for guests") as caught:
            start(host)
        assert caught.value.next_command == f"vfioctl unbind {GPU}"

    def test_that_was_bound_for_guests_since(self, tree: Tree, tmp_path: Path) -> None:
        host = machine(tree, tmp_path / "ledger.db")
        host.apply(start(host))
        host.apply(host.binding.plan_bind([GPU]))
        (difference,) = MpsApi(host.session).status().differences
        assert difference.words.startswith(f"{GPU} is with vfio-pci, and not with NVIDIA's driver")
        assert difference.remedy == f"vfioctl mps stop {GPU}"
        with pytest.raises(HostError, match="is bound for guests"):
            correct(host)
        host.apply(stop(host))
        assert not MpsApi(host.session).status().daemons

    def test_of_a_claim(self, tree: Tree, tmp_path: Path) -> None:
        host = machine(tree, tmp_path / "ledger.db")
        made = host.claims.create(ClaimRequest(owner="user/a", devices=(PciAddress(GPU),)))
        with pytest.raises(ClaimConflict, match=f"belongs to claim {made.claim.id}"):
            start(host)

    def test_without_nvml(self, tree: Tree, tmp_path: Path) -> None:
        tree.properties["sim:nvml"] = {"error": "the library is missing"}
        with pytest.raises(HostError, match=r"cannot be shared by MPS: .*the library is missing"):
            start(machine(tree, tmp_path / "ledger.db"))

    @pytest.mark.parametrize("uuid", ["", "GPU-1", "GPU-x\nLD_PRELOAD=/tmp/x", "MIG-1"])
    def test_with_an_odd_uuid(self, tree: Tree, tmp_path: Path, uuid: str) -> None:
        """It would be a line of the unit's environment."""
        tree.properties[f"nvml:{GPU}"]["uuid"] = uuid
        with pytest.raises(HostError, match="cannot be shared by MPS"):
            start(machine(tree, tmp_path / "ledger.db"))

    @pytest.mark.parametrize("threads", [0, 101])
    def test_limits(self, tree: Tree, tmp_path: Path, threads: int) -> None:
        with pytest.raises(BadSpec):
            MpsApi(machine(tree, tmp_path / "ledger.db").session).plan_start(GPU, threads=threads)

    def test_other_devices(self, tree: Tree, tmp_path: Path) -> None:
        host = machine(tree, tmp_path / "ledger.db")
        with pytest.raises(UnknownDevice):
            MpsApi(host.session).plan_start("0000:ff:00.0")
        with pytest.raises(UnknownDevice, match="has no MPS daemon"):
            MpsApi(host.session).plan_stop([OTHER])

    def test_a_claims_daemon_beside_another(self, tree: Tree, tmp_path: Path) -> None:
        host = machine(tree, tmp_path / "ledger.db")
        host.apply(start(host))
        made = host.claims.create(ClaimRequest(owner="user/a", devices=(PciAddress(GPU),), cores=40))
        with pytest.raises(DeviceInUse, match="has an MPS daemon already, for all claims"):
            MpsApi(host.session).plan_start(GPU, claim=made.claim.id)

    def test_a_plan_that_was_overtaken(self, tree: Tree, tmp_path: Path) -> None:
        host = machine(tree, tmp_path / "ledger.db")
        plan = start(host)
        tree.properties[f"nvml:{GPU}"]["compute_mode"] = "Prohibited"
        with pytest.raises(VfioctlError, match="changed after the plan was made"):
            host.apply(plan)


class TestStop:
    def test_is_refused_while_nvml_does_not_report_the_mode(self, tree: Tree, tmp_path: Path) -> None:
        """Nobody would set it back afterwards."""
        host = machine(tree, tmp_path / "ledger.db")
        host.apply(start(host))
        mode = tree.properties[f"nvml:{GPU}"].pop("compute_mode")
        with pytest.raises(HostError, match=r"does not report the compute mode of .*, which was Default before"):
            stop(host)
        forced = MpsApi(host.session).plan_stop(force=True)
        assert any("left as it is: it is unknown" in note for note in forced.notes)
        tree.properties[f"nvml:{GPU}"]["compute_mode"] = mode
        host.apply(stop(host))
        assert tree.properties[f"nvml:{GPU}"]["compute_mode"] == "Default"


def test_a_change_of_a_silent_daemon_is_rolled_back(tree: Tree, tmp_path: Path) -> None:
    """Nothing makes it silent again: it is started where it was ended, and all else is as before."""
    begun = machine(tree, tmp_path / "begun.db")
    begun.apply(start(begun))
    (name,) = (name for name in tree.properties if name.startswith("sim:mps:"))
    del tree.properties[name]  # its unit is active, and nobody answers
    (daemon,) = MpsApi(begun.session).status().daemons
    assert daemon.state == "silent"
    effects = 0
    for at in range(1, 12):
        twin = copy(tree)
        host = machine(twin, tmp_path / f"{at}.db", faults=[Fault(at, "errno", errno.EIO)])
        plan = MpsApi(host.session).plan_stop(force=True)
        try:
            host.apply(plan)
        except VfioctlError:
            effects += 1
            assert host.session.entries()[0].state is JournalState.BACK, f"effect {at}"
            assert [path for path in twin.files if path.endswith(".env")], f"effect {at}"
    assert effects >= 3


class TestFaults:
    """At each effect of each change."""

    CHANGES = pytest.mark.parametrize("make", [start, correct, stop])

    def case(self, tree: Tree, ledger: Path, make: Callable[[Host], Plan]) -> int:
        """The tree is as before the change; return how many effects it has."""
        if make is not start:
            host = machine(tree, ledger)
            host.apply(start(host))
        if make is correct:
            tree.properties[f"nvml:{GPU}"]["compute_mode"] = "Default"
        twin = machine(copy(tree), ledger.with_name("twin.db"))
        kernel = twin.session.kernel
        assert isinstance(kernel, Simulated)
        twin.apply(make(twin))
        return len(kernel.writes)

    @staticmethod
    def seen(tree: Tree) -> dict[str, object]:
        """All that a change of MPS may alter."""
        modes = {s: facts.get("compute_mode") for s, facts in tree.properties.items() if s.startswith("nvml:")}
        daemons = {s: dict(facts) for s, facts in tree.properties.items() if s.startswith("sim:mps:")}
        files = {path: text for path, text in tree.files.items() if path.startswith("/run/vfioctl/")}
        units = {s: f["state"] for s, f in tree.properties.items() if s.startswith("unit:") and f["state"] == "active"}
        return {**modes, **daemons, **files, **units}

    @CHANGES
    def test_a_refusal_is_rolled_back(self, tree: Tree, tmp_path: Path, make: Callable[[Host], Plan]) -> None:
        effects = self.case(tree, tmp_path / "ledger.db", make)
        assert effects >= 3
        for at in range(1, effects + 1):
            twin, ledger = copy(tree), tmp_path / f"{at}.db"
            host = machine(twin, ledger, faults=[Fault(at, "errno", errno.EIO)])
            with pytest.raises(VfioctlError):
                host.apply(make(host))
            assert self.seen(twin) == self.seen(tree), f"effect {at}"
            assert host.session.entries()[0].state is JournalState.BACK

    @CHANGES
    def test_a_death_is_recovered(self, tree: Tree, tmp_path: Path, make: Callable[[Host], Plan]) -> None:
        effects = self.case(tree, tmp_path / "ledger.db", make)
        done = copy(tree)
        host = machine(done, tmp_path / "done.db")
        host.apply(make(host))
        for at in range(1, effects + 1):
            twin, ledger = copy(tree), tmp_path / f"{at}.db"
            host = machine(twin, ledger, faults=[Fault(at, DIE)])
            with pytest.raises(SimulatedDeath):
                host.apply(make(host))
            outcomes = machine(twin, ledger).recover()
            assert [outcome.result for outcome in outcomes] in ([Result.BACK], [Result.COMPLETE])
            expected = tree if outcomes[0].result is Result.BACK else done
            assert self.seen(twin) == self.seen(expected), f"effect {at}"

    def test_a_daemon_that_never_starts_is_no_wedged_device(self, tree: Tree, tmp_path: Path) -> None:
        host = machine(tree, tmp_path / "ledger.db", faults=[Fault(3, HANG)])
        with pytest.raises(Stuck):
            host.apply(start(host))
        assert not host.session.marks()

    def test_bindings_are_not_touched(self, tree: Tree, tmp_path: Path) -> None:
        host, before = machine(tree, tmp_path / "ledger.db"), state(tree)
        host.apply(start(host))
        host.apply(stop(host))
        after = state(tree)
        after["properties"].pop("unit:vfioctl-mps@0000-1b-00.0.service")
        assert not differing(before, after)

    def test_a_saved_plan_may_not_change_another_gpu(self, tree: Tree, tmp_path: Path) -> None:
        host = machine(tree, tmp_path / "ledger.db")
        plan = start(host)
        forged = plan.intent.model_copy(update={"devices": (PciAddress(OTHER),)})
        assert plan.intent.permits(plan)
        assert not forged.permits(plan)
        assert host.session.registry.read_plan(plan.model_dump_json()) == plan

    def test_a_saved_plan_may_not_lead_elsewhere(self, tree: Tree, tmp_path: Path) -> None:
        """A start sets no other mode than MPS needs and ends nothing; a stop starts nothing."""
        host = machine(tree, tmp_path / "ledger.db")
        begun = start(host)
        host.apply(begun)
        ended = stop(host)
        for plan, other in ((begun, ended), (ended, begun)):
            assert plan.intent.permits(plan)
            for change in other.changes:
                assert not plan.intent.permits(plan.model_copy(update={"changes": (change,)})), change.kind
        power = begun.changes[0].model_copy(update={"kind": "power"})
        assert not begun.intent.permits(begun.model_copy(update={"changes": (power,)}))

"""The life of a claim on simulated hosts: created, held, released, cut short; and what it keeps others from."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, GrowingTree, copy, machine, original, reduced, state
from tests.unit.claims.reserved import once_reserved
from tests.unit.conftest import Answer, Run
from vfioctl.binding.api import BindingApi
from vfioctl.claims.ledger.ledger import ClaimLedger, Moment
from vfioctl.claims.lifecycle.liveness import Liveness
from vfioctl.claims.model.claim import Claim, Claimed, ClaimState, Undo
from vfioctl.claims.render.claims import event_line
from vfioctl.core.caller import this_process
from vfioctl.core.change import Plan
from vfioctl.core.limits import read_document
from vfioctl.errors import Busy, ClaimConflict, DeviceInUse, KernelRefused, Stuck, Unfinished
from vfioctl.host import Host
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.placement.model.request import ClaimRequest

GPU0, GPU1 = "0000:1b:00.0", "0000:43:00.0"
OWNER = "vm/web1"
Opened = Callable[..., Host]


@pytest.fixture
def tree() -> Tree:
    return copy(reduced("hgx8", *FOUR_GPUS))


@pytest.fixture
def opened(tree: Tree, fast_folder: Path) -> Opened:
    """A process on the host: each has its own session."""
    return lambda *faults: machine(tree, fast_folder / "ledger.db", faults)


@pytest.fixture
def host(opened: Opened) -> Host:
    return opened()


def request(*devices: str, **more: object) -> ClaimRequest:
    return read_document(ClaimRequest, {"owner": OWNER, "devices": devices, **more})


def create(host: Host, *devices: str, key: str = "", **more: object) -> Claim:
    return host.claims.create(request(*devices, **more), key=key).claim


def impatient(host: Host) -> Host:
    """The host, which does not wait long for other processes."""
    host.claims._session.lock_wait = 0.3
    return host


def driver(host: Host, address: str) -> str | None:
    return next(f.driver for f in host.inventory().functions if f.address == address)


class TestCreating:
    def test_binds_verifies_and_holds(self, host: Host) -> None:
        made = host.claims.create(request(GPU0))
        assert made.outcome
        assert (made.claim.state, made.claim.plans) == (ClaimState.HELD, (made.outcome.plan.id,))
        assert [(each.address, each.undo) for each in made.claim.devices] == [(GPU0, Undo.UNBIND)]
        assert driver(host, GPU0) == "vfio-pci"
        assert host.claims.claims() == (made.claim,)
        assert host.claims.nodes(made.claim)[GPU0].group == "/dev/vfio/21"
        assert [event.state for event in host.claims.events(made.claim)] == ["reserved", "held"]

    def test_leaves_bound_what_was_bound_before(self, host: Host, tree: Tree) -> None:
        host.apply(host.binding.plan_bind([GPU0]))
        before = state(tree)
        made = host.claims.create(request(GPU0))
        assert (made.outcome, made.claim.devices[0].undo, made.claim.state) == (None, Undo.NOTHING, ClaimState.HELD)
        host.claims.release(made.claim.id)
        assert state(tree) == before

    def test_can_leave_the_driver(self, host: Host) -> None:
        made = host.claims.create(request(GPU0, bind=False))
        assert (made.outcome, made.claim.state, driver(host, GPU0)) == (None, ClaimState.HELD, "nvidia")

    def test_takes_the_whole_card_and_group(self, fast_folder: Path) -> None:
        host = machine(copy(original("busy")), fast_folder / "ledger.db")
        made = create(host, "0000:04:00.0", bind=False)
        found = [(each.address, each.asked) for each in made.devices]
        assert found == [("0000:04:00.0", True), ("0000:04:00.1", False)]
        assert made.functions == ("0000:04:00.0",)

    def test_refuses_what_a_guest_has(self, fast_folder: Path) -> None:
        host = machine(copy(original("busy")), fast_folder / "ledger.db")
        for bind in (True, False):
            with pytest.raises(DeviceInUse, match="guest win11"):
                create(host, "0000:02:00.0", bind=bind)
        assert host.claims.claims() == ()

    def test_refuses_what_another_claim_has(self, host: Host, tree: Tree) -> None:
        first = create(host, GPU0)
        before = state(tree)
        with pytest.raises(ClaimConflict, match=f"claim {first.id}"):
            create(host, GPU0, owner="vm/web2")
        assert state(tree) == before
        assert host.claims.claims(live_only=False) == (first,)

    def test_that_is_refused_by_the_kernel_has_failed(self, opened: Opened, tree: Tree) -> None:
        before = state(tree)
        host = opened(Fault(3, "errno", 16))
        with pytest.raises(KernelRefused):
            create(host, GPU0)
        (claim,) = host.claims.claims(live_only=False)
        assert (claim.state, claim.is_live, claim.why) == (ClaimState.FAILED, False, "its change was rolled back")
        assert state(tree) == before
        assert create(opened(), GPU0).state is ClaimState.HELD

    @pytest.mark.parametrize("error", [Busy("no"), KeyboardInterrupt()])
    def test_that_is_not_confirmed_leaves_no_claim_and_no_event(
        self, host: Host, tree: Tree, error: BaseException
    ) -> None:
        def refuse(plan: Plan) -> None:
            assert plan.intent.title() == f"bind {GPU0}"
            raise error

        before = state(tree)
        with pytest.raises(type(error)):
            host.claims.create(request(GPU0), key="k", confirm=refuse)
        assert (host.claims.claims(live_only=False), host.claims.ledger.events()) == ((), ())
        assert (state(tree), host.history()) == (before, ())

    @pytest.mark.parametrize("error", [Busy("no"), KeyboardInterrupt()])
    def test_that_ends_before_its_change_has_failed(self, host: Host, tree: Tree, error: BaseException) -> None:
        def refuse(_: Plan) -> None:
            raise error

        before = state(tree)
        with pytest.raises(type(error)):
            once_reserved(host, refuse).claims.create(request(GPU0))
        (claim,) = host.claims.claims(live_only=False)
        assert (claim.state, claim.why) == (ClaimState.FAILED, str(error))
        assert state(tree) == before

    def test_that_another_claim_overtakes_is_asked_for_again(self, host: Host, opened: Opened) -> None:
        """The question may stay on the terminal for minutes."""
        asked: list[str] = []

        def confirm(plan: Plan) -> None:
            asked.append(plan.intent.title())
            if len(asked) == 1:
                create(opened(), GPU0, owner="vm/web2")

        made = host.claims.create(read_document(ClaimRequest, {"owner": OWNER, "gpus": 1}), confirm=confirm)
        assert asked == [f"bind {GPU0}", f"bind {GPU1}"]
        assert made.claim.functions == (GPU1,)

    def test_that_hangs_is_wedged_until_it_is_recovered(self, opened: Opened) -> None:
        host = opened(Fault(2, HANG))
        with pytest.raises(Stuck):
            create(host, GPU0)
        (claim,) = host.claims.claims()
        assert (claim.state, claim.is_live) == (ClaimState.WEDGED, True)
        with pytest.raises(ClaimConflict):
            create(opened(), GPU0, owner="vm/web2")
        with pytest.raises(Unfinished):
            opened().claims.release(claim.id)


class TestKeys:
    def test_a_repeated_request_is_the_same_claim(self, host: Host) -> None:
        first = host.claims.create(request(GPU0), key="k")
        again = host.claims.create(request(GPU0), key="k")
        assert (again.claim, again.outcome) == (first.claim, None)
        with pytest.raises(ClaimConflict, match="another request"):
            host.claims.create(request(GPU1), key="k")

    def test_of_a_device_that_was_unbound_it_is_bound_again(self, host: Host, opened: Opened) -> None:
        made = create(host, GPU0, key="k")
        other = host.session.acting_for(f"claim {made.id}")
        other.apply(BindingApi(other).plan_unbind([GPU0]))
        assert create(opened(), GPU0, key="k").id == made.id
        assert driver(opened(), GPU0) == "vfio-pci"

    def test_after_its_term_it_is_renewed(self, host: Host) -> None:
        made = create(host, GPU0, key="k", ttl=0.001)
        time.sleep(0.01)
        assert host.claims.stale([made])
        again = host.claims.create(request(GPU0, ttl=0.001), key="k").claim
        assert str(again.expires) > str(made.expires)
        assert host.claims.events(again)[-1].why.startswith("requested again")

    def test_of_a_claim_that_is_not_held_it_is_refused(self, host: Host) -> None:
        made = create(host, GPU0, key="k")
        host.claims.ledger.move(made.id, ClaimState.WEDGED, Moment("2026-01-01T00:00:00+00:00", "b", this_process()))
        for again in (host.claims.create, host.claims.preview_create):
            with pytest.raises(ClaimConflict, match=f"{made.id} .* is wedged"):
                again(request(GPU0), key="k")

    def test_after_its_release_the_key_is_free(self, host: Host) -> None:
        first = create(host, GPU0, key="k")
        host.claims.release(first.id)
        assert create(host, GPU1, key="k").id != first.id

    def test_a_process_that_dies_before_any_change_leaves_it_to_the_next(
        self, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_: object) -> None:
            raise SimulatedDeath

        with pytest.raises(SimulatedDeath):
            once_reserved(opened(), die).claims.create(request(GPU0), key="k")
        (cut,) = opened().claims.claims()
        assert cut.state is ClaimState.RESERVED
        monkeypatch.setattr("vfioctl.core.caller.is_running", lambda pid: pid != os.getpid())
        made = create(opened(), GPU0, key="k")
        assert (made.state, made.id != cut.id) == (ClaimState.HELD, True)
        assert opened().claims.claim(cut.id).state is ClaimState.FAILED

    def test_of_two_at_once_one_makes_it(self, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
        """Both have looked for the key and found nothing; the second finds the first's claim when it reserves."""
        look, looks = Liveness.made, iter([None])
        monkeypatch.setattr(Liveness, "made", lambda *words: next(looks, ...) and look(*words))
        second: list[str] = []

        def meanwhile(_: Plan) -> None:
            looks_again = iter([None])
            monkeypatch.setattr(Liveness, "made", lambda *words: next(looks_again, ...) and look(*words))
            with pytest.raises(Busy, match="still making claim"):
                create(impatient(opened()), GPU0, key="k")
            second.append("refused")

        made = once_reserved(opened(), meanwhile).claims.create(request(GPU0), key="k").claim
        assert (made.state, second) == (ClaimState.HELD, ["refused"])
        assert len(opened().claims.claims(live_only=False)) == 1

    def test_while_its_process_works_it_is_waited_for(self, opened: Opened) -> None:
        def die(*_: object) -> None:
            raise SimulatedDeath

        with pytest.raises(SimulatedDeath):
            once_reserved(opened(), die).claims.create(request(GPU0), key="k")
        with pytest.raises(Busy, match="still making claim"):
            create(impatient(opened()), GPU0, key="k")


@pytest.mark.parametrize("at", range(1, 6))
class TestDeath:
    """The process dies at a write; the next one recovers."""

    def test_while_creating(self, opened: Opened, tree: Tree, at: int) -> None:
        before = state(tree)
        with pytest.raises(SimulatedDeath):
            create(opened(Fault(at, DIE)), GPU0, key="k")
        with pytest.raises(Unfinished):
            create(opened(), GPU0, key="k")
        (cut,) = opened().claims.claims()
        opened().recover()
        now = opened().claims.claim(cut.id)
        if now.state is ClaimState.FAILED:
            assert state(tree) == before
        else:
            assert now.state is ClaimState.HELD
            opened().claims.release(now.id)
            assert state(tree) == before

    def test_while_releasing(self, opened: Opened, tree: Tree, at: int) -> None:
        before = state(tree)
        made = create(opened(), GPU0)
        held = state(tree)
        with pytest.raises(SimulatedDeath):
            opened(Fault(at, DIE)).claims.release(made.id)
        with pytest.raises(Unfinished):
            opened().claims.release(made.id)
        opened().recover(forward=True)
        assert opened().claims.claim(made.id).state is ClaimState.RELEASED
        assert state(tree) == before != held


class TestReleasing:
    def test_puts_back_what_was_there(self, host: Host, tree: Tree) -> None:
        before = state(tree)
        made = create(host, GPU0)
        released = host.claims.release(made.id[:5])
        assert released.outcome
        assert (released.claim.state, released.claim.ended is not None) == (ClaimState.RELEASED, True)
        assert released.claim.plans == (*made.plans, released.outcome.plan.id)
        assert state(tree) == before
        assert host.claims.claims() == ()

    def test_of_two_at_once_both_succeed(self, opened: Opened) -> None:
        claim = create(opened(), GPU0)

        def meanwhile(_: Plan) -> None:
            opened().claims.release(claim.id)

        released = opened().claims.release(claim.id, confirm=meanwhile)
        assert released.claim.state is ClaimState.RELEASED

    def test_twice_does_nothing(self, host: Host) -> None:
        made = create(host, GPU0)
        once = host.claims.release(made.id)
        assert host.claims.release(made.id) == Claimed(once.claim)

    def test_waits_for_the_process_that_makes_it(self, opened: Opened, tree: Tree) -> None:
        before = state(tree)

        def check(_: Plan) -> None:
            (claim,) = opened().claims.claims()
            with pytest.raises(Busy, match="still making"):
                impatient(opened()).claims.release(claim.id)

        made = once_reserved(opened(), check).claims.create(request(GPU0)).claim
        assert (made.state, driver(opened(), GPU0)) == (ClaimState.HELD, "vfio-pci")
        opened().claims.release(made.id)
        assert state(tree) == before

    def test_of_a_claim_that_has_ended_nothing_is_changed_any_more(self, opened: Opened, tree: Tree) -> None:
        before, ended = state(tree), []

        def check(_: Plan) -> None:
            host = opened()
            (claim,) = host.claims.claims()
            moment = Moment("2026-01-01T00:00:00.000+00:00", "boot", this_process())
            ended.append(host.claims.ledger.move(claim.id, ClaimState.RELEASED, moment))

        with pytest.raises(ClaimConflict, match="is released already"):
            once_reserved(opened(), check).claims.create(request(GPU0))
        assert opened().claims.claim(ended[0].id).state is ClaimState.RELEASED
        assert state(tree) == before

    @pytest.mark.parametrize("bind", [True, False])
    def test_is_refused_while_a_guest_has_the_device(self, opened: Opened, tree: Tree, bind: bool) -> None:
        if not bind:
            opened().apply(opened().binding.plan_bind([GPU0]))
        made = create(opened(), GPU0, bind=bind)
        group = "/dev/vfio/21"
        GrowingTree.process(tree, 4711, group, name="qemu-system-x86", cmdline="qemu-system-x86_64 -name guest=web1")  # type: ignore[arg-type]
        with pytest.raises(DeviceInUse, match="process 4711"):
            opened().claims.release(made.id)
        assert opened().claims.claim(made.id).state is ClaimState.HELD
        tree.remove("/proc/4711")
        assert opened().claims.release(made.id).claim.state is ClaimState.RELEASED

    def test_that_fails_holds_on(self, opened: Opened, tree: Tree) -> None:
        made = create(opened(), GPU0)
        held = state(tree)
        with pytest.raises(KernelRefused):
            opened(Fault(2, "errno", 16)).claims.release(made.id)
        now = opened().claims.claim(made.id)
        assert (now.state, now.devices) == (ClaimState.HELD, made.devices)
        assert state(tree) == held
        assert opened().claims.release(made.id).claim.state is ClaimState.RELEASED

    def test_after_a_reboot_changes_nothing(self, opened: Opened, tree: Tree) -> None:
        made = create(opened(), GPU0)
        tree.put("/proc/sys/kernel/random/boot_id", "00000000-0000-4000-8000-00000000beef")
        held = state(tree)
        released = opened().claims.release(made.id)
        assert (released.outcome, released.claim.state) == (None, ClaimState.RELEASED)
        assert state(tree) == held


class TestOthers:
    """What a claim has, no other command changes."""

    @pytest.mark.parametrize(
        "line", ["bind gpu0", "unbind gpu0", "reset gpu0", "bind gpu0 --force-holders", "unbind gpu0 --to nouveau"]
    )
    @pytest.mark.parametrize("option", ["--yes", "--dry-run"])
    def test_are_refused_with_the_claim_named(self, run: Run, line: str, option: str) -> None:
        made = run(f"claim create --owner {OWNER} --device gpu0 --yes --json --simulate hgx8").document
        answer = run(f"{line} {option} --json --simulate hgx8")
        assert (answer.code, answer.document["error"]["kind"]) == (4, "ClaimConflict"), answer
        assert f"claim {made['id']} of {OWNER}" in answer.document["error"]["message"]
        assert answer.document["error"]["next_command"] == f"vfioctl claim release {made['id']} --simulate hgx8"

    def test_even_when_their_plan_is_older(self, host: Host, opened: Opened) -> None:
        plan = opened().binding.plan_unbind([GPU1])
        bind = opened().binding.plan_bind([GPU0])
        made = create(host, GPU0, bind=False)
        with pytest.raises(ClaimConflict, match=made.id):
            opened().apply(bind)
        assert plan.nothing_to_do

    def test_may_change_other_devices(self, host: Host) -> None:
        create(host, GPU0)
        host.apply(host.binding.plan_bind([GPU1]))
        assert driver(host, GPU1) == "vfio-pci"

    def test_may_after_the_release(self, host: Host) -> None:
        made = create(host, GPU0)
        host.claims.release(made.id)
        host.apply(host.binding.plan_bind([GPU0]))


class TestTerms:
    def test_renew_transfer_and_expiry(self, host: Host) -> None:
        made = create(host, GPU0, ttl=0.001)
        assert [*host.claims.stale(host.claims.claims())] == [made.id]
        assert host.claims.renew(made.id, 3600).expires is not None
        assert host.claims.stale(host.claims.claims()) == {}
        given = host.claims.transfer(made.id, "vm/web2").claim
        assert (given.owner, given.expires is not None) == ("vm/web2", True)
        assert host.claims.renew(made.id, None).expires is None

    def test_adopting_changes_nothing(self, host: Host, tree: Tree) -> None:
        GrowingTree.process(tree, 4711, "/dev/nvidia0", name="python3")  # type: ignore[arg-type]
        before = state(tree)
        made = host.claims.adopt("user/alice", [host.find([GPU0])[0]]).claim
        assert (made.state, made.devices[0].undo) == (ClaimState.HELD, Undo.NOTHING)
        tree.remove("/proc/4711")
        host.claims.release(made.id)
        assert state(tree) == before


class TestVgpus:
    def test_are_created_and_removed(self, run: Run) -> None:
        made = run("claim create --owner vm/a --vgpu A2-4C=2 --json --yes --simulate a2")
        assert made.code == 0, made.err
        mdevs = [each["mdev"] for each in made.document["devices"]]
        assert len(mdevs) == 2
        assert all(each["group"] for each in made.document["devices"])
        there = {each["id"] for each in run("vgpu list --json --simulate a2").document["instances"]}
        assert set(mdevs) < there
        refused = run(f"vgpu remove {mdevs[0]} --yes --json --simulate a2")
        assert (refused.code, refused.document["error"]["kind"]) == (4, "ClaimConflict")
        parent = made.document["devices"][0]["address"]
        whole = run(f"claim create --owner vm/b --device {parent} --yes --json --simulate a2")
        assert whole.code == 4, whole
        released = run(f"claim release {made.document['id']} --json --yes --simulate a2")
        assert released.code == 0, released.err
        left = {each["id"] for each in run("vgpu list --json --simulate a2").document["instances"]}
        assert left == there - set(mdevs)


def failed(answer: Answer, kind: str) -> bool:
    return bool(answer.document["error"]["kind"] == kind)


class TestCommands:
    @pytest.mark.parametrize(
        "line",
        [
            "create --owner vm/a",
            "create --owner nobody --gpus 1",
            "create --owner vm/a --gpus 1 --vgpu A2-4C",
            "create --owner vm/a --gpus 0",
            "create --owner vm/a --gpus 1 --ttl never",
            "create --owner vm/a --gpus 1 --label x",
            "release",
            "release abcd --stale",
            "show zz",
            "show 0000",
            "renew abcd --ttl 1h",
            "transfer abcd --to vm/b",
            "adopt --owner vm/a",
            "adopt --owner vm/a --device 4e8c5df7-c4fa-4719-904f-5579cd5ac35f",
        ],
    )
    def test_bad_requests_are_refused(self, run: Run, line: str) -> None:
        assert (
            run(f"claim {line} --yes --simulate hgx8" if "create" in line else f"claim {line} --simulate hgx8").code
            == 2
        )

    def test_of_several_names_one_wrong_releases_none(self, run: Run) -> None:
        made = run("claim create --owner vm/a --gpus 1 --yes --json --simulate hgx8").document["id"]
        for option in ("", " --dry-run"):
            assert run(f"claim release {made} zzzz --yes --simulate hgx8{option}").code == 2
            assert run(f"claim show {made} --json --simulate hgx8").document["state"] == "held"
        answer = run(f"claim release {made} {made[:5]} --yes --json --simulate hgx8")
        assert [each["state"] for each in answer.document["claims"]] == ["released"]

    @pytest.mark.parametrize(
        "line",
        ["bind gpu0 {}", "unbind gpu0 {}", "claim adopt --owner vm/a --device gpu0 --device {}", "vgpu remove gpu0 {}"],
    )
    @pytest.mark.parametrize("wrong", ["0000:ee:00.0", "zzzz"])
    def test_other_commands_with_one_wrong_name_change_nothing(self, run: Run, line: str, wrong: str) -> None:
        before = run("inventory --json --simulate hgx8").document["functions"]
        yes = "" if "adopt" in line else " --yes"
        assert run(f"{line.format(wrong)}{yes} --simulate hgx8").code == 2
        assert run("inventory --json --simulate hgx8").document["functions"] == before
        assert run("claim list --json --simulate hgx8").document["claims"] == []

    def test_list_is_an_object_of_claims(self, run: Run) -> None:
        assert run("claim list --json --simulate hgx8").document == {"claims": []}
        made = run("claim create --owner vm/a --device gpu0 --yes --json --simulate hgx8").document
        (listed,) = run("claim list --json --simulate hgx8").document["claims"]
        assert {name: listed[name] for name in ("id", "owner", "state")} == {
            "id": made["id"],
            "owner": "vm/a",
            "state": "held",
        }
        assert [each["address"] for each in listed["devices"]] == [GPU0]
        run(f"claim release {made['id']} --yes --simulate hgx8")
        assert run("claim list --json --simulate hgx8").document == {"claims": []}
        assert len(run("claim list --all --json --simulate hgx8").document["claims"]) == 1

    def test_stale_ones_are_released_together(self, run: Run) -> None:
        for device, ttl in (("gpu0", " --ttl 1s"), ("gpu1", "")):
            run(f"claim create --owner vm/a --device {device}{ttl} --yes --json --simulate hgx8")
        import time

        time.sleep(1.1)
        released = run("claim release --stale --yes --json --simulate hgx8").document["claims"]
        assert [each["devices"][0]["address"] for each in released] == [GPU0]
        assert [each["state"] for each in run("claim list --json --simulate hgx8").document["claims"]] == ["held"]


class TestListings:
    def test_show_claims(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "100")
        made = run("claim create --owner vm/a --device gpu0 --yes --json --simulate hgx8").document
        said = f"{GPU0} belongs to claim {made['id']} of vm/a."
        for line in ("inventory --tree", "show gpu0", "holders gpu0"):
            assert said in run(f"{line} --simulate hgx8").out, line
        for line in ("inventory", "inventory --all"):
            text = run(f"{line} --simulate hgx8").out
            assert f"  {made['id']}  vm/a " in text
            assert said not in text, "the line of the GPU says it"
            assert text.splitlines()[-1] == "GPUs: 1 ready, 1 claimed, 7 free"
        row = "inventory gpu0 gpu1 --columns gpu,claim,owner --no-header --simulate hgx8"
        assert [line.split() for line in run(row).out.splitlines()] == [["gpu0", made["id"], "vm/a"], ["gpu1"]]
        document = run("inventory gpu0 gpu1 --json --simulate hgx8").document
        assert [(gpu["claim"], gpu["owner"]) for gpu in document["gpus"]] == [(made["id"], "vm/a"), (None, None)]
        assert document["tally"] == {"ready": 1, "claimed": 1, "free": 1}
        for line in ("inventory --json", "holders gpu0 --json"):
            (reserved,) = run(f"{line} --simulate hgx8").document["reservations"]
            assert (reserved["subject"], reserved["by"], reserved["owner"]) == (GPU0, f"claim {made['id']}", "vm/a")
        assert run("holders gpu1 --json --simulate hgx8").document["reservations"] == []

    def test_show_claimed_vgpus_and_their_parents(self, run: Run) -> None:
        made = run("claim create --owner vm/a --vgpu A2-4C --json --yes --simulate a2").document
        (device,) = made["devices"]
        said = f"{device['mdev']} belongs to claim {made['id']} of vm/a."
        assert said in run("vgpu list --simulate a2").out.replace("\n  ", " ")
        (reserved,) = run("vgpu list --json --simulate a2").document["reservations"]
        assert (reserved["subject"], reserved["whole"]) == (device["mdev"], True)
        assert said in run(f"holders {device['mdev']} --simulate a2").out.replace("\n  ", " ")
        text = run("inventory --simulate a2").out
        (row,) = (line for line in text.splitlines() if " vGPUs of " in line)
        assert row.split()[:5] == ["+", "3", "vGPUs", made["id"], "vm/a"]
        assert "claimed" in text.splitlines()[-1]
        parts = f"a part of {device['address']} and a part of 0000:08:00.0 belong to claim"
        assert parts in run("inventory --tree --simulate a2").out

    def test_show_where_the_columns_have_no_room(self, run: Run, terminal: Run) -> None:
        for owner in ("vm/a", "vm/b"):
            run(f"claim create --owner {owner} --gpus 2 --yes --simulate hgx8")
        text = terminal("inventory --simulate hgx8").out
        assert "OWNER" not in text
        for owner in ("vm/a", "vm/b"):
            assert re.search(rf"^- \S+ and \S+ belong to claim \w{{8}} of {owner}.$", text, re.MULTILINE), text
        assert max(map(len, text.splitlines())) <= 80

    def test_count_the_claims_on_the_vfs_of_a_pf(self, run: Run) -> None:
        create = "claim create --device 03:00.{vf} --owner vm/{vf} --json --yes --simulate xe"
        made = [run(create.format(vf=vf)).document for vf in (1, 2)]
        text = run("inventory --simulate xe").out
        (row,) = (line for line in text.splitlines() if "+ 2 VFs" in line)
        assert "2 claims  2 owners" in row
        for claim in made:
            assert f"belong to claim {claim['id']} of {claim['owner']}." in text
        assert text.splitlines()[-1] == "GPUs: 0 ready, 1 claimed, 0 free; VFs: 2 ready, 2 claimed, 0 free"

    def test_history_tells_for_whom(self, run: Run) -> None:
        made = run("claim create --owner vm/a --device gpu0 --yes --json --simulate hgx8").document
        run("bind gpu1 --yes --simulate hgx8")
        (entry,) = run("history --owner vm/a --json --simulate hgx8").document["entries"]
        assert (entry["made_for"], entry["plan"]["id"]) == (f"claim {made['id']}", made["plans"][0])
        assert run("history --owner vm/b --simulate hgx8").out == "No such changes.\n"
        assert run("history --owner nobody --simulate hgx8").code == 2
        assert f"claim {made['id']}" in run(f"history show {entry['id']} --simulate hgx8").out


class TestWhatIsSaid:
    def test_no_cdi_name_of_a_device_without_a_node(self, run: Run) -> None:
        made = run("claim create --owner vm/a --device gpu3 --no-bind --json --simulate hgx8").document
        assert [(each["cdi"], each["group"]) for each in made["devices"]] == [(None, None)]

    def test_a_term_of_nothing_is_refused(self, run: Run) -> None:
        made = run("claim create --owner vm/a --gpus 1 --no-bind --json --simulate hgx8").document
        answer = run(f"claim renew {made['id']} --ttl 0s --simulate hgx8")
        assert (answer.code, answer.out) == (2, "")
        assert "longer than 0 s" in answer.err

    def test_a_node_that_is_not_there_is_bad_input(self, run: Run) -> None:
        answer = run("claim create --owner vm/a --gpus 1 --numa 7 --simulate hgx8")
        assert answer.code == 2
        assert "there is no NUMA node 7" in answer.err

    def test_the_former_owner_keeps_the_history(self, run: Run) -> None:
        made = run("claim create --owner vm/a --gpus 1 --yes --json --simulate hgx8").document
        run(f"claim transfer {made['id']} --to vm/b --simulate hgx8")
        for owner in ("vm/a", "vm/b"):
            (change,) = run(f"history --owner {owner} --json --simulate hgx8").document["entries"]
            assert change["plan"]["id"] == made["plans"][0]
        assert run("history --owner vm/c --json --simulate hgx8").document["entries"] == []

    def test_that_a_claim_is_of_another_boot(self, run: Run, terminal: Run) -> None:
        run("claim create --owner vm/a --gpus 1 --yes --simulate hgx8")
        assert "in another boot" not in terminal("claim list --simulate hgx8").out
        assert run("hosts reboot hgx8").code == 0
        assert "made in another boot, and not verified in this one" in terminal("claim list --simulate hgx8").out
        (claim,) = run("claim list --json --simulate hgx8").document["claims"]
        assert claim["stale"].startswith("made in another boot")
        assert run(f"claim show {claim['id']} --json --simulate hgx8").document["stale"] == claim["stale"]

    def test_a_conflict_of_keys_says_what_differs_and_show_what_was_asked(self, run: Run) -> None:
        run("claim create --owner vm/a --gpus 1 --cpus 2 --key k --yes --simulate hgx8")
        answer = run("claim create --owner vm/b --gpus 2 --cpus 2 --key k --yes --simulate hgx8")
        assert answer.code == 4
        assert 'another request: gpus was 1 and is 2, owner was "vm/a" and is "vm/b"' in answer.err
        (claim,) = run("claim list --json --simulate hgx8").document["claims"]
        shown = run(f"claim show {claim['id']} --json --simulate hgx8").document
        assert shown["request"] == {"owner": "vm/a", "gpus": 1, "cpus": 2}
        text = run(f"claim show {claim['id']} --simulate hgx8").out
        assert all(word in text for word in ("request", "gpus=1", "cpus=2"))

    @pytest.mark.parametrize("option", ["--key ''", "--label a=1 --label a=2"])
    def test_an_empty_key_and_a_label_twice_are_refused(self, run: Run, option: str) -> None:
        words = [word.replace("''", "") for word in option.split()]
        assert run("claim create --owner vm/a --gpus 1 --yes --simulate hgx8", *words).code == 2

    def test_cpus_and_hugepages_stay_on_a_narrow_terminal(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "90")
        run("claim create --owner vm/a --gpus 4 --cpus 4 --hugepages 2GiB --yes --simulate hgx8")
        shown = run("claim list --simulate hgx8").out
        (claim,) = run("claim list --json --simulate hgx8").document["claims"]
        (pages,) = claim["hugepages"]
        assert claim["cpus"] in shown
        monkeypatch.setenv("COLUMNS", "160")
        assert f"{pages['pages']}x" in run("claim list --simulate hgx8").out

    def test_a_change_is_watched_with_its_devices(self, host: Host) -> None:
        made = create(host, GPU0)
        (first, *_) = host.claims.events(made)
        assert f"  {GPU0}" in event_line(first, [GPU0])


class TestQuotas:
    """GPUs and vGPUs count, whoever got them in which way."""

    @pytest.fixture(autouse=True)
    def limited(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text('[claims.quotas]\n"vm/small" = 1\n', encoding="utf-8")
        monkeypatch.setenv("VFIOCTL_CONFIG", str(config))

    def test_a_transfer_over_one_is_refused(self, run: Run) -> None:
        made = run("claim create --owner vm/a --gpus 2 --yes --json --simulate hgx8").document["id"]
        answer = run(f"claim transfer {made} --to vm/small --simulate hgx8")
        assert (answer.code, "over the quota of vm/small: 1 GPU" in answer.err) == (4, True)
        assert run(f"claim transfer {made} --to vm/b --simulate hgx8").code == 0

    @pytest.mark.parametrize("command", ["transfer", "adopt"])
    def test_is_compared_in_the_transaction(self, run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
        """Another process is faster after the first look."""
        made = run("claim create --owner vm/a --gpus 1 --yes --json --simulate hgx8").document["id"]
        name = "amend" if command == "transfer" else "reserve"
        real: Callable[..., object] = getattr(ClaimLedger, name)

        def late(*words: object, **more: object) -> object:
            monkeypatch.setattr(ClaimLedger, name, real)
            assert run("claim create --owner vm/small --device gpu3 --yes --simulate hgx8").code == 0
            return real(*words, **more)

        monkeypatch.setattr(ClaimLedger, name, late)
        line = f"transfer {made} --to vm/small" if command == "transfer" else "adopt --owner vm/small --device gpu2"
        answer = run(f"claim {line} --simulate hgx8")
        assert (answer.code, "over the quota of vm/small: 1 GPU" in answer.err) == (4 * (command == "transfer"), True)

    def test_adopting_over_one_is_reported(self, run: Run) -> None:
        answer = run("claim adopt --owner vm/small --device gpu0 --device gpu1 --simulate hgx8")
        assert (answer.code, "over the quota of vm/small: 1 GPU" in answer.err) == (0, True)

    def test_vgpus_count(self, run: Run) -> None:
        answer = run("claim create --owner vm/small --vgpu T4-4C=2 --yes --simulate t4")
        assert (answer.code, "over the quota of vm/small" in answer.err) == (4, True)
        assert run("claim create --owner vm/small --vgpu T4-4C --yes --simulate t4").code == 0
        assert run("claim create --owner vm/small --vgpu T4-4C --yes --simulate t4").code == 4

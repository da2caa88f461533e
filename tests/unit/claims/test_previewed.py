"""A claim gets what its preview showed, by the plan that it showed; or nothing, and it is stale."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Timer

import pytest

from tests.hosts.machines import copy, machine, original, state
from tests.unit.claims.reserved import once_reserved
from tests.unit.conftest import Run, answered
from vfioctl.claims.model.claim import ClaimState
from vfioctl.core.limits import read_document
from vfioctl.errors import Cancelled, ClaimConflict, StalePlan, VfioctlError
from vfioctl.host import Host
from vfioctl.placement.model.request import ClaimRequest

CONSOLE = "from vfioctl.app import console; console()"
Opened = Callable[[], Host]
GPU0 = "0000:1b:00.0"
WISHES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "functions": ("hgx8", {"gpus": 2, "cpus": 4, "hugepages": 1 << 30}),
    "vGPUs": ("a2", {"vgpu": "A2-4C", "vgpus": 2}),
    "VFs that are vGPUs": ("l40s", {"vgpu": "L40S-12Q"}),
    "nothing to bind": ("hgx8", {"gpus": 1, "bind": False}),
}


def wish(**more: object) -> ClaimRequest:
    return read_document(ClaimRequest, {"owner": "vm/web1", **more})


def hosts(name: str, folder: Path) -> Opened:
    """Processes on one host."""
    tree = copy(original(name))
    return lambda: machine(tree, folder / "ledger.db")


@pytest.mark.parametrize("wanted", WISHES)
def test_it_gets_what_was_shown(fast_folder: Path, wanted: str) -> None:
    name, words = WISHES[wanted]
    opened = hosts(name, fast_folder)
    shown = opened().claims.preview_create(wish(**words))
    made = opened().claims.create(wish(**words), preview=shown)
    assert made.claim.state is ClaimState.HELD
    assert (made.claim.cpus, made.claim.hugepages) == (shown.placement.cpus, shown.placement.hugepages)
    if shown.placement.devices:
        assert tuple(each.subject for each in made.claim.devices if each.asked) == shown.placement.devices
    assert (made.outcome and made.outcome.plan) == shown.plan
    if made.outcome and words.get("vgpu") == "A2-4C":
        assert set(made.claim.mdevs) == {change.name for change in made.outcome.plan.changes if change.kind == "mdev"}


def others_claim(host: Host) -> None:
    host.claims.create(wish(owner="vm/other", gpus=1, cpus=2))


def bound_meanwhile(host: Host) -> None:
    host.apply(host.binding.plan_bind([GPU0]))


@pytest.mark.parametrize("meanwhile", [others_claim, bound_meanwhile])
def test_it_is_stale_when_the_host_or_the_ledger_changed(fast_folder: Path, meanwhile: Callable[[Host], None]) -> None:
    opened = hosts("hgx8", fast_folder)
    request = wish(gpus=1, cpus=2)
    shown = opened().claims.preview_create(request)
    assert shown.placement.devices == (GPU0,)
    meanwhile(opened())
    claims, history = opened().claims.claims(), opened().history()
    with pytest.raises(StalePlan):
        opened().claims.create(request, preview=shown)
    assert (opened().claims.claims(live_only=False), opened().history()) == (claims, history)


def test_a_claim_in_the_same_moment_makes_it_stale(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has been looked at again, and then another process is faster."""
    opened = hosts("hgx8", fast_folder)
    request = wish(gpus=1)
    shown = opened().claims.preview_create(request)
    host = opened()
    reserve = host.claims.ledger.reserve

    def late(*words: object) -> object:
        others_claim(opened())
        return reserve(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(host.claims.ledger, "reserve", late)
    with pytest.raises(StalePlan):
        host.claims.create(request, preview=shown)
    assert [claim.owner for claim in opened().claims.claims(live_only=False)] == ["vm/other"]


def test_vgpus_whose_room_is_taken_are_stale(fast_folder: Path) -> None:
    opened = hosts("t4", fast_folder)
    request = wish(vgpu="T4-4C")
    shown = opened().claims.preview_create(request)
    opened().claims.create(wish(owner="vm/other", vgpu="T4-4C", vgpus=4))
    with pytest.raises(VfioctlError) as caught:
        opened().claims.create(request, preview=shown)
    assert caught.value.exit_code == StalePlan.exit_code
    assert [claim.owner for claim in opened().claims.claims(live_only=False)] == ["vm/other"]


def test_one_whose_key_has_a_claim_by_now_is_that_claim(fast_folder: Path) -> None:
    opened = hosts("hgx8", fast_folder)
    shown = opened().claims.preview_create(wish(gpus=1), "k")
    first = opened().claims.create(wish(gpus=1), key="k").claim
    assert opened().claims.create(wish(gpus=1), key="k", preview=shown).claim == first


def test_one_of_a_claim_that_was_released_is_stale(fast_folder: Path) -> None:
    opened = hosts("hgx8", fast_folder)
    first = opened().claims.create(wish(gpus=1), key="k").claim
    shown = opened().claims.preview_create(wish(gpus=1), "k")
    assert shown.claim == first
    opened().claims.release(first.id)
    with pytest.raises(StalePlan, match=first.id):
        opened().claims.create(wish(gpus=1), key="k", preview=shown)


def test_a_named_device_that_another_has_by_now_says_who(fast_folder: Path) -> None:
    opened = hosts("hgx8", fast_folder)
    shown = opened().claims.preview_create(wish(devices=[GPU0]))
    opened().claims.create(wish(owner="vm/other", devices=[GPU0]))
    with pytest.raises(ClaimConflict, match="vm/other"):
        opened().claims.create(wish(devices=[GPU0]), preview=shown)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_cancelled_one_leaves_the_devices_as_they_were(fast_folder: Path, at: int) -> None:
    tree = copy(original("hgx8"))
    host, before, begun = machine(tree, fast_folder / "ledger.db"), state(tree), list[int]()
    with pytest.raises(Cancelled):
        host.claims.create(wish(gpus=1), progress=lambda e: begun.append(e.number), cancel=lambda: at in (0, *begun))
    assert state(tree) == before
    assert [claim.state for claim in host.claims.claims(live_only=False)] == ([] if at == 0 else [ClaimState.FAILED])


def test_an_answer_of_no_leaves_no_claim(run: Run) -> None:
    line = "claim create --owner vm/web1 --gpus 1 --simulate hgx8"
    code, _, shown = answered([sys.executable, "-c", CONSOLE, *line.split()], "n\n")
    assert (code, "not confirmed: nothing was changed" in shown) == (1, True), shown
    assert run("claim list --all --json --simulate hgx8").document == {"claims": []}
    assert run("history --json --simulate hgx8").document == {"entries": []}


def test_what_several_changes_restore_is_cancelled_as_a_whole(run: Run) -> None:
    """The first of them would be told as a failure of its own, and the next one begun."""
    assert run("vgpu create T4-4C --persistent --yes --simulate t4").code == 0
    assert run("claim create --owner vm/a --device gpu0 --yes --simulate hgx8").code == 0
    assert run("claim create --owner vm/b --device gpu1 --yes --simulate hgx8").code == 0
    assert (run("hosts reboot t4").code, run("hosts reboot hgx8").code) == (0, 0)
    cards, host = Host.simulated("t4"), Host.simulated("hgx8")
    before = cards.history()
    with pytest.raises(Cancelled):
        cards.vgpu.restore(cancel=lambda: True)
    assert cards.history() == before
    begun: list[int] = []
    differences = host.claims.reconciling.compare().differences
    changes = host.history()
    with pytest.raises(Cancelled):
        host.claims.reconciling.fix(differences, progress=lambda e: begun.append(e.number), cancel=lambda: 2 in begun)
    assert [str(entry.state) for entry in host.history()[: -len(changes)]] == ["back"]


def test_the_wait_for_the_process_that_makes_a_claim_is_cancelled(fast_folder: Path) -> None:
    opened = hosts("hgx8", fast_folder)
    stop = Event()
    timer = Timer(0.2, stop.set)

    def meanwhile(_: object) -> None:
        host = opened()
        host.session.lock_wait = 30.0
        timer.start()
        began = time.monotonic()
        with pytest.raises(Cancelled):
            host.claims.create(wish(gpus=1), key="k", cancel=stop.is_set)
        assert time.monotonic() - began < 5

    once_reserved(opened(), meanwhile).claims.create(wish(gpus=1), key="k")
    timer.join()

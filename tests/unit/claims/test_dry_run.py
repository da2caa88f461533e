"""Dry runs: `claim create --dry-run`, `claim release --dry-run` and `place` say what would be done, and do nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, GrowingTree, copy, machine, original, reduced, state
from tests.schema import schema_problems
from tests.unit.claims.reserved import once_reserved
from tests.unit.conftest import Run
from vfioctl.core.limits import read_document
from vfioctl.errors import ClaimConflict, DeviceInUse, Unfinished, VfioctlError
from vfioctl.host import Host
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import DIE, Fault, SimulatedDeath
from vfioctl.placement.model.request import ClaimRequest

GPU0, GPU1 = "0000:1b:00.0", "0000:43:00.0"
CREATE = "claim create --owner vm/a"


def request(*devices: str, **more: object) -> ClaimRequest:
    return read_document(ClaimRequest, {"owner": "vm/a", "devices": devices, **more})


@pytest.fixture
def tree() -> Tree:
    return copy(reduced("hgx8", *FOUR_GPUS))


@pytest.fixture
def host(tree: Tree, fast_folder: Path) -> Host:
    return machine(tree, fast_folder / "ledger.db")


class TestCreating:
    @pytest.mark.parametrize("words", ["--gpus 2 --cpus 4 --hugepages 2GiB", "--device gpu3", "--gpus 1 --no-bind"])
    def test_shows_the_choice_and_the_plan_that_the_claim_then_has(self, run: Run, words: str) -> None:
        told = run(f"{CREATE} {words} --dry-run --json --simulate hgx8")
        assert (told.code, told.err) == (0, "")
        assert schema_problems(told.document, "claim-create-dry-run") == []
        assert run("claim list --all --json --simulate hgx8").document == {"claims": []}
        assert run("history --json --simulate hgx8").document["entries"] == []
        placement, plan = told.document["placement"], told.document["plan"]
        assert placement == run(f"place {words} --json --simulate hgx8").document
        made = run(f"{CREATE} {words} --yes --json --simulate hgx8").document
        assert [each["address"] for each in made["devices"] if each["asked"]] == placement["devices"]
        assert (made["cpus"], made["hugepages"]) == (placement["cpus"], placement["hugepages"])
        assert made["plans"] == ([plan["id"]] if plan else [])
        assert bool(plan) is ("--no-bind" not in words)

    def test_writes_nothing(self, tmp_path: Path, host: Host, tree: Tree) -> None:
        ledger = tmp_path / "none" / "ledger.db"
        before, nobody = state(tree), machine(tree, ledger)
        assert nobody.claims.preview_create(request(GPU0), "key").plan
        placement, _ = nobody.claims.place(request(GPU0))
        assert placement.devices == (GPU0,)
        assert not ledger.parent.exists()
        assert state(tree) == before
        made = host.claims.create(request(GPU1)).claim
        events = host.claims.events(made)
        host.claims.preview_create(request(GPU0), "key")
        assert host.claims.preview_release(made)
        assert (host.claims.claims(live_only=False), host.claims.events(made)) == ((made,), events)

    def test_has_no_plan_for_what_is_bound(self, run: Run) -> None:
        run("bind gpu0 --yes --simulate hgx8")
        told = run(f"{CREATE} --device gpu0 --dry-run --simulate hgx8")
        assert told.out.endswith("\nNothing has to be changed on the host.\n")
        assert told.err == "Nothing was recorded or changed: this is a dry run.\n"
        assert run(f"{CREATE} --device gpu0 --dry-run --json --simulate hgx8").document["plan"] is None

    @pytest.mark.parametrize(
        "line",
        [
            f"{CREATE} --gpus 99",
            f"{CREATE} --device gpu0",
            f"{CREATE} --device gpu99",
            f"{CREATE} --gpus 1 --key k",
            f"{CREATE} --device gpu8",
            f"{CREATE} --device 4e8c5df7-c4fa-4719-904f-5579cd5ac35f",
            f"{CREATE} --vgpu H100-4C",
            f"{CREATE} --gpus 1 --vgpu A2-4C",
            f"{CREATE} --gpus 1 --hugepages 900TiB",
        ],
    )
    def test_is_refused_as_the_claim_is(self, run: Run, line: str) -> None:
        run(f"{CREATE} --device gpu0 --key k --yes --simulate hgx8")
        dry = run(f"{line} --dry-run --yes --json --simulate hgx8")
        real = run(f"{line} --yes --json --simulate hgx8")
        assert dry.code == real.code != 0
        assert dry.document == real.document

    def test_is_refused_while_somebody_holds_the_device(self, fast_folder: Path) -> None:
        host = machine(copy(original("busy")), fast_folder / "ledger.db")
        for bind in (True, False):
            with pytest.raises(DeviceInUse, match="guest win11"):
                host.claims.preview_create(request("0000:02:00.0", bind=bind))
        with pytest.raises(DeviceInUse):
            host.claims.preview_create(request("0000:02:00.0", bind=False))

    def test_of_vgpus_has_their_plan(self, run: Run) -> None:
        document = run(f"{CREATE} --vgpu A2-4C=2 --dry-run --json --simulate a2").document
        assert schema_problems(document, "claim-create-dry-run") == []
        changes = [each for each in document["plan"]["changes"] if each["kind"] == "mdev"]
        places = [{"parent": parent, "type": "nvidia-754", "count": 1} for parent in ("0000:08:00.6", "0000:08:00.7")]
        assert document["placement"]["vgpus"] == places
        assert [each["after"] for each in changes] == [f"{each['parent']}/{each['type']}" for each in places]
        assert len(run("vgpu list --json --simulate a2").document["instances"]) == 3


class TestKeys:
    def test_names_the_claim_that_has_the_key_already(self, run: Run) -> None:
        line = f"{CREATE} --gpus 1 --cpus 2 --key k --simulate hgx8"
        made = run(f"{line} --yes --json").document
        told = run(f"{line} --dry-run --json").document
        assert schema_problems(told, "claim-create-dry-run") == []
        assert (told["claim"], told["plan"], told["placement"]["devices"]) == (made["id"], None, [GPU0])
        assert (told["placement"]["cpus"], told["placement"]["nodes"]) == (made["cpus"], [0])
        assert f"claim {made['id']} was made for this request and key already" in run(f"{line} --dry-run").out

    def test_one_whose_process_died_does_not_count(
        self, host: Host, tree: Tree, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_: object) -> None:
            raise SimulatedDeath

        wanted = request(GPU0, bind=True)
        with pytest.raises(SimulatedDeath):
            once_reserved(host, die).claims.create(wanted, key="k")
        other = machine(tree, fast_folder / "ledger.db")
        (cut,) = other.claims.claims()
        assert other.claims.preview_create(wanted, "k").claim == cut, "its process is this one"
        monkeypatch.setattr("vfioctl.core.caller.is_running", lambda pid: pid != os.getpid())
        assert other.claims.preview_create(wanted, "k").plan
        with pytest.raises(ClaimConflict, match=cut.id):
            other.claims.preview_create(wanted, "another")
        assert other.claims.claims() == (cut,)

    def test_one_whose_change_was_cut_short_is_refused(self, tree: Tree, fast_folder: Path) -> None:
        with pytest.raises(SimulatedDeath):
            machine(tree, fast_folder / "ledger.db", [Fault(2, DIE)]).claims.create(request(GPU0), key="k")
        with pytest.raises(Unfinished):
            machine(tree, fast_folder / "ledger.db").claims.preview_create(request(GPU0), "k")


class TestReleasing:
    def test_shows_the_plan_that_the_release_then_has(self, run: Run) -> None:
        made = run(f"{CREATE} --device gpu0 --yes --json --simulate hgx8").document
        told = run(f"claim release {made['id']} --dry-run --json --simulate hgx8")
        assert (told.code, schema_problems(told.document, "claim-release-dry-run")) == (0, [])
        (planned,) = told.document["claims"]
        assert (planned["id"], planned["owner"], planned["state"]) == (made["id"], "vm/a", "held")
        assert run(f"claim show {made['id']} --json --simulate hgx8").document["state"] == "held"
        page = run(f"claim release {made['id']} --dry-run --simulate hgx8")
        assert page.out.startswith(f"Claim {made['id']} of vm/a would be released.\nPlan {planned['plan']['id']}: ")
        (released,) = run(f"claim release {made['id']} --yes --json --simulate hgx8").document["claims"]
        assert released["plans"] == [*made["plans"], planned["plan"]["id"]]
        again = run(f"claim release {made['id']} --dry-run --simulate hgx8")
        assert (again.code, again.out) == (0, f"Claim {made['id']} of vm/a is released already.\n")

    def test_is_refused_while_somebody_holds_the_device(self, host: Host, tree: Tree) -> None:
        made = host.claims.create(request(GPU0)).claim
        line = "qemu-system-x86_64 -name guest=a"
        GrowingTree.process(tree, 4711, "/dev/vfio/21", name="qemu-system-x86", cmdline=line)  # type: ignore[arg-type]
        for release in (lambda: host.claims.preview_release(made), lambda: host.claims.release(made.id)):
            with pytest.raises(DeviceInUse, match="process 4711"):
                release()
        tree.remove("/proc/4711")
        assert host.claims.preview_release(made)

    def test_of_stale_ones_changes_none(self, run: Run) -> None:
        assert run("claim release --stale --dry-run --simulate hgx8").out == "No claims to release.\n"
        for device in ("gpu0", "gpu1"):
            run(f"{CREATE} --device {device} --ttl 0.001s --no-bind --yes --simulate hgx8")
        told = run("claim release --stale --dry-run --simulate hgx8")
        assert told.out.count("would be released.\nNothing has to be changed on the host.\n") == 2
        assert len(run("claim list --json --simulate hgx8").document["claims"]) == 2


class TestPlacesOfVgpus:
    @pytest.mark.parametrize("host", ["a2", "l40s", "t4"])
    def test_are_those_where_the_claim_makes_them(self, run: Run, host: str) -> None:
        kind = {"a2": "A2-4C", "l40s": "L40S-12Q", "t4": "T4-4C"}[host]
        told = run(f"place --vgpu {kind}=2 --json --simulate {host}")
        assert (told.code, schema_problems(told.document, "place")) == (0, [])
        parents = [each["parent"] for each in told.document["vgpus"] for _ in range(each["count"])]
        assert len(parents) == 2
        made = run(f"claim create --owner vm/a --vgpu {kind}=2 --yes --json --explain --simulate {host}").document
        assert [each["address"] for each in made["devices"]] == parents
        assert made["placement"] == told.document

    def test_are_not_on_others_for_a_reason(self, run: Run) -> None:
        page = run("place --vgpu A2-4C --simulate a2").out
        assert "VGPUS ON      GPU   NUMA  NUMBER  TYPE        NAME\n0000:08:00.6  gpu0     0       1" in page
        assert "0000:08:00.0 takes 1 of 1 A2-4C: 2 of that size are there; 1 more would fit" in page
        assert "it is the boot display" in page

    def test_are_refused_with_the_reason_for_each_gpu(self, run: Run) -> None:
        full = run("place --vgpu A2-16Q --json --simulate a2")
        reasons = {each["device"]: each["reason"] for each in full.document["error"]["facts"]["devices"]}
        assert (full.code, reasons["0000:08:00.0"]) == (4, "it has no room for A2-16Q")
        many = run("place --vgpu T4-4C=9 --simulate t4")
        assert (many.code, "0000:3b:00.0: it has room for one, but not for all" in many.err) == (4, True)
        made = run("claim create --owner vm/b --device 0000:3b:00.0 --no-bind --yes --json --simulate t4").document
        claimed = run("place --vgpu T4-4C --json --simulate t4")
        reasons = {each["device"]: each["reason"] for each in claimed.document["error"]["facts"]["devices"]}
        assert (claimed.code, reasons["0000:3b:00.0"]) == (4, f"claimed by vm/b ({made['id']})")

    def test_on_several_cards_say_why_not_the_others(self, fast_folder: Path) -> None:
        host = machine(copy(original("xe")), fast_folder / "ledger.db")
        with pytest.raises(VfioctlError, match="VFs are created together"):
            host.claims.place(request(vgpu="VF"))


@pytest.mark.parametrize("explain", ["", "--json"])
def test_explain_adds_the_placement(run: Run, explain: str) -> None:
    answer = run(f"{CREATE} --gpus 2 --cpus 2 --explain {explain} --yes --simulate hgx8")
    if explain:
        placement = answer.document["placement"]
        assert placement["devices"] == [GPU0, GPU1]
        assert len(placement["others"]) == 7
    else:
        page, empty, table = answer.out.partition("\n\nDEVICE        GPU")
        assert (page.splitlines()[0][:6], empty != "") == ("Claim ", True)
        assert "- on NUMA node 0\n" in table
        assert "free, on NUMA node 1; the chosen ones are on NUMA node 0" in table


class TestPartsOfACard:
    """A VF of a claim keeps its PF from others, and the other way round."""

    PF, VF = "0000:41:00.0", "0000:41:00.5"

    def test_a_claimed_vf_keeps_the_pf_as_it_is(self, run: Run) -> None:
        made = run(f"{CREATE} --device {self.VF} --no-bind --yes --json --simulate l40s")
        assert made.code == 0, made.err
        claim = f"claim {made.document['id']} of vm/a"
        for line in (
            f"sriov set {self.PF} 4 --foreign",
            f"sriov off {self.PF} --foreign",
            f"{CREATE} --device {self.PF}",
        ):
            for option in ("--yes", "--dry-run"):
                answer = run(f"{line} {option} --json --simulate l40s")
                assert (answer.code, answer.document["error"]["kind"]) == (4, "ClaimConflict"), line
                assert claim in answer.document["error"]["message"], line
        other = run("claim create --owner vm/b --device 0000:41:00.4 --no-bind --yes --json --simulate l40s")
        assert other.code == 0, "other VFs can still be had"

    def test_a_claimed_pf_keeps_its_vfs(self, run: Run) -> None:
        made = run(f"claim adopt --owner vm/b --device {self.PF} --json --simulate l40s")
        assert made.code == 0, made.err
        for option in ("--yes", "--dry-run"):
            answer = run(f"{CREATE} --device {self.VF} --no-bind {option} --json --simulate l40s")
            assert answer.code == 4
            assert f"claimed by vm/b ({made.document['id']})" in answer.document["error"]["message"]
            assert run(f"{CREATE} --vgpu L40S-12Q {option} --json --simulate l40s").code == 4
        assert run(f"sriov off {self.PF} --foreign --yes --simulate l40s").code == 4

"""Claims of shares: the tables keep them within each GPU, passthrough and shares exclude each other, and reboots."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.generate import toolkit_file
from tests.hosts.machines import copy, machine, original, put_process
from tests.unit.claims.test_reconcile import GPU0, GPU1, Machine
from tests.unit.conftest import Golden, Run, timeless
from vfioctl.claims.lifecycle.creation import Creation
from vfioctl.core.published import BeingChanged
from vfioctl.errors import BadSpec, ClaimConflict, ConflictError, NoCapacity, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import groups
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.session import Session

GIB = 1 << 30
POD, OTHER = "pod/ml/a/main", "pod/ml/b/main"
GPU = PciAddress(GPU0)
CDI_FILE = "/etc/cdi/nvidia.yaml"


@pytest.fixture
def tree() -> Tree:
    """hgx8, with the CDI file of NVIDIA's toolkit."""
    tree = copy(original("hgx8"))
    tree.put(CDI_FILE, "\n".join(toolkit_file(8)))
    return tree


@pytest.fixture
def host(tree: Tree, fast_folder: Path) -> Host:
    return machine(tree, fast_folder / "ledger.db")


@pytest.fixture
def here(run: Run, tmp_path: Path, tree: Tree) -> Machine:
    return Machine(run, tmp_path, "hgx8", tree)


def share(cores: int = 40, memory: int = 8, owner: str = POD, **more: object) -> ClaimRequest:
    request = {"devices": (GPU,), "cores": cores, "gpu_memory": memory * GIB, "bind": False, **more}
    return ClaimRequest(owner=owner, **request)  # type: ignore[arg-type]


def test_shares_of_one_gpu_are_added_up(host: Host) -> None:
    for cores in (40, 60):
        host.claims.create(share(cores))
    with pytest.raises(NoCapacity) as refused:
        host.claims.create(share(1))
    assert "all of its cores are claimed" in refused.value.hint


def test_a_released_share_is_free_again_and_others_stay(host: Host) -> None:
    first, second = (host.claims.create(share(50, 39)).claim for _ in range(2))
    host.claims.release(first.id)
    with pytest.raises(NoCapacity):
        host.claims.create(share(51, 0))
    host.claims.create(share(50, 40))
    host.claims.release(second.id)
    assert host.claims.create(share(50, 39)).claim.shares[0].cores == 50


def test_the_tables_refuse_more_than_all_of_a_gpu(host: Host, fast_folder: Path) -> None:
    host.claims.create(share(90, 1))
    db = sqlite3.connect(fast_folder / "ledger.db")
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("UPDATE claim_shared SET cores = cores + 11")
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("UPDATE claim_shared SET memory = total + 1")
    db.close()


def test_memory_that_a_gpu_seems_to_have_less_of_costs_no_claim(host: Host, fast_folder: Path) -> None:
    host.claims.create(share(10, 70))
    db = sqlite3.connect(fast_folder / "ledger.db")
    db.execute("UPDATE claim_shared SET total = total + (1 << 40)")
    db.commit()
    db.close()
    assert host.claims.create(share(20, 0)).claim.shares[0].cores == 20


def test_a_share_is_given_to_no_virtual_machine_later(host: Host) -> None:
    claim = host.claims.create(share()).claim
    with pytest.raises(BadSpec):
        host.claims.transfer(claim.id, "vm/web1")
    assert host.claims.transfer(claim.id, OTHER).claim.owner == OTHER


def test_a_gpu_with_shares_is_given_to_no_guest(host: Host) -> None:
    claim = host.claims.create(share()).claim
    for request in (ClaimRequest(owner="vm/web1", devices=(GPU,)), ClaimRequest(owner="vm/web1", gpus=8)):
        with pytest.raises((ClaimConflict, NoCapacity)):
            host.claims.create(request)
    with pytest.raises(ClaimConflict, match=claim.id):
        host.apply(host.binding.plan_bind([GPU]))


def test_a_gpu_of_a_guest_has_no_shares(host: Host) -> None:
    host.claims.create(ClaimRequest(owner="vm/web1", devices=(GPU,)))
    with pytest.raises((ClaimConflict, NoCapacity)):
        host.claims.create(share())


def test_a_whole_gpu_for_a_container_is_nobody_elses(host: Host) -> None:
    host.claims.create(share(100, 0))
    for request in (share(1, 0, OTHER), share(100, 0, OTHER), ClaimRequest(owner="vm/web1", devices=(GPU,))):
        with pytest.raises((ClaimConflict, NoCapacity)):
            host.claims.create(request)


def test_whole_gpus_are_judged_by_themselves(tree: Tree, host: Host) -> None:
    """They stay with their driver: what travels with them to a guest may be used, and be claimed, by others."""
    device, mate = (tree.resolve(f"{PCI_DEVICES}/{gpu}") for gpu in (GPU0, GPU1))
    groups.iommu_group_remove_device(tree, mate)
    home = f"{IOMMU_GROUPS}/{groups.group_of(tree, device)}"
    groups.link(tree, f"{home}/devices/{GPU1}", mate)
    groups.link(tree, f"{mate}/iommu_group", home)
    tree.put(f"/proc/driver/nvidia/gpus/{GPU1}/information", "Device Minor: \t 1")
    put_process(tree, 4711, "/dev/nvidia1", status="Uid:\t0\t0\t0\t0", cgroup="0::/")
    with pytest.raises(NoCapacity) as refused:
        host.claims.create(share(100, 0, devices=(PciAddress(GPU1),)))
    assert "held by python3" in refused.value.message
    host.claims.create(share(100, 0))
    host.claims.release(host.claims.claims()[0].id)
    host.claims.create(share(40, 0, devices=(PciAddress(GPU1),)))
    assert host.claims.create(share(100, 0, OTHER)).claim.shares[0].address == GPU0


def test_a_claim_of_a_share_changes_nothing_on_the_host(host: Host) -> None:
    claimed = host.claims.create(share())
    assert claimed.outcome is None
    assert host.inventory().by_address[GPU].driver == "nvidia"


def test_a_retry_by_key_returns_the_same_share(host: Host) -> None:
    first, again = (host.claims.create(share(), key="a").claim for _ in range(2))
    assert (first.id, first.shares) == (again.id, again.shares)


def test_what_was_previewed_is_what_is_claimed(host: Host) -> None:
    request = ClaimRequest(owner=POD, cores=40, bind=False)
    preview = host.claims.preview_create(request)
    host.claims.create(share(20, 0, OTHER, devices=(PciAddress(GPU1),)))
    with pytest.raises(VfioctlError, match="changed after the claim was previewed"):
        host.claims.create(request, preview=preview)


def test_whole_gpus_that_no_cdi_file_names_are_refused_with_the_command_that_makes_it(here: Machine) -> None:
    here.change(lambda tree: tree.remove(CDI_FILE))
    answer = here(f"claim create --owner {POD} --cores 100")
    assert answer.code == 4
    assert "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml" in answer.out
    assert here(f"claim create --owner {POD} --cores 40").code == 0


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--cores 150", 2, "150 cores would be a part of several GPUs"),
        ("--cores 40 --gpus 1", 2, "exclude --gpus"),
        ("--gpu-memory many", 2, "not a size"),
        ("--cores 40 --access alice", 2, "--access is for device nodes of VFIO"),
        ("--cores 40 --enforce dmem", 4, "the kernel has no dmem controller"),
        ("--cores 40 --enforce mig", 4, "divides a GPU into parts of its own"),
        ("--gpu-memory 100GiB", 4, "79.5 GiB of its memory is free"),
        ("--cores 40 --device 0000:02:00.0", 4, "runs no programs on it"),
    ],
)
def test_a_request_that_cannot_be_served_says_why(here: Machine, options: str, code: int, words: str) -> None:
    answer = here(f"claim create --owner {POD} {options}")
    assert (answer.code, words in answer.out) == (code, True), answer
    assert here("claim list --all").document["claims"] == []


class TestAGpuThatIsBeingBound:
    """A bind that has begun before the share was recorded does not see it."""

    @pytest.mark.parametrize(("process", "words"), [(77, r"under way \(process 77\)"), (None, "was interrupted")])
    def test_is_not_shared(self, host: Host, monkeypatch: pytest.MonkeyPatch, process: int | None, words: str) -> None:
        change = BeingChanged(1, (GPU0,), process)
        monkeypatch.setattr(Session, "being_changed", lambda _: (change,))
        with pytest.raises(ConflictError, match=words):
            host.claims.create(share())
        assert host.claims.claims() == ()
        assert host.claims.create(share(devices=(PciAddress(GPU1),)))

    def test_nor_is_one_that_was_bound_just_now(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        reserve = Creation._reserve

        def late(self: Creation, *arguments: Any) -> Any:
            host.apply(host.binding.plan_bind([GPU]))
            return reserve(self, *arguments)

        monkeypatch.setattr(Creation, "_reserve", late)
        with pytest.raises(ClaimConflict, match="its driver is vfio-pci"):
            host.claims.create(share())
        assert host.claims.claims() == ()


class TestAfterwards:
    def test_a_reboot_leaves_a_share_to_its_claim(self, here: Machine) -> None:
        here.claim("--cores 40 --gpu-memory 8GiB", owner=POD)
        here.reboot()
        assert here.kinds() == ["rebooted"]
        here.remedied()
        assert here(f"claim create --owner {OTHER} --device {GPU0} --cores 61").code == 4

    def test_a_gpu_that_went_to_vfio_is_a_difference_and_unbind_ends_it(self, here: Machine) -> None:
        id_ = here.claim(f"--cores 40 --device {GPU0}", owner=POD)
        ledger = here.ledger.rename(here.ledger.with_name("kept.db"))  # as if another program had bound it
        assert here(f"bind {GPU0} --yes").code == 0
        here.ledger.unlink()
        ledger.rename(here.ledger)
        (difference,) = here.differences()
        assert (difference["kind"], difference["device"], difference["claim"]) == ("driver", GPU0, id_)

    def test_a_retry_by_key_returns_no_share_of_a_gpu_on_vfio(self, here: Machine) -> None:
        here.claim(f"--cores 40 --device {GPU0} --key a", owner=POD)
        ledger = here.ledger.rename(here.ledger.with_name("kept.db"))
        assert here(f"bind {GPU0} --yes").code == 0
        here.ledger.unlink()
        ledger.rename(here.ledger)
        answer = here(f"claim create --owner {POD} --cores 40 --device {GPU0} --key a --yes")
        assert (answer.code, "its driver is vfio-pci" in answer.out) == (4, True)

    def test_a_dry_run_of_a_retry_shows_the_share(self, here: Machine) -> None:
        here.claim("--cores 40 --key a", owner=POD)
        placement = here(f"claim create --owner {POD} --cores 40 --key a --dry-run").document["placement"]
        assert [share["cores"] for share in placement["shares"]] == [40]

    @pytest.mark.parametrize("text", ["{}", '[{"address": "0000:1b:00.0", "cores": -900}]'])
    def test_odd_texts_of_shares_are_damage(self, here: Machine, text: str) -> None:
        here.claim(f"--cores 40 --device {GPU0}", owner=POD)
        here.sql("UPDATE claim SET shares = ?", text)
        assert here("claim list").code == 3

    @pytest.mark.parametrize(("known", "other"), [("10de:2330", "10de:2331"), ("GPU-0000", "GPU-0001")])
    def test_another_gpu_at_its_address_is_not_restored(self, here: Machine, known: str, other: str) -> None:
        id_ = here.claim(f"--cores 40 --device {GPU0}", owner=POD)
        here.sql(f"UPDATE claim SET shares = replace(shares, '{known}', '{other}') WHERE id = ?", id_)  # noqa: S608
        assert here.kinds() == ["device replaced"]

    def test_a_retry_by_key_after_gpus_have_changed_places_is_refused(self, here: Machine) -> None:
        """Of the same model. Only a reboot comes between."""
        request = f"claim create --owner {POD} --cores 40 --device {GPU0} --key a --yes"
        assert here(request).code == 0
        here.reboot()
        here.sql("UPDATE claim SET shares = replace(shares, 'GPU-0000', 'GPU-0001')")
        answer = here(request)
        assert (answer.code, "another GPU is at its address" in answer.out) == (4, True)

    def test_a_damaged_share_costs_the_ledgers_facts_only(self, here: Machine) -> None:
        here.claim(f"--cores 40 --device {GPU0}", owner=POD)
        here.sql("UPDATE claim SET shares = '[{\"address\": 3}]'")
        assert here("claim list").code == 3
        assert here("inventory").code == 0


def test_the_pages(run: Run, terminal: Run, golden: Golden) -> None:
    def claim(options: str, host: str) -> str:
        answer = run(f"claim create --json --simulate {host} {options}")
        assert answer.code == 0, answer
        return str(answer.document["id"])

    first = claim(f"--owner {POD} --cores 40 --gpu-memory 8GiB --device {GPU0} --enforce mps", "hgx8")
    second = claim(f"--owner {OTHER} --cores 100", "gh200")

    def comparable(text: str) -> str:
        return timeless(text).replace(first, "11111111").replace(second, "22222222")

    for name, line in {
        "list": "claim list --simulate hgx8",
        "list-whole": "claim list --simulate gh200",
        "show": f"claim show {first} --simulate hgx8",
        "show-whole": f"claim show {second} --simulate gh200",
        "place": "place --cores 20 --gpu-memory 1GiB --simulate hgx8",
        "plan": f"share plan {GPU0} {GPU1} --simulate hgx8",
        "plan-whole": "share plan --simulate gh200",
    }.items():
        shown = terminal(line)
        golden(f"sharing/{name}.txt", comparable(shown.out))
        document = run(f"{line} --json").document
        golden(f"sharing/{name}.json", comparable(json.dumps(document, indent=2) + "\n"))


def test_a_plan_without_the_claims_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_bytes(b"x" * 4096)
    line = f"share plan gpu0 --simulate hgx8 --ledger {tmp_path}/damaged.db"
    answer, text = run(f"{line} --json"), run(line)
    assert (answer.code, text.code) == (0, 0)
    (warning,) = answer.document["warnings"]
    assert "ledger" in warning
    assert "ledger" in text.out
    assert answer.document["gpus"][0]["methods"], "the methods are known without claims"


def test_many_at_once_get_no_more_than_there_is(here: Machine) -> None:
    """Whole processes, each of which claims 30 cores of the same GPU: three fit."""
    line = ["claim", "create", "--owner", POD, "--device", GPU0, "--cores", "30", "--json", *here.options]
    command = [sys.executable, "-c", "from vfioctl.app import console; console()", *line]
    with ThreadPoolExecutor(8) as pool:
        codes = sorted(
            pool.map(
                lambda _: subprocess.run(command, capture_output=True, check=False, timeout=120).returncode, range(8)
            )
        )
    assert codes == [0, 0, 0, 4, 4, 4, 4, 4]

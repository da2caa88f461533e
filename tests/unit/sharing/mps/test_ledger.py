"""MPS and the ledger: a daemon serves the shares of claims, their claims permit it, and a changed claim is drift."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.generate import toolkit_file
from tests.unit.claims.test_reconcile import GPU0, GPU1, Machine
from tests.unit.conftest import Run
from vfioctl.claims.api import ClaimsApi
from vfioctl.errors import HostError
from vfioctl.host import Host
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session
from vfioctl.sharing.api import client_edits


@pytest.fixture
def here(run: Run, tmp_path: Path) -> Machine:
    return Machine(run, tmp_path, "hgx8")


def share(here: Machine, cores: int, name: str, memory: str = "8GiB") -> str:
    return here.claim(f"--device {GPU0} --cores {cores} --gpu-memory {memory}", owner=f"pod/ml/{name}/main")


def limits(here: Machine) -> dict[str, int]:
    (daemon,) = here("mps status").document["daemons"]
    found: dict[str, int] = daemon["limits"]
    return found


def test_a_daemon_gets_the_limits_of_the_largest_share(here: Machine) -> None:
    share(here, 40, "a")
    share(here, 10, "b", "2GiB")
    assert here(f"mps start {GPU0} --yes").code == 0
    assert limits(here) == {"threads": 40, "memory": 8 << 30}


def test_a_claim_that_comes_later_is_drift_until_it_is_applied(here: Machine) -> None:
    share(here, 40, "a")
    assert here(f"mps start {GPU0} --yes").code == 0
    share(here, 50, "b")
    assert here("mps status").code == 4
    assert here("mps apply --yes").code == 0
    assert here("mps status").code == 0
    assert limits(here)["threads"] == 50


def test_each_claim_has_its_own_environment(here: Machine) -> None:
    first, second = share(here, 40, "a"), share(here, 10, "b", "2GiB")
    environments = [here(f"mps env {claim}").document["environment"] for claim in (first, second)]
    assert [e["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for e in environments] == ["40", "10"]
    assert [e["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for e in environments] == ["0=8192M", "0=2048M"]


def test_a_share_without_cores_has_no_limit_of_threads(here: Machine) -> None:
    claim = here.claim(f"--device {GPU0} --gpu-memory 2GiB", owner="pod/ml/a/main")
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in here(f"mps env {claim}").document["environment"]


def test_a_share_that_nothing_is_to_enforce_keeps_mps_from_its_gpu(here: Machine) -> None:
    """Its client could not use the GPU without MPS."""
    claim = here.claim(f"--device {GPU0} --cores 40 --enforce none", owner="pod/ml/a/main")
    answer = here(f"mps start {GPU0} --yes")
    assert (answer.code, f"claim {claim} of pod/ml/a/main was made with --enforce none" in answer.out) == (4, True)
    assert "has no share of a GPU that MPS may enforce" in here(f"mps env {claim}").out


class TestAGpuWithADaemon:
    @pytest.mark.parametrize("owner", ["vm/web1", "pod/ml/a/main"])
    @pytest.mark.parametrize("asked", ["--device {gpu}", "--gpus 8", "--device {gpu} --no-bind"])
    def test_is_given_to_nobody_as_a_whole(self, here: Machine, owner: str, asked: str) -> None:
        here.change(lambda tree: tree.put("/etc/cdi/nvidia.yaml", "\n".join(toolkit_file(8))))
        assert here(f"mps start {GPU0} --yes").code == 0
        asked = "--cores 800" if owner.startswith("pod/") and "gpus" in asked else asked.format(gpu=GPU0)
        answer = here(f"claim create --owner {owner} {asked} --yes")
        assert answer.code == 4
        assert f"it has an MPS daemon, for shares: vfioctl mps stop {GPU0}" in answer.out
        assert here(f"mps stop {GPU0} --yes").code == 0
        assert here(f"claim create --owner {owner} {asked} --yes").code == 0

    def test_gives_shares_that_it_enforces_only(self, here: Machine) -> None:
        assert here(f"mps start {GPU0} --yes").code == 0
        share(here, 40, "a")
        answer = here(f"claim create --owner pod/ml/b/main --device {GPU0} --cores 10 --enforce none")
        assert (answer.code, "its MPS daemon limits each client" in answer.out) == (4, True)

    def test_of_one_claim_gives_no_other_share(self, here: Machine) -> None:
        claim = share(here, 40, "a")
        assert here(f"mps start {GPU0} --claim {claim} --yes").code == 0
        answer = here(f"claim create --owner pod/ml/b/main --device {GPU0} --cores 10")
        assert (answer.code, f"its MPS daemon is for claim {claim} alone" in answer.out) == (4, True)

    def test_that_a_claim_has_whole_since_can_be_stopped(self, here: Machine) -> None:
        """As when the daemon was started while the claim was made."""
        assert here(f"mps start {GPU0} --yes").code == 0
        file = "/run/vfioctl/mps/0000-1b-00.0.env"
        text = here.tree().files[file]
        here.change(lambda tree: tree.remove(file))
        here.claim(f"--device {GPU0} --no-bind")
        here.change(lambda tree: tree.put(file, text))
        assert here("mps apply --yes").code == 4
        assert here("mps stop --yes").code == 0


class TestADaemonThatDied:
    @pytest.fixture
    def claim(self, here: Machine) -> str:
        claim = share(here, 40, "a")
        assert here(f"mps start {GPU0} --yes").code == 0
        name = next(name for name in here.tree().properties if name.startswith("unit:vfioctl-mps@"))
        here.change(lambda tree: tree.properties[name].update(state="failed"))
        return claim

    def test_enforces_nothing(self, here: Machine, claim: str) -> None:
        shown = " ".join(here(f"share plan {GPU0}", as_json=False).out.split())
        assert f"its daemon has died: vfioctl mps apply {GPU0}" in shown
        assert f"claim {claim} of pod/ml/a/main: 40 cores only reported" in shown
        assert here("mps apply --yes").code == 0
        assert "40 cores by mps" in " ".join(here(f"share plan {GPU0}", as_json=False).out.split())

    def test_gives_its_clients_the_command_that_starts_it(self, here: Machine, claim: str) -> None:
        session = Host(Session(Simulated(here.tree(), "here"), here.ledger)).session
        (known,) = ClaimsApi(session).claims()
        with pytest.raises(HostError, match="has died: nothing enforces shares") as caught:
            client_edits(session, known)
        assert caught.value.next_command == f"vfioctl mps apply {GPU0}"
        assert known.id == claim


def test_a_daemon_that_is_not_known_is_told_and_gives_no_client_the_gpu(here: Machine) -> None:
    share(here, 40, "a")
    name = f"/run/vfioctl/mps/{GPU0.replace(':', '-')}.env"
    here.change(lambda tree: tree.put(name, "somebody else's"))
    document = here(f"share plan {GPU0}").document
    assert document["warnings"] == [f"{name} is not as vfioctl writes it"]
    assert name in here(f"share plan {GPU0}", as_json=False).out.replace("\n", "")
    session = Host(Session(Simulated(here.tree(), "here"), here.ledger)).session
    (known,) = ClaimsApi(session).claims()
    with pytest.raises(HostError, match="whether there is an MPS daemon is not known"):
        client_edits(session, known)


class TestADaemonForOneClaim:
    def test_is_refused_for_a_claim_without_the_gpu(self, here: Machine) -> None:
        claim = share(here, 40, "a")
        answer = here(f"mps start {GPU1} --claim {claim} --yes")
        assert (answer.code, f"has no part of {GPU1}" in answer.out) == (2, True)

    def test_is_refused_for_a_claim_that_has_ended(self, here: Machine) -> None:
        claim = share(here, 40, "a")
        assert here(f"claim release {claim} --yes").code == 0
        assert here(f"mps start {GPU0} --claim {claim} --yes").code == 2

    def test_is_refused_where_others_have_shares(self, here: Machine) -> None:
        claim, other = share(here, 40, "a"), share(here, 10, "b")
        answer = here(f"mps start {GPU0} --claim {claim} --yes")
        assert (answer.code, f"claim {other} of pod/ml/b/main has a part of {GPU0} too" in answer.out) == (4, True)

    def test_serves_no_other_claim(self, here: Machine) -> None:
        claim = share(here, 40, "a")
        assert here(f"mps start {GPU0} --claim {claim} --yes").code == 0
        made_up = here(f"mps env 1a2b3c4d --gpu {GPU0} --threads 10")
        assert (made_up.code, f"is for claim {claim} alone" in made_up.out) == (4, True)
        pipes = here(f"mps env {claim}").document["environment"]["CUDA_MPS_PIPE_DIRECTORY"]
        assert pipes == f"/run/vfioctl/mps/claim-{claim}"

    def test_is_to_stop_when_its_claim_has_ended(self, here: Machine) -> None:
        claim = share(here, 40, "a")
        assert here(f"mps start {GPU0} --claim {claim} --yes").code == 0
        assert here("mps status").code == 0
        assert here(f"claim release {claim} --yes").code == 0
        answer = here("mps status")
        (difference,) = answer.document["differences"]
        assert answer.code == 4
        assert difference["words"] == f"claim {claim}, which alone it is for, has ended"
        assert here(f"{difference['remedy']} --yes").code == 0
        assert here("mps status").code == 0

    def test_that_has_died_is_not_started_again_when_its_claim_has_ended(self, here: Machine) -> None:
        claim = share(here, 40, "a")
        assert here(f"mps start {GPU0} --claim {claim} --yes").code == 0
        assert here(f"claim release {claim} --yes").code == 0
        answer = here(f"mps apply {GPU0} --yes")
        assert (answer.code, f"claim {claim}, which alone it is for, has ended" in answer.out) == (3, True)

    def test_is_refused_for_one_with_several_gpus(self, here: Machine) -> None:
        here.change(lambda tree: tree.put("/etc/cdi/nvidia.yaml", "\n".join(toolkit_file(8))))
        claim = here.claim(f"--device {GPU0} --device {GPU1} --cores 200", owner="pod/ml/a/main")
        answer = here(f"mps start {GPU0} --claim {claim} --yes")
        assert (answer.code, "would hide all but" in answer.out) == (2, True)


class TestAShareThatMpsIsToEnforce:
    @pytest.fixture
    def claim(self, here: Machine) -> str:
        """Its daemon is not there, as after a reboot."""
        return here.claim(f"--device {GPU0} --cores 40 --enforce mps", owner="pod/ml/a/main")

    def test_without_a_daemon_is_a_difference(self, here: Machine, claim: str) -> None:
        answer = here("mps status")
        (difference,) = answer.document["differences"]
        assert (answer.code, difference["remedy"].startswith(f"vfioctl mps start {GPU0}")) == (4, True)
        assert claim in difference["words"]
        assert here("mps status", as_json=False).code == 4
        assert here(f"{difference['remedy']} --yes").code == 0
        assert here("mps status").code == 0

    def test_gives_no_client_the_gpu_without_one(self, here: Machine, claim: str) -> None:
        session = Host(Session(Simulated(here.tree(), "here"), here.ledger)).session
        (known,) = ClaimsApi(session).claims()
        with pytest.raises(HostError, match=f"MPS is to enforce the share of claim {claim}") as caught:
            client_edits(session, known)
        assert caught.value.next_command == f"vfioctl mps start {GPU0}"

    def test_is_named_when_its_daemon_is_to_stop(self, here: Machine, claim: str) -> None:
        assert here(f"mps start {GPU0} --yes").code == 0
        notes = here("mps stop --dry-run").document["notes"]
        assert [note for note in notes if claim in note]


def test_a_daemon_that_has_drifted_is_not_started_already(here: Machine) -> None:
    share(here, 40, "a")
    assert here(f"mps start {GPU0} --yes").code == 0
    here.change(lambda tree: tree.properties[f"nvml:{GPU0}"].update(compute_mode="Default"))
    answer = here(f"mps start {GPU0} --yes")
    assert (answer.code, "the compute mode" in answer.out) == (4, True)


def test_a_file_that_vfioctl_did_not_write_is_told(here: Machine) -> None:
    share(here, 40, "a")
    assert here(f"mps start {GPU0} --yes").code == 0
    (file,) = (path for path in here.tree().files if path.startswith("/run/vfioctl/mps/") and path.endswith(".env"))
    here.change(lambda tree: tree.put(file, f"{tree.files[file]}\nCUDA_MPS_CLIENT_PRIORITY=1"))
    answer = here(f"mps start {GPU0} --yes")
    assert (answer.code, file in answer.out) == (3, True)
    assert here("mps status").code == 4
    assert here("mps status", as_json=False).code == 4


def test_a_gpu_that_a_container_has_whole_is_refused(here: Machine) -> None:
    claim = whole(here)
    answer = here(f"mps start {GPU0} --yes")
    assert (answer.code, claim in answer.out) == (4, True)


def whole(here: Machine) -> str:
    here.change(lambda tree: tree.put("/etc/cdi/nvidia.yaml", "\n".join(toolkit_file(8))))
    return here.claim(f"--device {GPU0} --cores 100", owner="pod/ml/a/main")


def test_a_claim_of_a_whole_gpu_has_a_daemon_of_its_own(here: Machine) -> None:
    claim = whole(here)
    assert here(f"mps start {GPU0} --claim {claim[:6]} --yes").code == 0
    environment = here(f"mps env {claim}").document["environment"]
    assert environment == {"CUDA_MPS_PIPE_DIRECTORY": f"/run/vfioctl/mps/claim-{claim}", "VFIOCTL_CLAIM": claim}
    assert here("mps status").code == 0
    assert here("mps apply --threads 50 --yes").code == 0
    assert limits(here)["threads"] == 50
    assert here("mps status").code == 0
    assert here("mps stop --yes").code == 0
    assert here(f"claim show {claim}").document["state"] == "held"


def test_a_claim_is_known_by_the_beginning_of_its_id(here: Machine) -> None:
    claim = share(here, 40, "a")
    assert here(f"mps env {claim[:5]}").document["claim"] == claim


def test_a_share_permits_nothing_else(here: Machine) -> None:
    share(here, 40, "a")
    assert here(f"bind {GPU0} --yes").code == 4


def test_share_plan_names_the_command_that_starts_a_daemon_until_one_runs(here: Machine) -> None:
    share(here, 40, "a")
    assert f"vfioctl mps start {GPU0}" in here(f"share plan {GPU0}").out
    assert here(f"mps start {GPU0} --yes").code == 0
    assert "mps start" not in here(f"share plan {GPU0}").out

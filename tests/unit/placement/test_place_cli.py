"""`vfioctl place`: its page, its JSON, its options, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, machine, put_process, reduced
from tests.unit.conftest import Golden, Run
from vfioctl.claims.cli.options import Wish, labels_in, numa_in, size_in, vgpu_in
from vfioctl.errors import BadSpec
from vfioctl.placement.model.request import ClaimRequest

LINES = {
    "hgx8/place": "place --gpus 4 --cpus 16 --hugepages 64GiB --host hgx8",
    "hgx8/place-none": "place --gpus 5 --numa same --host hgx8",
    "hgx8/place-nic": "place --device gpu1 --device 0000:18:00.0 --cpus 5 --host hgx8",
    "workstation/place": "place --gpus 1 --model 2080 --cpus 4 --host workstation",
    "gh200/place": "place --gpus 1 --cpus 8 --host gh200",
    "laptop/place": "place --device gpu0 --cpus 3 --host laptop",
    "mi300x/place": "place --gpus 8 --cpus 64 --numa any --host mi300x",
    "shared-group/place": "place --gpus 1 --host shared-group",
    "a2/place": "place --gpus 1 --host a2",
    "mi300x-vf/place": "place --vfs 2 --of mi300x --cpus 2 --host mi300x-vf",
}


@pytest.mark.parametrize("name", LINES)
def test_the_page_and_the_document(run: Run, terminal: Run, golden: Golden, name: str) -> None:
    text, document = terminal(LINES[name]), run(f"{LINES[name]} --json")
    golden(f"{name}.txt", text.out + text.err)
    golden(f"{name}.json", document.out)
    assert text.code == document.code


@pytest.mark.parametrize("columns", ["45", "160"])
def test_on_other_terminals(terminal: Run, golden: Golden, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = terminal(LINES["hgx8/place"]).out
    golden(f"hgx8/place-{columns}.txt", shown)
    assert max(map(len, shown.splitlines())) <= int(columns)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "one of them is needed"),
        ("--gpus 1 --vgpu A2-4C", "--vgpu excludes the others"),
        ("--vfs 1 --vgpu A2-4C", "--vgpu excludes the others"),
        ("--gpus 1 --vfs 1", "--gpus and --vfs exclude each other"),
        ("--gpus 1 --numa near", "not a NUMA node: 'near'"),
        ("--gpus 1 --memory-min 40QB", "not a size: '40QB'"),
        ("--gpus 1 --hugepages many", "not a size: 'many'"),
        ("--gpus 1 --owner me", "not an owner: 'me'"),
        ("--gpus 1 --label team", "not a label: 'team'"),
        ("--gpus 2000", "gpus must be at most 1024"),
        ("--gpus 1 --memory-min 2PiB", "memory_min must be at most 1024 TiB"),
        ("--gpus 0", "--gpus"),
        ("--device gpu99", "there is no gpu99 here"),
        ("--device 4e8c5df7-c4fa-4719-904f-5579cd5ac35f", "there is no mediated device 4e8c5df7"),
    ],
)
def test_what_cannot_be_asked_for(run: Run, line: str, message: str) -> None:
    answer = run(f"place {line} --host hgx8")
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_settings_of_the_named_file_hold_for_a_simulated_host(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[claims]\nreserved = ["0000:1b:00.0"]\nhousekeeping_cpus = ""\nreserved_cpus = "0,96"\n'
        '[claims.models]\nbig = ["H100"]\n[claims.quotas]\n"vm/small" = 1\n"team=*" = 2\n'
    )
    monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
    found = run("place --gpus 2 --model big --cpus 4 --host hgx8 --json").document
    assert (found["devices"], found["cpus"]) == (["0000:43:00.0", "0000:52:00.0"], "1-2,97-98")
    (told,) = (each for each in found["others"] if each["device"] == "0000:1b:00.0")
    assert (told["free"], told["reason"]) == (False, "reserved in the configuration")
    assert run("place --gpus 2 --owner vm/small --host hgx8").code == 4
    assert run("place --gpus 3 --label team=x --host hgx8").code == 4
    assert run("place --gpus 2 --label team=x --host hgx8").code == 0
    file.write_text("[claims]\nreserved = 5\n")
    answer = run("place --gpus 1 --host hgx8")
    assert (answer.code, answer.err.split("\n")[0]) == (2, f"vfioctl: {file}:2: claims.reserved must be a list")


def test_without_a_file_another_host_has_no_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VFIOCTL_CONFIG", raising=False)
    assert run("place --gpus 8 --host hgx8").code == 0


def test_texts_of_options() -> None:
    assert [size_in(text) for text in ("1B", "2KiB", "1.5MiB", "40GiB", "40G", "1TiB", None)] == [
        1,
        2048,
        3 << 19,
        40 << 30,
        40 << 30,
        1 << 40,
        0,
    ]
    assert [numa_in(text) for text in ("same", "any", "0", "13")] == ["same", "any", 0, 13]
    assert labels_in(["a=b", "c=", "d=e=f"]) == {"a": "b", "c": "", "d": "e=f"}
    assert [vgpu_in(text) for text in ("L40S-12Q", "L40S-12Q=2", None)] == [("L40S-12Q", 1), ("L40S-12Q", 2), ("", 1)]
    for text in ("L40S=0", "L40S=x", "L40S=99999"):
        with pytest.raises(BadSpec):
            vgpu_in(text)
    request = Wish(gpus=2, ttl="10m", numa="1", label=["a=b"], no_bind=True).request("vm/a")
    assert (request.gpus, request.ttl, request.numa, request.labels, request.bind) == (2, 600.0, 1, {"a": "b"}, False)


class TestGpusInUse:
    """A number of GPUs means such that nobody has open."""

    def test_are_not_chosen(self, run: Run) -> None:
        placed = run("place --gpus 1 --json --simulate busy").document
        assert placed["devices"] == ["0000:04:00.0"]
        reasons = {each["device"]: each["reason"] for each in placed["others"]}
        assert reasons["0000:01:00.0"] == "held by python3, tritonserver"

    def test_are_named_although_a_free_one_is_better(self, fast_folder: Path) -> None:
        """Every GPU that could be chosen is asked for its holders, not only those that were chosen at first."""
        tree = copy(reduced("hgx8", *FOUR_GPUS))
        tree.put(f"/proc/driver/nvidia/gpus/{FOUR_GPUS[2]}/information", "Device Minor: \t 2")
        put_process(tree, 4711, "/dev/nvidia2", name="train", status="Uid:\t0\t0\t0\t0", cgroup="0::/")
        placement, _ = machine(tree, fast_folder / "ledger.db").claims.place(ClaimRequest(owner="vm/a", gpus=1))
        assert placement.devices == (FOUR_GPUS[0],)
        reasons = {other.device: (other.reason, other.free) for other in placement.others}
        assert reasons[FOUR_GPUS[2]] == ("held by train", False)
        assert reasons[FOUR_GPUS[1]][1]

    def test_are_named_when_too_few_are_left(self, run: Run) -> None:
        answer = run("place --gpus 3 --json --simulate busy")
        assert answer.code == 4
        told = {each["device"]: (each["reason"], each["free"]) for each in answer.document["error"]["facts"]["devices"]}
        assert told["0000:01:00.0"] == ("held by python3, tritonserver", False)
        assert told["0000:02:00.0"] == ("held by qemu-system-x86", False)
        assert told["0000:04:00.0"] == ("can be chosen", True)

    def test_a_claim_takes_the_next_one(self, run: Run) -> None:
        claim = run("claim create --owner vm/a --gpus 1 --yes --json --simulate busy").document
        assert claim["devices"][0]["address"] == "0000:04:00.0"

    def test_one_on_vfio_is_refused_beside_one_to_be_bound(self, run: Run) -> None:
        answer = run("claim create --owner vm/a --device gpu1 --device gpu3 --yes --simulate busy")
        assert answer.code == 4
        assert "0000:02:00.0 (AD102 [GeForce RTX 4090], vfio-pci) is held by qemu-system-x86" in answer.err
        assert run("claim list --json --simulate busy").document == {"claims": []}


class TestNvswitches:
    """All GPUs of an HGX server without its NVSwitches cannot talk over NVLink."""

    def test_left_behind_they_are_reported(self, run: Run) -> None:
        whys = run("place --gpus 8 --host hgx8 --json").document["why"]
        (warning,) = (why for why in whys if "NVSwitches" in why)
        assert "0000:07:00.0, 0000:08:00.0, 0000:09:00.0, 0000:0a:00.0" in warning
        assert not any("NVSwitches" in why for why in run("place --gpus 7 --host hgx8 --json").document["why"])

    def test_they_go_with_the_gpus(self, run: Run) -> None:
        switches = [f"0000:{bus}:00.0" for bus in ("07", "08", "09", "0a")]
        found = run(f"place --gpus 8 {' '.join(f'-d {switch}' for switch in switches)} --host hgx8 --json").document
        assert found["devices"][8:] == switches
        assert not any("NVSwitches" in why for why in found["why"])

    def test_a_claim_without_them_warns(self, run: Run) -> None:
        done = run("claim create --owner vm/a --gpus 8 --simulate hgx8 --yes")
        assert (done.code, "warning: all GPUs are taken" in done.err) == (0, True)

    def test_they_are_claimed_with_the_gpus(self, run: Run) -> None:
        made = run("claim create --owner vm/a --gpus 2 --device 07:00.0 --simulate hgx8 --yes --json").document
        assert "0000:07:00.0" in [device["address"] for device in made["devices"]]


class TestVfs:
    """Existing VFs by number."""

    def test_of_another_model_are_not_chosen(self, run: Run) -> None:
        answer = run("place --vfs 1 --of 1002:74a1 --json --simulate mi300x-vf")  # the ids of the PF
        assert answer.code == 4
        assert answer.document["error"]["facts"]["devices"][0]["reason"] == "it is no 1002:74a1"

    def test_that_nvidia_has_without_a_type_are_not_chosen(self, run: Run) -> None:
        answer = run("place --vfs 3 --json --simulate l40s")
        assert answer.code == 4
        assert answer.document["error"]["message"] == "3 VFs cannot be chosen: only 2 can be"
        reasons = {device["device"]: device["reason"] for device in answer.document["error"]["facts"]["devices"]}
        assert reasons["0000:41:00.6"] == "NVIDIA's driver has it, without a type of vGPU"

    def test_a_host_without_any_says_how_to_get_them(self, run: Run) -> None:
        answer = run("place --vfs 1 --json --simulate hgx8")
        assert answer.code == 4
        assert answer.document["error"]["message"] == "1 VF cannot be chosen: the host has no VF of a GPU"
        assert "vfioctl sriov set" in answer.document["error"]["hint"]

    def test_a_claim_takes_them_and_the_next_one_others(self, run: Run) -> None:
        taken = []
        for name in ("a", "b"):
            answer = run(f"claim create --owner vm/{name} --vfs 4 --yes --json --simulate mi300x-vf")
            assert answer.code == 0, answer
            taken += [device["address"] for device in answer.document["devices"]]
        assert sorted(taken) == [f"0000:05:02.{number}" for number in range(8)]
        assert run("claim create --owner vm/c --vfs 1 --yes --simulate mi300x-vf").code == 4

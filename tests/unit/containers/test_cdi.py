"""vfioctl cdi from the outside, on simulated hosts; and its files in directories of users, as two users."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.conftest import Answer, Golden, Run, timeless
from vfioctl.claims.model.cdi import CdiDevice, Node
from vfioctl.claims.model.claim import Claim, ClaimedDevice, ClaimState
from vfioctl.containers.cdi import choose
from vfioctl.containers.cdi.api import CdiApi
from vfioctl.containers.cdi.files import text_of
from vfioctl.containers.cdi.intent import CdiIntent
from vfioctl.core.change import Result
from vfioctl.errors import BadDocument, BadSpec, ConflictError, Foreign, HostError, VerifyError, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.placement.model.claims import Owner

FILE = "/var/run/cdi/vfioctl.json"
GPU, OTHER = PciAddress("0000:1b:00.0"), PciAddress("0000:43:00.0")
KIND = "vfioctl/vfio"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes the part of two users")


class Ledger:
    """The claims of a host, as tests need them."""

    def __init__(self, *claims: Claim) -> None:
        self.all = claims

    def claims(self, *, live_only: bool = True) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.all if claim.is_live or not live_only)

    def claim(self, name: str) -> Claim:
        return next(claim for claim in self.all if claim.id == name)


def a_claim(name: str, *devices: PciAddress, state: ClaimState = ClaimState.HELD, companions: int = 0) -> Claim:
    asked = len(devices) - companions
    taken = tuple(ClaimedDevice(address, asked=number < asked) for number, address in enumerate(devices))
    return Claim(name, Owner("vm/one"), state, taken, since="", boot_id="")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two GPUs of eight are on VFIO."""
    found = Host.simulated("hgx8")
    found.apply(found.binding.plan_bind([GPU, OTHER]))
    return found


def kernel(host: Host) -> Simulated:
    assert isinstance(host.session.kernel, Simulated)
    return host.session.kernel


def put(host: Host, path: str, text: str) -> None:
    """Another program writes a file."""
    tree = kernel(host)
    tree.tree.put(path, text)


def names(host: Host) -> list[str]:
    return [device["name"] for device in json.loads(host.session.kernel.read(FILE))["devices"]]


def apply(host: Host, intent: CdiIntent, ledger: Ledger | None = None) -> Result:
    return host.apply(CdiApi(host.session, ledger or Ledger()).plan(intent)).result


EVERY = CdiIntent(everything=True)


class TestGenerate:
    def test_all_devices_by_address(self, host: Host) -> None:
        assert apply(host, EVERY) == Result.DONE
        assert names(host) == ["0000-1b-00.0", "0000-43-00.0"]
        assert apply(host, EVERY) == Result.NOTHING

    def test_the_file_is_removed_with_the_last_device(self, host: Host) -> None:
        apply(host, EVERY)
        host.apply(host.binding.plan_unbind([GPU]))
        assert apply(host, EVERY) == Result.DONE
        assert names(host) == ["0000-43-00.0"]
        host.apply(host.binding.plan_unbind([OTHER]))
        assert apply(host, EVERY) == Result.DONE
        assert not kernel(host).has(FILE)

    def test_only_claimed_devices_without_all(self, host: Host) -> None:
        ended = a_claim("b", OTHER, state=ClaimState.RELEASED)
        assert apply(host, CdiIntent(), Ledger(a_claim("a", GPU), ended)) == Result.DONE
        assert names(host) == ["0000-1b-00.0"]
        assert apply(host, CdiIntent(), Ledger(ended)) == Result.DONE
        assert not kernel(host).has(FILE)

    def test_one_claim_changes_nothing_of_the_others(self, host: Host) -> None:
        first, second = a_claim("a", GPU), a_claim("b", OTHER)
        ledger = Ledger(first, second)
        apply(host, CdiIntent(claim="a"), ledger)
        assert names(host) == ["0000-1b-00.0"]
        apply(host, CdiIntent(claim="b"), ledger)
        assert names(host) == ["0000-1b-00.0", "0000-43-00.0"]
        over = Ledger(a_claim("a", GPU, state=ClaimState.RELEASED), second)
        apply(host, CdiIntent(claim="a"), over)
        assert names(host) == ["0000-43-00.0"]

    def test_a_claimed_device_without_a_node_is_refused(self, host: Host) -> None:
        host.apply(host.binding.plan_unbind([GPU]))
        with pytest.raises(HostError, match=r"0000:1b:00\.0 has no group node"):
            CdiApi(host.session, Ledger(a_claim("a", GPU))).plan(CdiIntent(claim="a"))
        with pytest.raises(HostError, match=r"0000:43:00\.0 has no cdev node"):
            CdiApi(host.session, Ledger(a_claim("a", OTHER))).plan(CdiIntent(claim="a", node=Node.CDEV))

    def test_it_is_gone_after_a_reboot_and_the_names_are_the_same_then(self, host: Host) -> None:
        apply(host, EVERY)
        before = names(host)
        kernel(host).reboot("5e8c5df7-c4fa-4719-904f-5579cd5ac35f")
        assert not kernel(host).has(FILE)
        host.apply(host.binding.plan_bind([GPU, OTHER]))
        apply(host, EVERY)
        assert names(host) == before

    def test_a_saved_plan_is_applied_later(self, host: Host) -> None:
        plan = CdiApi(host.session, Ledger()).plan(EVERY)
        again = host.read_plan(plan.model_dump_json())
        assert host.apply(host.replan(again)).result == Result.DONE
        with pytest.raises(VfioctlError):
            host.replan(again)

    def test_it_is_put_back_if_it_does_not_stay(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another program removes what vfioctl has written, before vfioctl reads it again."""
        writes = Simulated.replace_file

        def replace_file(self: Simulated, path: str, text: str | None) -> None:
            writes(self, path, text and text.replace("0000-1b", "0000-1c"))

        monkeypatch.setattr(Simulated, "replace_file", replace_file)
        with pytest.raises(VerifyError):
            apply(host, EVERY)

    @pytest.mark.parametrize(
        "change",
        [{"name": "/var/run/cdi/nvidia.json"}, {"name": "/etc/cron.d/x"}, {"after": '{"cdiVersion": "0.5.0"}'}],
        ids=["other file", "other place", "other text"],
    )
    def test_a_forged_plan_is_refused(self, host: Host, change: dict[str, str]) -> None:
        """A plan file may neither name another file nor bring a hook that runs as root."""
        plan = CdiApi(host.session, Ledger()).plan(EVERY)
        forged = plan.changes[0].model_copy(update=change)
        step = plan.steps[0].model_copy(update={"target": forged.name, "value": forged.after})
        unnamed = plan.model_copy(update={"id": "", "changes": (forged,), "steps": (step,)})
        with pytest.raises(BadDocument):
            host.replan(unnamed.model_copy(update={"id": unnamed.digest()}))


class TestFilesOfOthers:
    def document(self, kind: str = KIND, name: str = "0000-1b-00.0") -> str:
        edits = {"deviceNodes": [{"path": "/dev/x"}]}
        return json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": [{"name": name, "containerEdits": edits}]})

    @pytest.mark.parametrize("path", ["/etc/cdi/other.json", "/var/run/cdi/other.json"])
    def test_a_name_that_one_defines_is_a_conflict(self, host: Host, path: str) -> None:
        put(host, path, self.document())
        with pytest.raises(ConflictError, match=f"{KIND}=0000-1b-00.0 is defined by {path} already"):
            CdiApi(host.session, Ledger()).plan(EVERY)
        assert apply(host, CdiIntent(everything=True, kind="example.com/gpu")) == Result.DONE

    @pytest.mark.parametrize(
        "text",
        [
            'cdiVersion: 0.5.0\nkind: "vfioctl/vfio"\ndevices:\n- name: "0000-1b-00.0"\n',
            "kind: vfioctl/vfio # ours\ndevices:\n    - containerEdits: {}\n      name: 0000-1b-00.0\n",
        ],
    )
    def test_also_in_yaml(self, host: Host, text: str) -> None:
        put(host, "/etc/cdi/other.yaml", text)
        with pytest.raises(ConflictError, match=r"/etc/cdi/other\.yaml"):
            CdiApi(host.session, Ledger()).plan(EVERY)

    def test_other_kinds_and_names_are_no_conflict(self, host: Host) -> None:
        put(host, "/etc/cdi/a.json", self.document(kind="nvidia.com/gpu"))
        put(host, "/etc/cdi/b.json", self.document(name="all"))
        put(host, "/etc/cdi/c.json", "{ damaged")
        assert apply(host, EVERY) == Result.DONE
        assert kernel(host).read("/etc/cdi/c.json") == "{ damaged"

    @pytest.mark.parametrize("text", ["", "{}", "{ damaged", "[]"])
    def test_a_file_in_its_place_is_not_touched(self, host: Host, text: str) -> None:
        put(host, FILE, text or self.document())
        with pytest.raises(Foreign, match="not as vfioctl writes it"):
            CdiApi(host.session, Ledger()).plan(EVERY)

    def test_a_file_that_others_changed_meanwhile_stays_as_they_left_it(self, host: Host) -> None:
        plan = CdiApi(host.session, Ledger()).plan(EVERY)
        put(host, FILE, self.document())
        with pytest.raises(ConflictError):
            host.apply(plan)
        assert kernel(host).read(FILE) == self.document()


class TestNodes:
    def test_companions_have_names_with_cdev_nodes_only(self) -> None:
        host = Host.simulated("workstation")
        gpu = host.find(["gpu1"])[0]
        host.apply(host.binding.plan_bind([gpu], with_group=True))
        inventory = host.inventory()
        card = {f.address for f in inventory.functions if f.address.slot == gpu.slot and f.on_vfio}
        assert len(card) > 1
        found = choose.passthrough(inventory, (), Node.GROUP)
        assert {device.subject for device in choose.every_device(found, Node.GROUP)} == {gpu}
        with_cdevs = choose.Passthrough(found.nodes, found.companions)
        assert {device.subject for device in choose.every_device(with_cdevs, Node.CDEV)} == set(found.nodes)
        claim = a_claim("a", gpu, *(card - {gpu}), companions=len(card) - 1)
        assert choose.claimed(claim, Node.GROUP) == (gpu,)
        assert set(choose.claimed(claim, Node.CDEV)) == card

    def test_of_the_vfs_of_nvidia_those_with_a_type_have_names(self) -> None:
        found = choose.passthrough(Host.simulated("l40s").inventory(), (), Node.CDEV)
        assert list(found.nodes) == ["0000:41:00.4", "0000:41:00.5"]

    def test_names_that_share_a_node_are_noted(self) -> None:
        both = [CdiDevice(GPU, "/dev/vfio/1"), CdiDevice(OTHER, "/dev/vfio/1")]
        (note,) = choose.notes(both)
        assert "0000-1b-00.0 and 0000-43-00.0 share /dev/vfio/1" in note


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def _bound(self, run: Run) -> None:
        assert run("bind 1b:00.0 43:00.0 --yes --simulate hgx8").code == 0

    def test_pages(self, run: Run, golden: Golden) -> None:
        lines = (
            "cdi generate --all --dry-run --simulate hgx8",
            "cdi generate --all --simulate hgx8",
            "cdi list --simulate hgx8",
            "cdi list --json --simulate hgx8",
            "cdi generate --simulate hgx8",
            "cdi list --simulate hgx8",
        )
        text = "".join(f"$ vfioctl {line}\n{timeless(run(line).out)}" for line in lines)
        golden("claims/cdi.txt", text)

    def test_to_a_directory_without_a_name_is_refused(self, run: Run) -> None:
        answer = run("cdi generate --all --output= --simulate hgx8")
        assert (answer.code, answer.err.splitlines()[0]) == (2, "vfioctl: --output is empty")

    def test_to_another_directory(self, run: Run, tmp_path: Path) -> None:
        there = tmp_path / "files"
        answer = run(f"cdi generate --all --output {there} --kind example.com/gpu --simulate hgx8")
        assert answer.code == 0, answer.err
        (file,) = there.iterdir()
        assert file.name == "vfioctl-example.com-gpu.json"
        assert file.stat().st_mode & 0o777 == 0o644
        assert run(f"cdi validate {file}").out == f"{file}: valid, cdiVersion 0.5.0, 2 devices\n"
        assert run("unbind 1b:00.0 43:00.0 --yes --simulate hgx8").code == 0
        answer = run(f"cdi generate --all --output {there} --kind example.com/gpu --simulate hgx8 --json")
        assert answer.document == {"path": str(file), "written": True, "document": None}
        assert list(there.iterdir()) == []

    def test_a_dry_run_writes_nothing(self, run: Run, tmp_path: Path) -> None:
        answer = run(f"cdi generate --all --output {tmp_path}/new --dry-run --simulate hgx8")
        assert len(answer.document["devices"]) == 2
        assert not (tmp_path / "new").exists()
        plan = run("cdi generate --all --dry-run --json --simulate hgx8").document
        assert plan["intent"]["verb"] == "cdi generate"

    def test_a_file_of_another_program_there_is_not_touched(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "vfioctl.json").write_text("{}")
        answer = run(f"cdi generate --all --output {tmp_path} --simulate hgx8 --json")
        assert (answer.code, answer.document["error"]["kind"]) == (4, "Foreign")
        assert (tmp_path / "vfioctl.json").read_text() == "{}"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("cdi generate --all --claim x", "exclude each other"),
            ("cdi generate --kind nokind", "not a kind of CDI devices"),
            ("cdi generate --claim nowhere", "there is no claim"),
        ],
    )
    def test_requests_that_are_refused(self, run: Run, words: str, said: str) -> None:
        answer = run(f"{words} --json --simulate hgx8")
        assert answer.code == BadSpec.exit_code
        assert said in answer.document["error"]["message"]


class TestClaims:
    """With the ledger: from the claim to the container, and back."""

    def claim(self, run: Run, device: str, owner: str = "pod/default/train/main") -> str:
        answer = run(f"claim create --owner {owner} --device {device} --yes --json --simulate hgx8")
        assert answer.code == 0, answer.err
        (found,) = answer.document["devices"]
        assert found["cdi"] == f"vfioctl/vfio=0000-{device.replace(':', '-')}"
        return str(answer.document["id"])

    def test_what_is_claimed_is_named(self, run: Run) -> None:
        first, second = self.claim(run, "1b:00.0"), self.claim(run, "43:00.0", "vm/two")
        assert run("bind 52:00.0 --yes --simulate hgx8").code == 0
        assert run("cdi generate --simulate hgx8").code == 0
        (file,) = run("cdi list --json --simulate hgx8").document["files"]
        assert [(each["name"], each["claim"]) for each in file["devices"]] == [
            ("0000-1b-00.0", first),
            ("0000-43-00.0", second),
        ]
        assert f"CDI device {KIND}=0000-1b-00.0" in run(f"claim show {first} --simulate hgx8").out
        assert run(f"claim release {first} --yes --simulate hgx8").code == 0
        assert run(f"cdi generate --claim {first} --simulate hgx8").code == 0
        assert run("cdi list --simulate hgx8").out.splitlines()[1:] == [
            f"{KIND}=0000-43-00.0  /dev/vfio/27  {second}  vfioctl     {FILE}"
        ]
        assert run(f"claim release {second} --yes --simulate hgx8").code == 0
        assert run("cdi generate --simulate hgx8").code == 0
        assert run("cdi list --simulate hgx8").out == "No CDI file defines a device.\n"

    @pytest.mark.parametrize("words", ["cdi generate --claim {}", "oci inject {folder} --claim {}"])
    def test_a_share_has_no_node_and_names_what_the_container_is_given(
        self, run: Run, words: str, tmp_path: Path
    ) -> None:
        made = run("claim create --owner pod/ml/a/b --cores 40 --device 1b:00.0 --json --simulate hgx8").document
        (tmp_path / "config.json").write_text('{"ociVersion": "1.0.2", "linux": {}}')
        answer = run(f"{words.format(made['id'], folder=tmp_path)} --simulate hgx8")
        assert answer.code == 3
        assert "GPUs with their host driver, not devices on VFIO" in answer.err
        assert f"give the container nvidia.com/gpu={made['shares'][0]['uuid']}" in answer.err

    def test_a_saved_plan_is_planned_again_for_the_claim(self, run: Run, tmp_path: Path) -> None:
        claim = self.claim(run, "1b:00.0")
        (tmp_path / "plan.json").write_text(run(f"cdi generate --claim {claim} --dry-run --json --simulate hgx8").out)
        answer = run(f"apply {tmp_path}/plan.json --yes --simulate hgx8")
        assert answer.code == 0, answer.err
        assert len(run("cdi list --json --simulate hgx8").document["files"]) == 1

    def test_a_bundle_gets_them(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"ociVersion": "1.0.2", "process": {}, "linux": {}}')
        claim = self.claim(run, "1b:00.0")
        line = f"oci inject {tmp_path} --claim {claim[:4]} --json --simulate hgx8"
        assert run(f"{line} --dry-run").document["written"] is False
        assert run(line).document["nodes"] == ["/dev/vfio/vfio", "/dev/vfio/21"]
        assert run(line).document["changes"] == []
        other = self.claim(run, "43:00.0")
        answer = run(f"oci inject {tmp_path} --claim {other} --json --simulate hgx8")
        assert (answer.code, answer.document["error"]["facts"]) == (4, {"claim": claim})

    def test_what_changes_in_a_bundle_is_listed(self, run: Run, tmp_path: Path) -> None:
        config = tmp_path / "config.json"
        config.write_text(before := '{"ociVersion": "1.0.2", "process": {}, "linux": {}}')
        claim = self.claim(run, "1b:00.0")
        line = f"oci inject {tmp_path} --claim {claim} --simulate hgx8"
        preview = run(f"{line} --dry-run")
        assert "/dev/vfio/21" in preview.out
        assert preview.err == "Nothing was changed: this is a dry run.\n"
        assert config.read_text() == before
        done = run(line)
        assert (done.out, done.err) == (preview.out, "")
        assert "/dev/vfio/21" in config.read_text()
        assert run(line).out == f"{tmp_path}/config.json has the devices of claim {claim} already.\n"

    def test_a_bundle_is_named_or_edited_on_stdin(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = tmp_path / "config.json"
        config.write_text(before := '{"ociVersion": "1.0.2", "process": {}, "linux": {}}')
        line = f"oci inject --claim {self.claim(run, '1b:00.0')} --simulate hgx8"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(before.encode())))
        edited = run(line)
        assert config.read_text() == before
        state = {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 7, "bundle": str(tmp_path)}
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(state).encode())))
        assert run(line).code == 0
        assert json.loads(edited.out) == json.loads(config.read_text()) != json.loads(before)
        monkeypatch.setattr(sys, "stdin", None)
        assert (refused := run(line)).code == 2
        assert "name the bundle" in refused.err

    def test_a_damaged_ledger_costs_only_the_claims(self, run: Run, tmp_path: Path) -> None:
        self.claim(run, "1b:00.0")
        assert run("cdi generate --simulate hgx8").code == 0
        (tmp_path / "damaged.db").write_bytes(b"x" * 4096)
        answer = run(f"cdi list --json --simulate hgx8 --ledger {tmp_path}/damaged.db")
        assert answer.code == 0
        assert answer.document["files"][0]["devices"][0]["claim"] is None
        assert "ledger" in answer.document["warnings"][0]


class TestMediated:
    def test_a_vgpu_is_named_by_its_uuid(self) -> None:
        host = Host.simulated("t4")
        outcome = host.apply(host.vgpu.plan_create("T4-4C", count=1))
        (uuid,) = outcome.plan.subjects
        host.apply(CdiApi(host.session, Ledger()).plan(EVERY))
        assert names(host) == [uuid]


class TestValidate:
    def test_each_problem_has_a_line(self, run: Run, tmp_path: Path) -> None:
        good, bad = tmp_path / "good.json", tmp_path / "bad.json"
        good.write_text(text_of(KIND, [CdiDevice(GPU, "/dev/vfio/1")]))
        bad.write_text('{"cdiVersion": "0.5.0", "kind": "a", "colour": 1, "devices": []}')
        answer = run(f"cdi validate {good} {bad}")
        assert answer.code == BadDocument.exit_code
        assert [line.partition(": ")[0] for line in answer.out.splitlines()] == [str(good), *[str(bad)] * 3]
        assert "1 file is not valid" in answer.err
        answer = run(f"cdi validate {good} {bad} --json")
        assert answer.code == BadDocument.exit_code
        assert [bool(each["problems"]) for each in answer.document["files"]] == [False, True]

    def test_a_fifo_is_not_opened(self, run: Run, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        answer = run(f"cdi validate {tmp_path}/fifo {tmp_path}/none")
        assert answer.code == BadDocument.exit_code
        assert "cannot be read: it is a FIFO" in answer.out
        assert "cannot be read: No such file" in answer.out


@needs_root
class TestTwoUsers:
    """Root writes to a directory that another user owns, or has put links into."""

    def generate(self, there: Path) -> Answer:
        words = ["cdi", "generate", "--all", "--json", "--simulate", "hgx8", "--output", str(there)]
        program = "import sys; from vfioctl.app import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
        return Answer(done.returncode, done.stdout, done.stderr)

    def test_a_directory_of_another_user_is_refused(self, tmp_path: Path) -> None:
        there = tmp_path / "theirs"
        there.mkdir()
        os.chown(there, NOBODY, NOBODY)
        answer = self.generate(there)
        assert answer.code == HostError.exit_code
        assert "belongs to user 65534" in answer.document["error"]["kernel_said"]
        assert list(there.iterdir()) == []

    @pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo], ids=["link", "fifo"])
    def test_a_link_or_a_fifo_in_its_place_is_refused(self, tmp_path: Path, make: Callable[[Path], None]) -> None:
        before = Path("/etc/passwd").read_bytes()
        make(tmp_path / "vfioctl.json")
        answer = self.generate(tmp_path)
        assert answer.code == HostError.exit_code, answer
        assert Path("/etc/passwd").read_bytes() == before


def test_claimed_devices_without_a_node_are_reported(run: Run) -> None:
    run("claim create --owner vm/a --device gpu0 --no-bind --yes --simulate hgx8")
    answer = run("cdi generate --simulate hgx8")
    assert (answer.code, "no claimed device has a group node of VFIO: 0000:1b:00.0" in answer.err) == (3, True)
    run("claim create --owner vm/b --device gpu1 --yes --simulate hgx8")
    plan = run("cdi generate --dry-run --json --simulate hgx8").document
    assert plan["notes"] == ["0000:1b:00.0 is claimed and has no node of VFIO, so it is not in the file"]

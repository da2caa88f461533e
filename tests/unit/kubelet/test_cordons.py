"""Devices that no pod gets: the ledger's records, the commands, and waiting for the pods that have one."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, machine, original, reduced
from tests.unit.conftest import Run
from tests.unit.kubelet.values import MDEV, NAME, WEB
from tests.users import as_nobody, as_root
from vfioctl.claims.model.claim import Claim
from vfioctl.core.events import Cancel
from vfioctl.errors import Busy, Cancelled, StoreDamaged, UnknownDevice
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree, form
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kubelet.ledger.cordons import CordonRecords, cordons
from vfioctl.kubelet.model.cordon import CORDON, XID, Cordon
from vfioctl.kubelet.model.device import LABEL
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.session import BOOT_ID, Session

GPU0, GPU1, *_ = map(PciAddress, FOUR_GPUS)
SINCE = "2026-01-01T10:20:30.000+00:00"
XID_OF_GPU0 = Cordon(GPU0, XID, "XID 79", SINCE, "")


@pytest.fixture
def tree() -> Tree:
    return copy(reduced("hgx8", *FOUR_GPUS))


@pytest.fixture
def host(tree: Tree, fast_folder: Path) -> Host:
    return machine(tree, fast_folder / "ledger.db")


def records(host: Host) -> CordonRecords:
    return CordonRecords(host.session.store, host.session.publish)


def pod(host: Host, *devices: Subject, **more: object) -> Claim:
    request = ClaimRequest(owner=WEB.owner, devices=devices, labels={LABEL: NAME}, **more)  # type: ignore[arg-type]
    return host.claims.create(request).claim


class TestTheLedger:
    def test_has_none_at_first(self, host: Host) -> None:
        assert host.kubelet.cordons() == {}

    def test_keeps_a_cordon_over_a_reboot_and_an_error_not(self, host: Host, tree: Tree) -> None:
        records(host).add(XID_OF_GPU0, host.session.boot_id)
        records(host).add(Cordon(GPU1, CORDON, "loud", SINCE, "alice"), host.session.boot_id)
        assert set(host.kubelet.cordons()) == {GPU0, GPU1}
        tree.put(BOOT_ID, "11111111-2222-4333-8444-555555555555")
        assert host.kubelet.cordons() == {GPU1: Cordon(GPU1, CORDON, "loud", SINCE, "alice")}

    def test_has_one_of_a_kind(self, host: Host) -> None:
        for why in ("first", "second"):
            records(host).add(Cordon(GPU0, CORDON, why, SINCE, ""), host.session.boot_id)
        assert host.kubelet.cordons()[GPU0].why == "first"

    def test_removes_by_kind(self, host: Host) -> None:
        records(host).add(XID_OF_GPU0, host.session.boot_id)
        records(host).add(Cordon(GPU0, CORDON, "", SINCE, ""), host.session.boot_id)
        assert records(host).remove(GPU0, XID)
        assert not records(host).remove(GPU0, XID)
        assert host.kubelet.cordons()[GPU0].kind == CORDON

    def test_takes_no_other_kind(self, host: Host) -> None:
        with pytest.raises((StoreDamaged, sqlite3.IntegrityError)):
            records(host).add(Cordon(GPU0, "mood", "", SINCE, ""), host.session.boot_id)

    def test_of_an_earlier_release_gets_the_table(self, host: Host) -> None:
        host.claims.claims()
        records(host).add(XID_OF_GPU0, host.session.boot_id)
        with closing(sqlite3.connect(host.session.ledger)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            db.executescript("""
                DROP TABLE kubelet_cordon;
                DROP TABLE claim_shared;
                ALTER TABLE claim DROP COLUMN shares;
                PRAGMA user_version = 7;
            """)
        assert version == 9
        again = machine(copy(original("laptop")), host.session.ledger)
        records(again).add(XID_OF_GPU0, again.session.boot_id)
        assert set(again.kubelet.cordons()) == {GPU0}

    def test_says_who_and_why_in_words(self) -> None:
        assert Cordon(GPU0, CORDON, "", SINCE, "").words == "cordoned by root since 2026-01-01T10:20Z"
        assert Cordon(GPU0, CORDON, "loud", SINCE, "al").words == "cordoned by al since 2026-01-01T10:20Z: loud"
        assert XID_OF_GPU0.words == "XID 79"


@as_root
class TestAnOrdinaryUser:
    @pytest.fixture
    def host(self, tree: Tree, fast_folder: Path) -> Host:
        fast_folder.chmod(0o755)
        kernel = Simulated(tree, "simulated")
        ledger, public = fast_folder / "private" / "ledger.db", fast_folder / "public" / "public.json"
        return Host(Session(kernel, ledger, settle=0.0, lock_wait=0.0, public=public))

    def test_knows_what_root_has_cordoned(self, host: Host) -> None:
        host.kubelet.cordon([GPU0], why="loud")
        (cordon,) = host.kubelet.cordons().values()
        assert as_nobody(lambda: [list(found) for found in host.kubelet.cordons().values()]) == [list(cordon)]

    def test_sees_it_in_the_status(self, host: Host, monkeypatch: pytest.MonkeyPatch, fast_folder: Path) -> None:
        config = fast_folder / "config.toml"
        config.write_text(f'[[kubelet.resources]]\nname = "{NAME}"\n')
        config.chmod(0o644)
        monkeypatch.setenv("VFIOCTL_CONFIG", str(config))
        host.kubelet.cordon([GPU0])
        claim = host.claims.create(ClaimRequest(owner="vm/a", devices=(GPU1,))).claim

        def reasons() -> list[str]:
            return [device.reason[:20] for device in host.kubelet.status().resources[0].devices]

        assert as_nobody(reasons) == reasons() == ["cordoned by root sin", f"claimed by vm/a ({claim.id})"[:20], "", ""]

    def test_sees_what_is_left_of_a_shared_gpu(
        self, host: Host, monkeypatch: pytest.MonkeyPatch, fast_folder: Path
    ) -> None:
        config = fast_folder / "config.toml"
        config.write_text('[[kubelet.resources]]\nname = "a.example/core"\ndevices = "cores"\n')
        config.chmod(0o644)
        monkeypatch.setenv("VFIOCTL_CONFIG", str(config))
        host.claims.create(ClaimRequest(owner="pod/a/b/c", devices=(GPU0,), cores=40))

        def healthy() -> list[int]:
            parts = [part for part in host.kubelet.status().resources[0].devices if part.is_healthy]
            return [sum(part.subject == gpu for part in parts) for gpu in FOUR_GPUS]

        assert as_nobody(healthy) == healthy() == [60, 100, 100, 100]

    def test_may_not_cordon(self, host: Host) -> None:
        host.kubelet.cordon([GPU0])

        def refused() -> bool:
            for change in (host.kubelet.cordon, host.kubelet.uncordon):
                with pytest.raises(StoreDamaged) as refusal:
                    change([GPU0])
                assert refusal.value.hint == "run it as root"
            return True

        assert as_nobody(refused)
        assert set(host.kubelet.cordons()) == {GPU0}

    def test_is_told_of_a_document_that_is_not_understood(self, host: Host) -> None:
        host.kubelet.cordon([GPU0])
        file = host.session.published._file
        assert file
        document = json.loads(file.read_text())
        document["records"]["kubelet"]["cordons"] = [["one"]]
        file.write_text(json.dumps(document))

        def refused() -> bool:
            with pytest.raises(StoreDamaged, match="cordoned devices"):
                host.kubelet.cordons()
            return True

        assert as_nobody(refused)


class TestCordon:
    def test_without_pods_returns_at_once(self, host: Host) -> None:
        assert host.kubelet.cordon(["gpu0", GPU0, "gpu1"], why="x") == (GPU0, GPU1)
        assert {cordon.why for cordon in host.kubelet.cordons().values()} == {"x"}

    def test_waits_until_the_pod_is_gone(self, host: Host) -> None:
        claim, told = pod(host, GPU0), []

        def release(claims: object, left: float) -> None:
            told.append((claims, left))
            host.claims.release(claim.id)

        assert host.kubelet.cordon([GPU0], wait=30.0, waiting=release) == (GPU0,)
        assert [claims for claims, _ in told] == [[claim]]
        host.apply(host.binding.plan_bind([GPU0]))

    def test_that_waits_too_long_is_busy_and_stays(self, host: Host) -> None:
        claim = pod(host, GPU0)
        with pytest.raises(Busy, match=f"^pod/default/web/main still has {GPU0}$") as busy:
            host.kubelet.cordon([GPU0], wait=0.01)
        assert (busy.value.facts, busy.value.next_command) == ({"claims": [claim.id]}, f"vfioctl claim show {claim.id}")
        assert set(host.kubelet.cordons()) == {GPU0}

    def test_waits_for_shares_of_a_gpu(self, host: Host) -> None:
        pod(host, GPU0, cores=40)
        pod(host, GPU1, cores=40)
        with pytest.raises(Busy, match=f"^pod/default/web/main still has {GPU0}$"):
            host.kubelet.cordon([GPU0], wait=0.01)

    def test_does_not_wait_for_others(self, host: Host) -> None:
        pod(host, GPU1)
        host.claims.create(ClaimRequest(owner="vm/a", devices=(GPU0,)))
        began = time.monotonic()
        host.kubelet.cordon([GPU0], wait=30.0)
        assert time.monotonic() - began < 10

    def test_of_a_gpu_waits_for_the_vgpus_on_it(self, fast_folder: Path) -> None:
        host = machine(copy(original("a2")), fast_folder / "ledger.db")
        pod(host, vgpu="A2-4C")
        with pytest.raises(Busy, match="still has"):
            host.kubelet.cordon(["0000:08:00.0"], wait=0.01)

    def test_can_be_stopped(self, host: Host) -> None:
        pod(host, GPU0)
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        cancel: Cancel = stop.is_set
        with pytest.raises(Cancelled):
            host.kubelet.cordon([GPU0], wait=60.0, cancel=cancel)

    def test_of_a_device_that_is_gone_can_be_lifted(self, host: Host, tree: Tree) -> None:
        host.kubelet.cordon([GPU0])
        home = tree.resolve(f"{PCI_DEVICES}/{GPU0}")
        tree.remove(f"{PCI_DEVICES}/{GPU0}")
        tree.remove(home)
        assert host.kubelet.uncordon([GPU0]) == (GPU0,)
        assert cordons(host.session) == {}

    @pytest.mark.parametrize("word", ["gpu9", "0000:ff:00.0", str(MDEV), "kata"])
    def test_of_an_unknown_device_is_refused(self, host: Host, word: str) -> None:
        for change in (host.kubelet.cordon, host.kubelet.uncordon):
            with pytest.raises((UnknownDevice, ValueError, Exception)) as refusal:
                change([GPU0, word])
            assert getattr(refusal.value, "exit_code", 2) == 2
        assert host.kubelet.cordons() == {}, "all or none"

    def test_of_an_error_of_nvml_is_lifted_too(self, host: Host) -> None:
        records(host).add(XID_OF_GPU0, host.session.boot_id)
        assert host.kubelet.uncordon([GPU0, GPU1]) == (GPU0,)


class TestTheCommands:
    @pytest.fixture
    def line(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        (tmp_path / "node.host").write_text(form(tree))
        monkeypatch.delenv("VFIOCTL_CONFIG", raising=False)
        return f"--simulate {tmp_path / 'node.host'}"

    def test_cordon_and_uncordon(self, run: Run, line: str) -> None:
        assert run(f"kubelet cordon gpu0 gpu1 {line}").out == f"cordoned: {GPU0}, {GPU1}\n"
        assert run(f"kubelet uncordon gpu0 --json {line}").document == {"uncordoned": [GPU0]}
        assert run(f"kubelet uncordon gpu0 --json {line}").document == {"uncordoned": []}
        assert run(f"kubelet uncordon gpu0 {line}").out == "None of these devices was cordoned.\n"
        assert run(f"kubelet cordon gpu0 --json {line}").document == {"cordoned": [GPU0]}

    def test_a_timeout_is_4(self, run: Run, line: str) -> None:
        run(f"claim create --owner {WEB.owner} --device gpu0 --label {LABEL}={NAME} {line}")
        answer = run(f"kubelet cordon gpu0 --wait 1s {line}")
        assert (answer.code, answer.out) == (4, "")
        assert f"{WEB.owner} still has {GPU0}" in answer.err
        assert run(f"kubelet cordon gpu0 --wait 1s --json {line}").document["error"]["kind"] == "Busy"

    def test_no_wait_is_no_timeout(self, run: Run, line: str) -> None:
        run(f"claim create --owner {WEB.owner} --device gpu0 --label {LABEL}={NAME} {line}")
        assert run(f"kubelet cordon gpu0 --no-wait {line}").code == 0

    def test_that_waits_says_for_whom(self, run: Run, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
        run(f"claim create --owner {WEB.owner} --device gpu0 --label {LABEL}={NAME} {line}")
        monkeypatch.setattr("vfioctl.kubelet.api._PAUSE", 0.05)
        answer = run(f"kubelet cordon gpu0 --wait 1s {line}")
        assert answer.err.count(f"{WEB.owner} has {GPU0}") == 1

    @pytest.mark.parametrize("command", ["cordon", "uncordon"])
    def test_of_a_recorded_host_are_refused(self, run: Run, command: str) -> None:
        answer = run(f"kubelet {command} gpu0 --host hgx8")
        assert (answer.code, answer.out) == (3, "")
        assert "use --simulate to try changes" in answer.err

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ("cordon gpu9", "there is no gpu9 here"),
            (f"cordon {MDEV}", f"no resource has a device {MDEV}"),
            ("uncordon gpu9", "there is no gpu9 here"),
            ("cordon gpu0 --wait soon", "soon"),
            ("cordon gpu0 --wait 1s --no-wait", "exclude each other"),
            (f"cordon gpu0 --why {'x' * 201}", "the reason must be one line of at most 200 characters"),
            ("cordon gpu0 --why \x1b[2J", "the reason must be one line of at most 200 characters"),
            ("cordon", "DEVICE"),
        ],
    )
    def test_what_is_wrong_is_2(self, run: Run, line: str, words: str, told: str) -> None:
        answer = run(f"kubelet {words} {line}")
        assert answer.code == 2
        assert told in answer.err

"""MPS from start to stop with a control program in processes of its own, and what may go wrong between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.unit.sharing.mps.conftest import GPU, NAME, OTHER, HostWithMps, kill
from vfioctl.core.change import Plan, Result
from vfioctl.errors import DeviceInUse, HostError, StalePlan, VerifyError, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.sharing.mps.api import MpsApi
from vfioctl.sharing.mps.share import Limits, MpsShare
from vfioctl.sharing.mps.status import Daemon, MpsStatus

GIB = 1 << 30
ENV = f"/run/vfioctl/mps/{NAME}.env"
UNIT = f"vfioctl-mps@{NAME}.service"
LARGE = MpsShare("aaaaaaaa", "pod/a/b/c", PciAddress(GPU), 60, 8 * GIB)
SMALL = MpsShare("bbbbbbbb", "pod/a/d/c", PciAddress(GPU), 25, 2 * GIB)


def api(host: Host, shares: Sequence[MpsShare] = ()) -> MpsApi:
    return MpsApi(host.session, lambda _: shares)


def start(host: Host, threads: int | None = 40, memory: int | None = 2 * GIB, shares: Sequence[MpsShare] = ()) -> None:
    assert host.apply(api(host, shares).plan_start(GPU, threads=threads, memory=memory)).result is Result.DONE


def only(status: MpsStatus) -> Daemon:
    (daemon,) = status.daemons
    return daemon


def differing(status: MpsStatus) -> list[str]:
    return [difference.words for difference in status.differences]


def mode(kernel: HostWithMps) -> str:
    return kernel.tree.properties[f"nvml:{GPU}"]["compute_mode"]


def kinds(plan: Plan) -> list[str]:
    return [change.kind for change in plan.changes]


class TestStart:
    def test_sets_all_and_is_verified(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        assert mode(kernel) == "Exclusive_Process"
        daemon = only(api(host).status())
        assert (daemon.state, daemon.limits, daemon.told.gpu) == ("active", Limits(40, 2 * GIB), GPU)
        assert not differing(api(host).status())
        assert kernel.hidden("get_default_device_pinned_mem_limit 0") == "2048M"

    def test_is_idempotent(self, host: Host) -> None:
        start(host)
        assert api(host).plan_start(GPU, threads=40, memory=2 * GIB).nothing_to_do
        with pytest.raises(DeviceInUse, match="was started before") as caught:
            api(host).plan_start(GPU, threads=41)
        assert caught.value.next_command == f"vfioctl mps apply {GPU}"

    def test_takes_the_largest_of_the_ledgers_shares(self, host: Host) -> None:
        start(host, None, None, [SMALL, LARGE])
        assert only(api(host, [SMALL, LARGE]).status()).limits == Limits(60, 8 * GIB)

    def test_of_another_gpu_is_another_daemon(self, host: Host) -> None:
        start(host)
        host.apply(api(host).plan_start(OTHER, threads=10))
        assert [daemon.limits.threads for daemon in api(host).status().daemons] == [40, 10]
        assert [daemon.told.gpu for daemon in api(host).status([OTHER]).daemons] == [OTHER]

    def test_without_the_program_is_refused_before_anything_changes(self, host: Host, standin: Path) -> None:
        (standin / "nvidia-cuda-mps-control").unlink()
        with pytest.raises(HostError, match="this host has no MPS"):
            api(host).plan_start(GPU)
        (standin / "nvidia-cuda-mps-control").touch()

    def test_of_a_daemon_that_dies_at_once_is_rolled_back(self, host: Host, kernel: HostWithMps, standin: Path) -> None:
        (standin / "fault").write_text("die")
        host.session.engine._settle = 0.5  # type: ignore[attr-defined]
        plan = api(host).plan_start(GPU, threads=40)
        with pytest.raises(HostError, match="was started, and does not answer"):
            host.apply(plan)
        assert mode(kernel) == "Default"
        assert not kernel.has(ENV)
        assert kernel.daemons[UNIT].poll() == 1
        assert not api(host).status().daemons

    def test_with_a_limit_that_the_daemon_ignores_is_rolled_back(
        self, host: Host, kernel: HostWithMps, fast_folder: Path
    ) -> None:
        """As the real one ignores limits by UUID: no error, and no limit."""
        folder = fast_folder / "pipes" / NAME
        folder.mkdir(parents=True)
        (folder / "fault").write_text("refuse")
        host.session.engine._settle = 0.5  # type: ignore[attr-defined]
        with pytest.raises(VerifyError, match="should be 2 GiB") as caught:
            host.apply(api(host).plan_start(GPU, memory=2 * GIB))
        assert "ignores them" in caught.value.hint
        assert mode(kernel) == "Default"
        assert UNIT not in kernel.daemons


class TestStop:
    def test_puts_all_back(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        host.apply(api(host).plan_stop())
        assert mode(kernel) == "Default"
        assert not kernel.has(ENV)
        assert not kernel.daemons
        assert not api(host).status().daemons

    def test_with_clients_is_refused_unless_forced(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        kernel.hidden("_client 0 4711")
        with pytest.raises(DeviceInUse, match="has clients: processes 4711"):
            api(host).plan_stop([GPU])
        host.apply(api(host).plan_stop([GPU], force=True))
        assert not kernel.daemons

    def test_of_a_daemon_that_died(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        kill(kernel.daemons[UNIT])
        host.apply(api(host).plan_stop([GPU]))
        assert mode(kernel) == "Default"
        assert not kernel.has(ENV)

    def test_leaves_a_compute_mode_that_others_have_set(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        kernel.tree.properties[f"nvml:{GPU}"]["compute_mode"] = "Prohibited"
        plan = api(host).plan_stop([GPU])
        assert any("left as it is: Prohibited" in note for note in plan.notes)
        host.apply(plan)
        assert mode(kernel) == "Prohibited"


class TestDrift:
    def test_of_a_daemon_that_died_names_the_next_command(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        kill(kernel.daemons[UNIT])
        status = api(host).status()
        assert only(status).state == "inactive"
        assert differing(status) == ["the daemon has died: it was started, and does not run"]
        assert status.differences[0].remedy == f"vfioctl mps apply {GPU}"

    def test_is_corrected_and_then_there_is_none(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        kill(kernel.daemons[UNIT])
        kernel.tree.properties[f"nvml:{GPU}"]["compute_mode"] = "Default"
        plan = api(host).plan_apply()
        assert kinds(plan) == ["compute mode", "mps daemon", "mps limit", "mps limit"]
        host.apply(plan)
        assert not differing(api(host).status())
        assert api(host).plan_apply().nothing_to_do

    def test_of_limits(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        kernel.hidden("set_default_active_thread_percentage 90")
        assert differing(api(host).status()) == ["the default limit of threads is 90 %, and should be 40 %"]
        plan = api(host).plan_apply()
        assert [(change.before, change.after) for change in plan.changes] == [("90", "40")]
        host.apply(plan)
        assert kernel.hidden("get_default_active_thread_percentage") == "40.0"

    def test_of_a_server_that_runs_is_corrected_too(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        kernel.hidden("_client 7 4711")
        kernel.hidden("set_device_pinned_mem_limit 9007 0 9G")
        assert differing(api(host).status()) == ["server 9007: limit of memory is 9 GiB, and should be 2 GiB"]
        assert [change.before for change in api(host).plan_apply().changes] == ["differs"]
        host.apply(api(host).plan_apply())
        assert kernel.hidden("get_device_pinned_mem_limit 9007 0") == "2048M"
        assert not differing(api(host).status())

    def test_from_the_ledger(self, host: Host) -> None:
        start(host, 25, 2 * GIB)
        status = api(host, [SMALL, LARGE]).status()
        assert len(differing(status)) == 2
        assert "should be 60 %" in differing(status)[0]
        host.apply(api(host, [SMALL, LARGE]).plan_apply())
        assert not differing(api(host, [SMALL, LARGE]).status())

    def test_of_clients_by_what_they_were_started_with(self, host: Host, kernel: HostWithMps) -> None:
        start(host, None, None, [SMALL, LARGE])
        right = {**api(host).edits(SMALL).environment}
        wrong = right | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "60"}
        foreign = right | {"VFIOCTL_CLAIM": "cccccccc"}
        for pid, variables in ((11, right), (12, wrong), (13, foreign), (14, {})):
            kernel.tree.put(f"/proc/{pid}/environ", "\0".join(f"{name}={value}" for name, value in variables.items()))
            kernel.hidden(f"_client 0 {pid}")
        status = api(host, [SMALL, LARGE]).status()
        (server,) = only(status).servers
        assert [(client.pid, client.claim) for client in server.clients or ()] == [
            (11, "bbbbbbbb"),
            (12, "bbbbbbbb"),
            (13, ""),
            (14, ""),
        ]
        assert differing(status) == [
            "client 12 of claim bbbbbbbb has 60 % of the threads, 2 GiB, not 25 % of the threads, 2 GiB"
        ]

    def test_limits_that_are_given_are_kept(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        host.apply(api(host).plan_apply([GPU], threads=70))
        assert not differing(api(host).status())
        kill(kernel.daemons[UNIT])
        host.apply(api(host).plan_apply())
        assert only(api(host).status()).limits == Limits(70, 2 * GIB)

    @pytest.mark.parametrize(("cores", "memory"), [(60, 0), (0, 4 * GIB)])
    def test_a_limit_that_is_not_wanted_any_more_becomes_the_most_that_there_is(
        self, host: Host, kernel: HostWithMps, cores: int, memory: int
    ) -> None:
        start(host)
        with_share = api(host, [SMALL, MpsShare("aaaaaaaa", "user/a", PciAddress(GPU), cores, memory)])
        total = int(kernel.tree.properties[f"nvml:{GPU}"]["memory_bytes"]) >> 20 << 20
        assert differing(with_share.status())
        host.apply(with_share.plan_apply())
        assert only(with_share.status()).limits == Limits(cores or 100, memory or total)
        assert not differing(with_share.status())
        assert with_share.plan_apply().nothing_to_do

    def test_a_limit_of_unknown_memory_stays(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        del kernel.tree.properties[f"nvml:{GPU}"]["memory_bytes"]
        with pytest.raises(HostError, match="NVML does not report how much it has"):
            api(host, [MpsShare("aaaaaaaa", "user/a", PciAddress(GPU), 60, 0)]).plan_apply([GPU])


class TestABusySystemd:
    def test_costs_the_state_only(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        kernel.systemd_is_busy = True
        status = api(host).status()
        assert only(status).state == "unknown"
        assert not differing(status)
        assert status.unknown == (f"{NAME}: systemd does not say whether it runs",)

    def test_loses_no_daemon_that_runs(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        kernel.systemd_is_busy = True
        mps = api(host)
        plans: list[Callable[[], Plan]] = [
            mps.plan_stop,
            lambda: mps.plan_stop(force=True),
            lambda: mps.plan_start(GPU),
            lambda: mps.plan_apply([GPU]),
        ]
        for plan in plans:
            with pytest.raises(HostError, match="systemd does not say whether it runs") as caught:
                plan()
            assert f"systemctl status {UNIT}" in caught.value.hint
        assert mps.plan_apply().nothing_to_do
        assert any("systemd does not say" in note for note in mps.plan_apply().notes)
        assert kernel.has(ENV)

    def test_between_plan_and_change_changes_nothing(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        plan = api(host).plan_stop()
        kernel.systemd_is_busy = True
        with pytest.raises(StalePlan):
            host.apply(plan)
        assert kernel.has(ENV)
        assert kernel.daemons[UNIT].poll() is None

    def test_does_not_keep_a_rollback_from_ending_the_daemon(self, host: Host, kernel: HostWithMps) -> None:
        plan = api(host).plan_start(GPU, threads=40)
        kernel.busy_after_start = True
        host.session.engine._settle = 0.5  # type: ignore[attr-defined]
        with pytest.raises(VfioctlError):
            host.apply(plan)
        assert not kernel.daemons


class TestABadProgram:
    @pytest.mark.parametrize("fault", ["garbage", "die"])
    def test_costs_its_own_facts_only(self, host: Host, standin: Path, fault: str) -> None:
        start(host)
        (standin / "fault").write_text(fault)
        status = api(host).status()
        assert only(status).state == "silent"
        assert differing(status) == ["the daemon does not answer"]

    def test_that_gets_a_client_after_its_end_was_planned_is_left_alone(self, host: Host, kernel: HostWithMps) -> None:
        start(host)
        plan = api(host).plan_stop()
        kernel.hidden("_client 7 4711")
        with pytest.raises(DeviceInUse, match="has got clients: processes 4711"):
            host.apply(plan)
        assert kernel.daemons[UNIT].poll() is None
        host.apply(api(host).plan_stop(force=True))

    def test_that_is_silent_is_started_again_by_force_only(
        self, host: Host, kernel: HostWithMps, fast_folder: Path
    ) -> None:
        start(host)
        spoilt = fast_folder / "pipes" / NAME / "fault"
        spoilt.write_text("die")
        before = kernel.daemons[UNIT].pid
        (fast_folder / "pipes" / NAME / "control").unlink()
        status = api(host).status()
        assert only(status).state == "silent"
        assert status.differences[0].remedy == f"vfioctl mps apply {GPU} --force"
        refused: list[Callable[[], Plan]] = [lambda: api(host).plan_apply([GPU]), lambda: api(host).plan_stop()]
        for plan in refused:
            with pytest.raises(DeviceInUse, match=r"the clients of the MPS daemon of .* are not known"):
                plan()
        host.apply(api(host).plan_apply(force=True))
        assert kernel.daemons[UNIT].pid != before
        assert not differing(api(host).status())

    @pytest.mark.parametrize("question", ["get_client_list", "get_server_list"])
    def test_that_lists_no_clients_is_not_stopped_without_force(
        self, host: Host, kernel: HostWithMps, monkeypatch: pytest.MonkeyPatch, question: str
    ) -> None:
        start(host)
        kernel.hidden("_client 7 4711")
        asked = kernel.ask_mps
        answer = lambda pipes, text: "busy" if text.startswith(question) else asked(pipes, text)  # noqa: E731
        monkeypatch.setattr(kernel, "ask_mps", answer)
        daemon = only(api(host).status())
        assert (daemon.state, daemon.clients) == ("active", None)
        with pytest.raises(DeviceInUse, match="are not known"):
            api(host).plan_stop()
        assert api(host).plan_stop(force=True).changes

    @pytest.mark.parametrize("text", ["", "x", "CUDA_VISIBLE_DEVICES=GPU-1\n", "\0" * 100])
    def test_files_that_vfioctl_has_not_written_are_told(self, host: Host, kernel: HostWithMps, text: str) -> None:
        start(host)
        kernel.tree.put("/run/vfioctl/mps/odd.env", text)
        kernel.tree.put("/run/vfioctl/mps/0000-43-00.0.env", kernel.read(ENV))
        status = api(host).status()
        assert [daemon.told.name for daemon in status.daemons] == [NAME]
        assert len(status.unknown) == 2

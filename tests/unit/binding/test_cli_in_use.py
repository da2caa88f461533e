"""bind, unbind and reset from the outside, on a host in use: who is in the way, what helps, and what hangs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS, in_use
from tests.unit.conftest import Answer, Run
from tests.unit.console.test_waiting import ended
from vfioctl.binding.api import units_to_stop
from vfioctl.binding.model.conditions import GPU_SERVICES
from vfioctl.host import Host
from vfioctl.kernel.recorded.tree import form
from vfioctl.kernel.simulated.host import Simulated

TRAINING, HANDED, FREE = "0000:01:00.0", "0000:02:00.0", "0000:04:00.0"


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    file = tmp_path / "busy.host"
    file.write_text((HOSTS / "busy.host").read_text(encoding="utf-8"), encoding="utf-8")
    return file


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """While only services hold the GPUs."""
    file = tmp_path / "served.host"
    file.write_text(form(in_use()), encoding="utf-8")
    return file


def next_command(answer: Answer) -> str:
    (line,) = (line for line in answer.err.splitlines() if line.startswith("  next:"))
    return line.removeprefix("  next:").strip()


class TestHolders:
    def test_are_named_with_what_to_do_and_where_to_look(self, run: Run, busy: Path) -> None:
        answer = run(f"bind gpu0 --yes --simulate {busy}")
        assert (answer.code, answer.out) == (4, "")
        assert "python3 (process 3107, grace, docker/116f54c41d04): /dev/nvidia0 open" in answer.err
        one_for_each = (
            "python3 3107: docker stop 116f54c41d04",
            "tritonserver 3395: delete the pod, or let it go to another node",
        )
        assert f"  hint:     {one_for_each[0]}\n{' ' * 12}{one_for_each[1]}\n" in answer.err
        assert next_command(answer) == f"vfioctl holders {TRAINING} --simulate {busy}"
        words = next_command(answer).split()[1:]
        assert "docker stop 116f54c41d04" in run(" ".join(words)).out, "and that command works"

    def test_of_a_device_on_vfio_are_its_guest(self, run: Run, busy: Path) -> None:
        answer = run(f"unbind gpu1 --yes --simulate {busy}")
        assert answer.code == 4
        assert "guest win11" in answer.err
        assert "  hint:     virsh shutdown win11\n" in answer.err

    def test_that_could_not_be_read_are_mentioned(self, run: Run, busy: Path) -> None:
        answer = run(f"bind gpu3 --dry-run --simulate {busy}")
        assert answer.code == 0
        assert "1 process could not be read, and may hold the devices too" in answer.out

    @pytest.mark.parametrize("line", ["bind gpu2 --with-group", "bind gpu2 --with-group --force-holders"])
    def test_disks_and_networks_are_never_taken(self, run: Run, busy: Path, line: str) -> None:
        answer = run(f"{line} --json --yes --simulate {busy}")
        assert answer.code == 4
        kinds = {each["kind"] for each in answer.document["error"]["facts"]["holders"]}
        assert kinds == {"disk", "network"}
        assert not Host.simulated(str(busy)).history()


class TestServices:
    def test_that_look_after_gpus_are_stopped_and_started_again(self, run: Run, served: Path) -> None:
        assert run(f"bind gpu0 --yes --simulate {served}").code == 4
        there = run(f"bind gpu0 --stop-services --yes --simulate {served}")
        assert there.code == 0
        assert re.findall(r"\] (stop .*|persistence .*)", there.err) == [
            "stop nvidia-persistenced.service",
            "stop nvidia-dcgm.service",
            f"persistence mode of {TRAINING} off",
        ]
        back = run(f"unbind gpu0 --yes --simulate {served}")
        assert back.code == 0
        assert re.findall(r"\] (start .*|persistence .*)", back.err) == [
            f"persistence mode of {TRAINING} on",
            "start nvidia-persistenced.service",
            "start nvidia-dcgm.service",
        ]

    @pytest.mark.parametrize("unit", ["lightdm", "lightdm.service"])
    def test_that_are_named_are_stopped(self, run: Run, served: Path, unit: str) -> None:
        line = f"bind gpu4 --allow-boot-vga --simulate {served}"
        assert "Xorg (process 1440, root, lightdm.service)" in run(line).err
        assert run(f"{line} --stop-services").code == 4, "no display manager is among the known ones"
        plan = run(f"{line} --stop-service {unit} --dry-run").out
        assert "systemctl stop lightdm.service" in plan
        words = " ".join(plan.split())
        assert "goes dark: it shows the boot messages and the text console (vtcon1, efi-framebuffer.0)" in words
        assert re.search(r"^ +lightdm\.service +active +-> +inactive$", plan, re.M)
        assert re.search(r"^ +vtcon1 .*1 +-> +0$|^ +/sys/class/vtconsole/vtcon1/bind +1 +-> +0$", plan, re.M)

    def test_that_hold_nothing_of_it_are_left_alone(self, run: Run, served: Path) -> None:
        answer = run(f"bind gpu3 --stop-services --stop-service lightdm --yes --simulate {served}")
        assert answer.code == 0
        assert "stop " not in answer.err

    def test_are_named_with_or_without_their_ending(self) -> None:
        assert units_to_stop([], known=False) == ()
        assert units_to_stop(["gdm", "a.service", "gdm.service"], known=False) == ("gdm.service", "a.service")
        assert units_to_stop(["gdm"], known=True) == ("gdm.service", *GPU_SERVICES)

    @pytest.mark.parametrize("name", ["-x", "x.socket"])
    def test_of_odd_names_are_never_stopped(self, run: Run, served: Path, name: str) -> None:
        answer = run(f"bind gpu4 --allow-boot-vga --yes --simulate {served}", "--stop-service", name)
        assert answer.code == 4
        assert "lightdm" in answer.err

    @pytest.mark.parametrize("name", ["../evil", "a b", "", "x" * 300])
    def test_what_can_be_no_name_is_refused(self, run: Run, served: Path, name: str) -> None:
        answer = run(f"bind gpu4 --allow-boot-vga --yes --simulate {served}", "--stop-service", name)
        assert answer.code == 2
        assert "not a unit's name" in answer.err

    def test_travel_in_a_saved_plan(self, run: Run, served: Path, tmp_path: Path) -> None:
        dry = run(f"bind gpu0 --stop-services --dry-run --json --simulate {served}")
        saved = tmp_path / "plan.json"
        saved.write_text(dry.out)
        assert dry.document["intent"]["stop_services"] == list(GPU_SERVICES)
        assert run(f"apply {saved} --yes --simulate {served}").code == 0
        again = run(f"apply {saved} --yes --simulate {served}")
        assert (again.code, "make a new plan" in again.err) == (4, True)


class TestForce:
    def test_goes_on_and_tells_in_the_plan(self, run: Run, busy: Path) -> None:
        plan = run(f"unbind gpu1 --force-holders --dry-run --simulate {busy}").out
        assert "unbind 0000:02:00.0 --force-holders" in plan
        assert "the kernel may never return (--force-holders)" in plan

    def test_may_hang_and_then_the_device_is_wedged_for_all_to_see(self, run: Run, busy: Path) -> None:
        answer = run(f"unbind gpu1 --force-holders --yes --json --simulate {busy}")
        error = answer.document["error"]
        assert (answer.code, error["kind"], error["next_command"]) == (
            7,
            "Stuck",
            f"vfioctl recover --simulate {busy}",
        )
        assert error["facts"]["address"] == HANDED
        assert {each["guest"] for each in error["facts"]["holders"]} == {"win11"}
        listing = run(f"inventory --simulate {busy}")
        assert re.search(rf"^ *3  {HANDED}  gpu1 .* wedged ", listing.out, re.M)
        assert f"- {HANDED} is wedged since " in listing.out
        assert "was interrupted; to finish it: vfioctl recover" in listing.err
        document = run(f"inventory --json --simulate {busy}").document
        (mark,) = [gpu["mark"] for gpu in document["gpus"] if gpu["mark"]]
        assert (mark["address"], mark["kind"]) == (HANDED, "wedged")
        shown = run(f"show gpu1 --simulate {busy}").out
        assert f"{HANDED} is wedged since " in shown
        for line in ("bind gpu1", "unbind gpu1", "reset gpu1", "bind 0000:02:00.1"):
            refused = run(f"{line} --yes --force-holders --simulate {busy}")
            assert (refused.code, "is wedged" in refused.err) == (4, True), line

    def test_is_recovered_when_the_guest_has_ended(self, run: Run, busy: Path) -> None:
        run(f"unbind gpu1 --force-holders --yes --simulate {busy}")
        still = run(f"recover --simulate {busy}")
        assert (still.code, still.out) == (7, "")
        assert still.err.startswith(f"vfioctl: {HANDED} is still wedged: writing '{HANDED}' to /sys/")
        assert next_command(still) == f"vfioctl holders {HANDED} --simulate {busy}"
        ended(busy, 2684)
        kernel = Host.simulated(str(busy)).session.kernel
        assert isinstance(kernel, Simulated)
        kernel.release(HANDED)
        done = run(f"recover --simulate {busy}")
        assert done.out.startswith("Put back: unbind 0000:02:00.0 --force-holders")
        assert "wedged" not in run(f"inventory --simulate {busy}").out
        assert run(f"unbind gpu1 --yes --simulate {busy}").code == 0

    def test_ends_where_nvidias_driver_does_not_grant_its_lock(self, run: Run, busy: Path) -> None:
        answer = run(f"bind gpu0 --force-holders --yes --simulate {busy}")
        assert answer.code == 4
        assert "did not grant unbindLock for 0000:01:00.0" in answer.err
        assert "  restored: 0000:01:00.0, 0000:01:00.1 put back as before\n" in answer.err


class TestReset:
    def test_is_told_shortly(self, run: Run, busy: Path) -> None:
        answer = run(f"reset gpu3 --yes --simulate {busy}")
        assert answer.code == 0
        assert re.sub(r"\(plan .*\)", "(...)", answer.out) == (
            "Done: reset 0000:04:00.0 (...)\n  0000:04:00.0  10de:2684  group 7  nvidia\n"
        )
        notes = [line for line in answer.err.splitlines() if line.startswith("note: ")]
        assert notes[0] == f"note: {FREE} is reset by flr: what is in it is lost"
        assert answer.err.splitlines()[len(notes) :] == [
            f"[1/2] nobody holds {FREE}?",
            f"[2/2] /sys/bus/pci/devices/{FREE}/reset <- 1",
        ]

    def test_is_previewed_without_a_way_back(self, run: Run, busy: Path) -> None:
        plan = run(f"reset gpu3 --method flr --dry-run --simulate {busy}")
        assert plan.code == 0
        assert "reset 0000:04:00.0 by flr" in plan.out
        assert "Undone by" not in plan.out
        assert "its configuration space answers" in plan.out
        assert "is reset by flr: what is in it is lost" in plan.out

    def test_is_a_saved_plan_too(self, run: Run, busy: Path, tmp_path: Path) -> None:
        saved = tmp_path / "plan.json"
        saved.write_text(run(f"reset gpu3 --dry-run --json --simulate {busy}").out)
        for _ in range(2):
            assert run(f"apply {saved} --yes --json --simulate {busy}").document["result"] == "done"

    @pytest.mark.parametrize(
        ("words", "code", "why"),
        [
            ("gpu3 --method bus", 2, "cannot be reset by bus"),
            ("gpu3 --method ../x", 2, "cannot be reset by ../x"),
            ("gpu4", 3, "has no reset method"),
            ("gpu1", 4, "is held by qemu-system-x86"),
            ("0000:00:01.1", 2, "is a bridge"),
            ("gpu9", 2, "gpu9"),
            ("ff:00.0", 2, "ff:00.0"),
        ],
    )
    def test_is_refused_with_its_own_code(self, run: Run, busy: Path, words: str, code: int, why: str) -> None:
        answer = run(f"reset {words} --yes --simulate {busy}")
        assert (answer.code, answer.out) == (code, "")
        assert why in answer.err
        assert not Host.simulated(str(busy)).history()

    def test_by_a_method_that_the_kernel_does_not_name(self, run: Run, busy: Path) -> None:
        """As before Linux 5.15: there is a file `reset`, and no `reset_method`."""
        lines = busy.read_text(encoding="utf-8").splitlines(keepends=True)
        busy.write_text("".join(line for line in lines if "/reset_method = " not in line), encoding="utf-8")
        shown = run(f"show gpu3 --simulate {busy}").out
        assert re.search(r"reset by +one, not named$", shown, re.MULTILINE)
        found = run(f"show gpu3 --json --simulate {busy}").document
        assert (found["reset_methods"], found["reset_unnamed"]) == ([], True)
        plan = run(f"reset gpu3 --dry-run --simulate {busy}").out
        assert "is reset by a method that this kernel does not name: what is in it is lost" in " ".join(plan.split())
        assert run(f"reset gpu3 --yes --simulate {busy}").code == 0
        refused = run(f"reset gpu3 --method flr --yes --simulate {busy}")
        assert (refused.code, "leave out --method" in refused.err) == (2, True)
        assert run(f"reset gpu4 --yes --simulate {busy}").code == 3, "it has no file `reset`"
        assert "cannot be reset" not in run(f"bind gpu3 --dry-run --simulate {busy}").out

    def test_that_kills_the_device_says_so(self, run: Run, busy: Path) -> None:
        text = busy.read_text(encoding="utf-8").replace(
            "sim:claimed ", f"sim:{FREE} dies_on_reset = 1\nsim:claimed ", 1
        )
        busy.write_text(text, encoding="utf-8")
        answer = run(f"reset gpu3 --yes --simulate {busy}")
        assert (answer.code, answer.out) == (3, "")
        assert f"{FREE} reset, but {FREE} is dead: its configuration space reads as all ones" in answer.err
        assert "dead" in run(f"inventory --simulate {busy}").out
        assert run(f"bind gpu3 --yes --simulate {busy}").code == 3

    def test_takes_one_device(self, run: Run, busy: Path) -> None:
        assert run(f"reset gpu3 gpu0 --simulate {busy}").code == 2
        assert run(f"reset --simulate {busy}").code == 2
        assert run("reset gpu0 --host busy --yes").code in (3, 4)


def test_a_read_only_host_is_only_looked_at(run: Run) -> None:
    for line in ("bind gpu3", "reset gpu3"):
        answer = run(f"{line} --yes --host busy")
        assert (answer.code, "read-only" in answer.err) == (3, True)

"""A simulated host hangs, returns and reboots, and `recover` settles what that has cut short."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS, differing, state
from tests.unit.conftest import Run
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.simulated.files import BOOT_ID

GPU = "0000:43:00.0"


def own(name: str, folder: Path) -> Path:
    file = folder / f"{name}.host"
    file.write_text((HOSTS / f"{name}.host").read_text(encoding="utf-8"), encoding="utf-8")
    return file


@pytest.fixture
def hgx8(fast_folder: Path) -> Path:
    return own("hgx8", fast_folder)


def hung(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("VFIOCTL_FAULTS", fault)
    assert run(f"bind {GPU} --yes --simulate {file}").code == 7
    monkeypatch.delenv("VFIOCTL_FAULTS")


def mark_of(run: Run, file: Path) -> object:
    return run(f"show {GPU} --json --simulate {file}").document["mark"]


def test_a_hang_can_end_by_itself(run: Run, hgx8: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(read_tree(hgx8))
    hung(run, hgx8, monkeypatch, "4:hang-then-return")  # the unbind
    assert state(read_tree(hgx8))["drivers"][GPU] is None, "the write has returned, with its effect"
    assert mark_of(run, hgx8), "the ledger knows only of the write that was given up"
    assert run(f"recover --simulate {hgx8}").out.startswith("Put back: bind")
    assert mark_of(run, hgx8) is None
    assert differing(before, state(read_tree(hgx8))) == []


def test_a_reboot_ends_a_hang_and_undoes_what_the_kernel_holds(
    run: Run, hgx8: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_tree(hgx8)
    assert run(f"bind gpu2 --yes --simulate {hgx8}").code == 0
    hung(run, hgx8, monkeypatch, "4:hang")
    assert run(f"recover --simulate {hgx8}").code == 7, "the write is under way"
    boot = run(f"hosts reboot {hgx8} --json").document["boot_id"]
    after = read_tree(hgx8)
    assert after.files[BOOT_ID] == boot != before.files[BOOT_ID]
    assert differing(state(before), state(after)) == []
    assert mark_of(run, hgx8) is None, "marks are of one boot"
    assert run(f"recover --simulate {hgx8}").out.startswith("Undone by a reboot: bind")
    assert run(f"unbind gpu2 --simulate {hgx8}").out.startswith("Nothing to do")


def test_what_is_persistent_stays(run: Run, fast_folder: Path) -> None:
    file = own("t4", fast_folder)

    def states() -> list[str]:
        return sorted(each["state"] for each in run(f"vgpu list --json --simulate {file}").document["instances"])

    before = states()
    assert run(f"vgpu create T4-4Q --persistent --yes --simulate {file}").code == 0
    assert run(f"hosts reboot {file}").out == f"{file} was rebooted.\n"
    assert states() == sorted([*before, "defined"])
    assert run(f"vgpu restore --yes --simulate {file}").code == 0
    assert states() == sorted([*before, "live"])


def test_one_that_was_never_changed_has_a_new_boot_id_only(run: Run, hgx8: Path) -> None:
    before = read_tree(hgx8)
    assert run(f"hosts reboot {hgx8}").code == 0
    after = read_tree(hgx8)
    assert differing(state(before), state(after)) == []
    assert after.files.pop(BOOT_ID) != before.files.pop(BOOT_ID)
    assert after.files == before.files


def test_a_bundled_host_is_named(run: Run) -> None:
    assert run("bind gpu0 --yes --simulate laptop").code == 0
    assert run("hosts reboot laptop").out == "laptop was rebooted.\n"
    assert run("unbind gpu0 --simulate laptop").out.startswith("Nothing to do")
    assert run("hosts reboot nowhere").code == 2

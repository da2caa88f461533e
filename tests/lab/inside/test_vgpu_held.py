"""vGPUs in use: removal is refused and names the users; when forced, a blocked removal affects no other vGPU."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.inside import mdev
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Hold, Load
from tests.lab.inside.in_use import within_seconds
from tests.lab.inside.test_vgpu_mdev import LARGE, SMALL, bochs, listed, made
from vfioctl.host import Host
from vfioctl.vgpu.model.vgpu import OURS, VgpuState

DEADLINE = 2.0
AROUND_IT = 10.0
"""Starting, looking for holders, putting the journal right: seconds on a slow, emulated machine, but no hang."""
SETTLE = 20.0


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vfioctl does not wait long for a removal."""
    config = tmp_path / "config.toml"
    config.write_text(f"[timeouts]\nremove = '{DEADLINE}s'\n")
    monkeypatch.setenv("VFIOCTL_CONFIG", str(config))


def test_who_has_it_open_is_named_and_waited_for(load: Load, ledger: Path, hold: Hold) -> None:
    load("mbochs", count=100)
    name, other = made(ledger, LARGE)[0].id, mdev.create("mbochs", SMALL)
    process = hold(name)
    before = mdev.available("mbochs")
    for words in ((name,), (other, name, "--foreign")):
        answer = vfioctl(ledger, "vgpu", "remove", *words, "--json")
        assert answer.returncode == 4, answer.stderr
        error = json.loads(answer.stdout)["error"]
        assert f"process {process.pid}" in error["message"]
        assert [holder["pid"] for holder in error["facts"]["holders"]] == [process.pid]
    assert mdev.instances() == {name, other}
    assert mdev.available("mbochs") == before
    ending = subprocess.Popen(["sh", "-c", f"sleep 4; kill -9 {process.pid}"])
    waited = vfioctl(ledger, "vgpu", "remove", name, "--wait", "60s")
    ending.wait()
    assert waited.returncode == 0, waited.stderr
    assert f"process {process.pid}" in waited.stderr
    assert mdev.instances() == {other}


@pytest.mark.usefixtures("impatient")
def test_forced_it_stays_a_zombie_until_it_is_let_go_of(load: Load, ledger: Path, hold: Hold) -> None:
    load("mbochs", count=100)
    name = made(ledger, LARGE)[0].id
    process = hold(name)
    began = time.monotonic()
    answer = vfioctl(ledger, "vgpu", "remove", name, "--force-holders", "--json")
    assert answer.returncode == 7, answer.stderr
    assert DEADLINE <= time.monotonic() - began < DEADLINE + AROUND_IT
    facts = json.loads(answer.stdout)["error"]["facts"]
    assert "vfio" in facts["wchan"]
    assert [holder["pid"] for holder in facts["holders"]] == [process.pid]
    assert mdev.instances() == set()

    zombie = listed(ledger)[name]
    assert (zombie.state, zombie.type, zombie.owner) == (VgpuState.ZOMBIE, LARGE, OURS)
    assert _available(ledger) == mdev.available("mbochs") == bochs(9, 2, 0)
    other = made(ledger, SMALL)[0].id
    assert mdev.instances() == {other}
    again = vfioctl(ledger, "vgpu", "remove", name)
    assert again.returncode == 4, again.stderr
    assert vfioctl(ledger, "vgpu", "create", SMALL, "--uuid", name).returncode == 4
    recovered = vfioctl(ledger, "recover")
    assert recovered.returncode == 7, recovered.stderr
    assert "still under way" in recovered.stderr
    assert process.poll() is None

    process.kill()
    process.wait()
    within_seconds(SETTLE, lambda: vfioctl(ledger, "recover").returncode == 0)
    assert set(listed(ledger)) == {other}
    assert _available(ledger) == mdev.available("mbochs") == bochs(24, 6, 1)
    assert vfioctl(ledger, "vgpu", "remove", other).returncode == 0
    states = [entry["state"] for entry in json.loads(vfioctl(ledger, "history", "--json").stdout)["entries"]]
    assert not {"open", "stuck"} & set(states)


def _available(ledger: Path) -> dict[str, int]:
    (card,) = Host.live(ledger).vgpu.vgpus().cards
    assert all(kind.available.is_exact for kind in card.types)
    return {kind.id: kind.available.at_least for kind in card.types}

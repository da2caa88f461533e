"""The command that a plan names to undo it: run, it leads back. And the driver that `unbind` remembers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import HOSTS, differing, state
from tests.unit.conftest import Run
from vfioctl.host import Host
from vfioctl.kernel.protocol import DRIVERS_PROBE, PCI_DEVICES, PCI_DRIVERS
from vfioctl.kernel.recorded.host import read_tree

GPU, SOUND = "0000:0b:00.0", "0000:0b:00.1"


@pytest.fixture
def file(request: pytest.FixtureRequest, fast_folder: Path) -> Path:
    """A host of the test's own, with a ledger of its own; the workstation unless the test names another."""
    name = getattr(request, "param", "workstation")
    file = fast_folder / f"{name}.host"
    file.write_text((HOSTS / f"{name}.host").read_text(encoding="utf-8"), encoding="utf-8")
    return file


def done(run: Run, file: Path, words: str) -> Any:
    answer = run(f"{words} --yes --json --simulate", str(file))
    assert answer.code == 0, (words, answer.err)
    return answer.document["plan"]


def commands(run: Run, file: Path, words: str) -> list[str]:
    """The commands below `Undone by`, as the dry run of a command shows them."""
    page = run(f"{words} --dry-run --simulate", str(file)).out
    lines = page.partition("\nUndone by\n")[2].partition("\n\n")[0].splitlines()
    named = [line.strip() for line in lines if line.strip().startswith("vfioctl ")]
    on_this_host = f" --simulate {file}"
    assert all(line.endswith(on_this_host) for line in named)
    return [line.removeprefix("vfioctl ").removesuffix(on_this_host) for line in named]


def undoes(run: Run, file: Path, words: str) -> None:
    """Carry the change out, then what the plan says undoes it: all is as before."""
    before: Mapping[str, Any] = state(read_tree(file))
    named = commands(run, file, words)
    assert named, words
    done(run, file, words)
    assert differing(before, state(read_tree(file))), f"{words} changed nothing"
    for each in named:
        done(run, file, each)
    assert differing(before, state(read_tree(file))) == [], (words, named)


@pytest.mark.parametrize("file", ["workstation", "hgx8", "gh200", "laptop", "shared-group"], indirect=True)
def test_what_undoes_a_bind_and_an_unbind_does(run: Run, file: Path) -> None:
    gpu = run("inventory --json --simulate", str(file)).document["gpus"][-1]["address"]
    bind = f"bind {gpu} --with-group --allow-boot-vga"
    undoes(run, file, bind)
    done(run, file, bind)
    undoes(run, file, f"unbind {gpu}")


def test_another_driver_and_back(run: Run, file: Path) -> None:
    assert commands(run, file, f"unbind {GPU} --to nouveau") == [f"unbind {GPU} --to nvidia"]
    undoes(run, file, f"unbind {GPU} --to nouveau")


def test_where_no_command_would_do_none_is_named(run: Run, file: Path) -> None:
    """Somebody has bound only the GPU to VFIO, by hand: `bind` would take the rest of the card too."""
    done(run, file, f"bind {GPU}")
    kernel = Host.simulated(str(file)).session.kernel
    for path, value in (
        (f"{PCI_DEVICES}/{SOUND}/driver_override", "\n"),
        (f"{PCI_DRIVERS}/vfio-pci/unbind", SOUND),
        (DRIVERS_PROBE, SOUND),
    ):
        kernel.write(path, value)
    page = run(f"unbind {GPU} --dry-run --simulate", str(file)).out
    assert "Undone by\n  no single command: the functions of these cards are on VFIO in part" in page


class TestADriverThatCannotTakeIt:
    @pytest.mark.parametrize("driver", ["nouveaux", "e1000e", "igc", "snd-hda-intel"])
    def test_is_refused_before_anything_is_loaded(self, run: Run, file: Path, driver: str) -> None:
        before = file.read_bytes()
        answer = run(f"unbind {GPU} --to {driver} --json --simulate", str(file))
        assert answer.code == 2
        error = answer.document["error"]
        assert error["message"].startswith(f"{driver} cannot take {GPU}")
        assert error["facts"]["drivers"] == ["nvidia", "nvidia_drm", "nouveau"]
        assert "drivers that can: nvidia, nvidia_drm, nouveau" in error["hint"]
        assert file.read_bytes() == before

    def test_one_that_takes_any_device_is_not(self, run: Run, file: Path) -> None:
        assert run(f"unbind {GPU} --to pcieport --dry-run --simulate", str(file)).code == 0


class TestTheDriverBeforeTheBind:
    def test_is_known_after_another_one_was_asked_for(self, run: Run, file: Path) -> None:
        before = state(read_tree(file))
        done(run, file, f"bind {GPU}")
        done(run, file, f"unbind {GPU} --to nouveau")
        assert state(read_tree(file))["drivers"][GPU] == "nouveau"
        done(run, file, f"unbind {GPU}")
        assert differing(before, state(read_tree(file))) == []
        assert run(f"unbind {GPU} --simulate", str(file)).out.startswith("Nothing to do")

    def test_is_forgotten_when_that_one_is_bound_to_vfio(self, run: Run, file: Path) -> None:
        """What `unbind` gives back is what the last `bind` took it from."""
        for words in (f"bind {GPU}", f"unbind {GPU} --to nouveau", f"bind {GPU}", f"unbind {GPU}"):
            done(run, file, words)
        assert state(read_tree(file))["drivers"][GPU] == "nouveau"

    def test_does_not_take_the_gpu_along_with_its_sound(self, run: Run, file: Path) -> None:
        done(run, file, f"bind {GPU}")
        done(run, file, f"unbind {GPU} --to nouveau")
        assert run(f"unbind {SOUND} --simulate", str(file)).out.startswith("Nothing to do")

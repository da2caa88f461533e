"""vfioctl on NVIDIA's two interfaces, as the stand-ins keep their rules: an older card, VFs with mdevs, the folder."""

import json
from pathlib import Path

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import BindVfs, Hold, Load
from tests.lab.inside.test_vgpu_mdev import listed, made
from tests.lab.inside.test_vgpu_races import Overtaken
from tests.lab.inside.test_vgpu_vfs import refusal
from tests.lab.inside.topology import Topology
from vfioctl.errors import NoCapacity
from vfioctl.host import Host
from vfioctl.session import Session
from vfioctl.vgpu.model.vgpu import FOREIGN, OURS

A2_4C, A2_8Q = "nvidia-754", "nvidia-747"
L40S_2Q, L40S_16Q, L40S_16A, L40S_24Q = "1148", "1154", "1164", "1155"
NO_LIMIT = (("frame_rate_limiter", "0"),)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def older(lab: Topology, load: Load) -> str:
    """A card that is a parent itself."""
    load("standin_mdev")
    pci.bind_to(lab.far_display, "nvidia")
    return lab.far_display


class TestAnOlderCard:
    def test_a_type_by_its_profile_with_a_parameter(self, older: str, ledger: Path) -> None:
        first, second = made(ledger, "a2-4c", count=2, parameters=NO_LIMIT)
        assert mdev.instances_of(older, A2_4C) == {first.id, second.id}
        parameters = [mdev.BUS / "devices" / one.id / "nvidia/vgpu_params" for one in (first, second)]
        assert [file.read_text() for file in parameters] == ["frame_rate_limiter=0\n"] * 2
        shown = listed(ledger)[first.id]
        assert (shown.profile, shown.owner) == ("A2-4C", OURS)
        assert shown.attributes["vgpu_params"] == "frame_rate_limiter=0"
        # of another size there may be none beside it
        assert refusal(ledger, "vgpu", "create", A2_8Q)["kind"] == "NoCapacity"
        assert refusal(ledger, "vgpu", "create", "A2-4C", "--count", "3")["kind"] == "NoCapacity"
        assert len(mdev.instances()) == 2
        gone = vfioctl(ledger, "vgpu", "remove", first.id, second.id)
        assert gone.returncode == 0, gone.stderr
        assert mdev.instances() == set()
        assert len(made(ledger, A2_8Q, count=2)) == 2

    def test_its_drivers_way_of_saying_that_it_is_full(self, older: str, ledger: Path) -> None:
        host = Host(Session(Overtaken(3, lambda _: mdev.create(older, A2_4C)), ledger))
        with pytest.raises(NoCapacity, match="room for 3 more") as caught:
            host.apply(host.vgpu.plan_create("A2-4C", count=4))
        assert caught.value.kernel_said.startswith("EINVAL")
        assert len(mdev.instances()) == 1
        assert [vgpu.owner for vgpu in host.vgpu.vgpus().instances] == [FOREIGN]


class TestTheVendorsFolder:
    def test_types_on_vfs_until_the_card_is_full(self, ledger: Path, bind_vfs: BindVfs) -> None:
        functions = bind_vfs("standin_vendor", 4)
        vgpus = made(ledger, "L40S-16Q", count=2, parameters=NO_LIMIT)
        ours = [one.id for one in vgpus]
        assert set(ours) < set(functions)
        assert [mdev.current(one) for one in ours] == [L40S_16Q] * 2
        for one in ours:
            assert (pci.DEVICES / one / "nvidia/vgpu_params").read_text() == "frame_rate_limiter=0\n"
        assert {Path(one.vfio_group or "").is_char_device() for one in vgpus} == {True}
        assert refusal(ledger, "vgpu", "create", "L40S-24Q")["kind"] == "NoCapacity"
        # of one size the letters may mix
        (mixed,) = made(ledger, "L40S-16A")
        assert mdev.current(mixed.id) == L40S_16A
        assert refusal(ledger, "vgpu", "create", "L40S-16Q")["kind"] == "NoCapacity"
        assert {name for name, vgpu in listed(ledger).items() if vgpu.type not in ("", "0")} == {*ours, mixed.id}
        gone = vfioctl(ledger, "vgpu", "remove", *ours, mixed.id)
        assert gone.returncode == 0, gone.stderr
        assert {mdev.current(one) for one in functions} == {mdev.NONE}
        assert len(made(ledger, "L40S-24Q", count=2)) == 2

    @pytest.mark.parametrize(("on", "said"), [("the very VF", "EBUSY"), ("another VF", "EIO")])
    def test_somebody_is_faster(self, ledger: Path, bind_vfs: BindVfs, on: str, said: str) -> None:
        functions = bind_vfs("standin_vendor", 4)
        taken: list[str] = []

        def take(_: str) -> None:
            chosen = list(plan.subjects)
            spare = next(one for one in functions if one not in chosen)
            taken.append(chosen[1] if on == "the very VF" else spare)
            mdev.set_current(taken[0], L40S_24Q if on == "another VF" else L40S_16Q)

        host = Host(Session(Overtaken(1 if on == "another VF" else 2, take), ledger))
        plan = host.vgpu.plan_create("L40S-16Q", count=2)
        with pytest.raises(NoCapacity) as caught:
            host.apply(plan)
        assert caught.value.kernel_said.startswith(said)
        assert {one for one in functions if mdev.current(one) != mdev.NONE} == set(taken)
        assert [vgpu.owner for vgpu in host.vgpu.vgpus().instances if vgpu.id in taken] == [FOREIGN]

    def test_a_driver_that_does_nothing_is_found_out(self, ledger: Path, bind_vfs: BindVfs) -> None:
        (function,) = bind_vfs("standin_vendor", 1, deaf=1)
        answer = vfioctl(ledger, "vgpu", "create", "L40S-2Q", "--json")
        assert answer.returncode == 6, answer.stdout
        error = json.loads(answer.stdout)["error"]
        assert function in error["message"]
        assert "put back" in error["restored"]
        assert mdev.current(function) == mdev.NONE
        assert vfioctl(ledger, "recover").stdout.startswith("Nothing to recover")
        assert {vgpu.owner for vgpu in listed(ledger).values()} <= {FOREIGN}

    def test_in_use_it_stays(self, ledger: Path, bind_vfs: BindVfs, hold: Hold) -> None:
        first, second = bind_vfs("standin_vendor", 2)
        assert {one.id for one in made(ledger, "L40S-2Q", count=2)} == {first, second}
        process = hold(first)
        assert f"process {process.pid}" in refusal(ledger, "vgpu", "remove", first)["message"]
        # nobody is seen to hold this one, but its driver says so
        mark = pci.DEVICES / second / "standin_in_use"
        pci.write(mark, "1")
        answer = vfioctl(ledger, "vgpu", "remove", second)
        assert answer.returncode == 4, answer.stderr
        assert "EBUSY" in answer.stderr
        assert [mdev.current(one) for one in (first, second)] == [L40S_2Q] * 2
        pci.write(mark, "0")
        process.kill()
        process.wait()
        assert vfioctl(ledger, "vgpu", "remove", first, second).returncode == 0

    def test_when_one_cannot_go_the_others_come_back_as_they_were(self, ledger: Path, bind_vfs: BindVfs) -> None:
        first, second = bind_vfs("standin_vendor", 2)
        made(ledger, "L40S-16Q", count=2, parameters=NO_LIMIT)
        pci.write(pci.DEVICES / second / "standin_in_use", "1")
        answer = vfioctl(ledger, "vgpu", "remove", first, second)
        assert answer.returncode == 4, answer.stderr
        assert f"{first}/nvidia/current_vgpu_type <- 0" in answer.stderr
        assert "put back" in answer.stderr
        assert [mdev.current(one) for one in (first, second)] == [L40S_16Q] * 2
        assert (pci.DEVICES / first / "nvidia/vgpu_params").read_text() == "frame_rate_limiter=0\n"
        assert {vgpu.owner for vgpu in listed(ledger).values()} == {OURS}

"""What differs, and in which order it is changed: the pure part, on simulated hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.hosts.machines import NAMES, original
from tests.hosts.vgpu_machines import A2, UUIDS, XE, BootableHost, beginning
from tests.unit.state.documents import having, only, planned, reach, shown, with_vf, with_vgpu, without_vgpus
from vfioctl.errors import BadSpec, DeviceMissing, HostError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.host_paths import DEVICES, OWN_DEFINITIONS
from vfioctl.state.model.difference import Difference
from vfioctl.state.model.document import HostState, Presence
from vfioctl.state.plan.compare import differences
from vfioctl.state.plan.places import places_of
from vfioctl.state.plan.present import present
from vfioctl.state.plan.steps import steps_of
from vfioctl.vgpu.model.intents import CreateVgpuIntent
from vfioctl.vgpu.model.vgpu import VgpuState

GPU, TWIN = "0000:43:00.0", "0000:52:00.0"
VF, OTHER_VF = "0000:03:00.1", "0000:03:00.2"
MDEV_VF = "0000:08:00.4"


@pytest.fixture
def server(fast_folder: Path) -> BootableHost:
    return BootableHost(fast_folder, original("hgx8"))


@pytest.fixture
def desk(fast_folder: Path) -> BootableHost:
    return BootableHost(fast_folder, original("workstation"))


@pytest.fixture
def xe(fast_folder: Path) -> BootableHost:
    return BootableHost(fast_folder, beginning("xe"))


@pytest.fixture
def a2(fast_folder: Path) -> BootableHost:
    return BootableHost(fast_folder, beginning("a2"))


def settings(host: Host, state: HostState) -> list[tuple[str, str, str, str]]:
    found: list[Difference] = [*host.state.compare(state).differences]
    return [(d.name, d.setting, d.wanted, d.found) for d in found]


def refusals(host: Host, state: HostState) -> dict[str, Exception]:
    return {refusal.name: refusal.error for refusal in host.state.prepare(state).refused}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_host_shows_differs_from_it_in_nothing(name: str) -> None:
    host = Host.recorded(name)
    state = shown(host)
    assert host.state.compare(state).ok
    prepared = host.state.prepare(state)
    assert (prepared.plans, prepared.refused, prepared.later, prepared.notes) == ((), (), (), ())


def test_an_empty_document_leaves_everything_alone() -> None:
    assert Host.recorded("hgx8").state.compare(HostState(version=1)).ok


def test_what_no_document_can_have_is_left_out_and_told() -> None:
    """Text of a host that is no driver's name or vGPU type, and vGPUs that are about to go."""
    facts = Host.recorded("a2").state._facts()
    gpu, (one, two) = facts.inventory.gpus[0], facts.vgpus[:2]
    functions = (replace(f, driver="a b") if f is gpu else f for f in facts.inventory.functions)
    vgpus = (replace(one, type="\x1b[2J"), replace(two, state=VgpuState.ZOMBIE))
    at_boot = {"no uuid": CreateVgpuIntent(type="x", parent="a b", uuids=())}
    inventory = replace(facts.inventory, functions=tuple(functions), unread={PciAddress("0000:99:00.0"): "EIO"})
    state, told = present(replace(facts, inventory=inventory, vgpus=vgpus, vgpus_at_boot=at_boot))
    assert gpu.address not in {device.address for device in state.devices}
    assert state.vgpus == ()
    assert [text.partition(":")[0] if text[0] != "0" else text[:12] for text in told] == [
        f"{one.id} is left out",
        f"{two.id} is left out",
        "no uuid is left out",
        gpu.address,
        "0000:99:00.0",
    ]


class TestDrivers:
    def test_go_to_vfio_and_back(self, server: BootableHost) -> None:
        before = shown(server.host)
        bound = having(before, GPU, driver="vfio-pci")
        assert settings(server.host, bound) == [(GPU, "driver", "vfio-pci", "nvidia")]
        assert reach(server, bound) == [f"bind {GPU} to vfio-pci"]
        assert reach(server, before) == [f"unbind {GPU} to nvidia"]

    def test_a_dash_is_an_underscore(self, server: BootableHost) -> None:
        server.does(lambda host: host.binding.plan_bind([GPU]))
        assert server.host.state.compare(having(only(shown(server.host), GPU), GPU, driver="vfio_pci")).ok

    def test_of_others_are_left_alone(self, server: BootableHost) -> None:
        state = only(shown(server.host), GPU)
        server.does(lambda host: host.binding.plan_bind([TWIN]))
        assert server.host.state.compare(state).ok
        assert reach(server, having(state, GPU, driver=None, driver_at_boot=None)) == []

    def test_of_a_card_go_together(self, desk: BootableHost) -> None:
        gpu, *others = [f"0000:0b:00.{number}" for number in range(4)]
        state = shown(desk.host)
        for address in (gpu, *others):
            state = having(state, address, driver="vfio-pci")
        listed = f"{gpu}, {others[0]}, {others[1]} and {others[2]}"
        assert reach(desk, state) == [f"bind {listed} to vfio-pci"]

    def test_that_contradict_each_other_are_refused(self, desk: BootableHost) -> None:
        """A card goes to VFIO whole, and the document says that its audio function stays."""
        state = having(shown(desk.host), "0000:0b:00.0", driver="vfio-pci")
        error = refusals(desk.host, state)["0000:0b:00.0"]
        assert isinstance(error, BadSpec)
        assert error.message.startswith("0000:0b:00.1 is to be on snd_hda_intel, but bind 0000:0b:00.0")

    def test_that_contradict_each_other_at_boot_are_refused(self, desk: BootableHost) -> None:
        state = only(shown(desk.host), "0000:0b:00.0", "0000:0b:00.1")
        state = having(state, "0000:0b:00.0", driver="vfio-pci", driver_at_boot="vfio-pci")
        state = having(state, "0000:0b:00.1", driver="vfio-pci")
        error = refusals(desk.host, state)["0000:0b:00.0"]
        assert "0000:0b:00.1 is to be bound to nothing at boot, but bind 0000:0b:00.0" in str(error)

    def test_that_cannot_be_read_are_refused(self) -> None:
        host = Host.recorded("hgx8")
        facts = host.state._facts()
        functions = (
            replace(f, driver=None, unknown={"driver": "EIO"}) if f.address == GPU else f
            for f in facts.inventory.functions
        )
        facts = replace(facts, inventory=replace(facts.inventory, functions=tuple(functions)))
        state, _ = present(facts)
        assert [device.driver for device in only(state, GPU).devices] == [None]
        places = places_of(state, facts.inventory)
        wanted = having(state, GPU, driver="vfio-pci")
        found = differences(wanted, facts, places)
        assert [d.found for d in found] == ["unknown: EIO"]
        steps = steps_of(wanted, facts, places, found)
        assert (steps.steps, str(steps.refused[0].error)) == ((), f"it is unknown which driver {GPU} is on: EIO")

    def test_two_of_one_card_return_one_after_the_other(self, desk: BootableHost) -> None:
        before = only(shown(desk.host), "0000:0b:00.0", "0000:0b:00.1")
        desk.does(lambda host: host.binding.plan_bind(["0b:00.0"]))
        prepared = desk.host.state.prepare(before)
        assert [plan.intent.title() for plan in prepared.plans] == ["unbind 0000:0b:00.0 to nvidia"]
        assert [later.name for later in prepared.later] == ["0000:0b:00.1"]
        assert reach(desk, before) == ["unbind 0000:0b:00.0 to nvidia"], "which brings the card back whole"

    def test_one_that_returns_alone_is_refused(self, desk: BootableHost) -> None:
        desk.does(lambda host: host.binding.plan_bind(["0b:00.0"]))
        state = having(only(shown(desk.host), "0000:0b:00.0", "0000:0b:00.1"), "0000:0b:00.0", driver="nvidia")
        error = refusals(desk.host, state)["0000:0b:00.0"]
        assert error.args[0].startswith("0000:0b:00.1 is to be on vfio-pci, but unbind")

    def test_none_is_what_a_device_has_only_of_its_own(self, server: BootableHost) -> None:
        error = refusals(server.host, having(shown(server.host), GPU, driver="none"))[GPU]
        assert isinstance(error, HostError)
        assert "takes no device from its own driver" in error.message

    def test_the_boot_display_is_bound_only_if_it_may_be(self, desk: BootableHost) -> None:
        state = shown(desk.host)
        (screen,) = [f.address for f in desk.host.inventory().functions if f.boot_vga]
        bound = having(only(state, screen), screen, driver="vfio-pci")
        assert "boot display" in str(refusals(desk.host, bound)[screen])
        assert planned(desk.host, having(bound, screen, boot_display=True)) == [
            f"bind {screen} to vfio-pci --allow-boot-vga"
        ]


class TestAtBoot:
    def test_devices(self, server: BootableHost) -> None:
        before = shown(server.host)
        state = having(before, GPU, driver="vfio-pci", driver_at_boot="vfio-pci")
        assert reach(server, state) == [f"bind {GPU} to vfio-pci --persistent"]
        assert f"{DEVICES}/{GPU}.toml" in server.tree.files
        server.boots()
        assert settings(server.host, state) == [(GPU, "driver", "vfio-pci", "nvidia")]
        assert shown(server.host) == having(before, GPU, driver_at_boot="vfio-pci"), "and it can be shown"
        assert reach(server, state) == [f"bind {GPU} to vfio-pci --persistent"]
        assert reach(server, having(state, GPU, driver_at_boot="none")) == [f"persist remove {GPU}"]
        assert reach(server, state) == [f"bind {GPU} to vfio-pci --persistent"]
        assert reach(server, before) == [f"unbind {GPU} to nvidia --persistent"]
        assert f"{DEVICES}/{GPU}.toml" not in server.tree.files

    def test_stays_if_the_document_does_not_say(self, server: BootableHost) -> None:
        server.does(lambda host: host.binding.plan_bind([GPU], persistent=True))
        assert reach(server, having(shown(server.host), GPU, driver="nvidia", driver_at_boot=None)) == [
            f"unbind {GPU} to nvidia"
        ]
        assert f"{DEVICES}/{GPU}.toml" in server.tree.files

    @pytest.mark.parametrize("driver", ["nvidia", None])
    def test_only_what_is_there_now_lasts(self, server: BootableHost, driver: str | None) -> None:
        state = having(shown(server.host), GPU, driver=driver, driver_at_boot="vfio-pci")
        error = refusals(server.host, state)[GPU]
        assert error.args[0] == (
            f"{GPU} is to be on nvidia now, and on vfio-pci at boot: only what is there now is made persistent"
        )

    def test_a_damaged_definition_is_told_and_not_written_over(self, server: BootableHost) -> None:
        server.does(lambda host: host.binding.plan_bind([GPU], persistent=True))
        server.add(f"{DEVICES}/{GPU}.toml", "nonsense")
        assert [d.driver_at_boot for d in only(shown(server.host), GPU).devices] == [None]
        (told,) = server.host.state.present()[1]
        assert told.startswith(f"what vfioctl restores of {GPU} at boot is left out: damaged: ")
        state = having(only(shown(server.host), GPU), GPU, driver_at_boot="vfio-pci")
        ((_, setting, _, found),) = settings(server.host, state)
        assert (setting, found[:8]) == ("driver_at_boot", "damaged:")
        assert "cannot be used" in str(refusals(server.host, state)[GPU])

    def test_a_damaged_definition_of_vfs(self, xe: BootableHost) -> None:
        xe.add(f"{OWN_DEFINITIONS}/{XE}.json", "nonsense")
        assert [d.vfs_at_boot for d in only(shown(xe.host), XE).devices] == [None]
        for wanted in (0, 2):
            state = having(only(shown(xe.host), XE), XE, vfs=2, vfs_at_boot=wanted)
            assert "cannot be used" in str(refusals(xe.host, state)[XE])
        assert reach(xe, having(only(shown(xe.host), XE), XE, vfs=2)) == [f"sriov set {XE} 2"]

    def test_of_a_device_that_is_gone_is_told(self, server: BootableHost) -> None:
        server.does(lambda host: host.binding.plan_bind([GPU], persistent=True))
        file = f"{DEVICES}/{GPU}.toml"
        server.add(file, server.tree.files[file].replace('"2330"', '"9999"'))
        state, told = server.host.state.present()
        assert [d.driver_at_boot for d in only(state, GPU).devices] == ["none"]
        assert told[0].startswith(f"what vfioctl restores of {GPU} at boot is left out: no such device")


class TestIdentity:
    def test_another_device_in_its_place_is_not_taken(self, server: BootableHost) -> None:
        state = having(only(shown(server.host), GPU, TWIN), GPU, driver="vfio-pci")
        identity = state.devices[0].identity
        assert identity is not None
        other = having(state, GPU, identity=identity.model_copy(update={"device": "9999"}))
        other = having(other, TWIN, driver="vfio-pci")
        prepared = server.host.state.prepare(other)
        assert [plan.listed for plan in prepared.plans] == [TWIN], "of the other one it costs nothing"
        (refusal,) = prepared.refused
        assert refusal.name == GPU
        assert isinstance(refusal.error, DeviceMissing)
        assert "another device has its address (10de:2330)" in refusal.error.message
        with pytest.raises(DeviceMissing):
            server.host.state.apply(other)
        assert server.host.unfinished() == ()
        assert server.host.inventory().by_address[PciAddress(TWIN)].driver == "nvidia"

    def test_a_device_that_moved_is_found(self, server: BootableHost) -> None:
        state = only(shown(server.host), GPU)
        moved = state.devices[0].model_copy(update={"address": PciAddress("0000:99:00.0"), "driver": "vfio-pci"})
        state = HostState(version=1, devices=(moved,))
        assert server.host.state.compare(state).notes == (f"0000:99:00.0: it moved from 0000:99:00.0 to {GPU}",)
        assert reach(server, state) == [f"bind {GPU} to vfio-pci"]

    def test_two_entries_about_one_device_are_both_refused(self, server: BootableHost) -> None:
        state = only(shown(server.host), GPU)
        twice = state.devices[0].model_copy(update={"address": PciAddress("0000:99:00.0")})
        state = HostState(version=1, devices=(*state.devices, twice))
        assert {*refusals(server.host, state)} == {GPU, "0000:99:00.0"}

    def test_one_that_could_not_be_read_is_not_said_to_be_missing(self) -> None:
        host = Host.recorded("hgx8")
        state, inventory, gpu = only(shown(host), GPU), host.inventory(), PciAddress(GPU)
        rest = tuple(function for function in inventory.functions if function.address != gpu)
        places = places_of(state, replace(inventory, functions=rest, unread={gpu: "a time-out"}))
        assert places[GPU].why == "it could not be read: a time-out"
        places = places_of(state, replace(inventory, functions=rest, unread={PciAddress("0000:99:00.0"): "x"}))
        assert places[GPU].why.endswith(", but 0000:99:00.0 could not be read")


class TestVfs:
    def test_come_before_what_is_bound_of_them(self, xe: BootableHost) -> None:
        before = shown(xe.host)
        state = having(before, XE, vfs=2, vfs_at_boot=2)
        state = with_vf(state, VF, XE, 0, driver="vfio-pci", driver_at_boot="vfio-pci")
        prepared = xe.host.state.prepare(state)
        assert [(later.name, later.what) for later in prepared.later] == [(VF, f"VF 0 of {XE} does not exist yet")]
        steps = [f"sriov set {XE} 2 --persistent", f"bind {VF} to vfio-pci --persistent"]
        assert reach(xe, state) == steps
        xe.boots()
        assert reach(xe, state) == steps
        assert f"{OWN_DEFINITIONS}/{XE}.json" in xe.tree.files

    def test_go_after_what_is_bound_of_them(self, xe: BootableHost) -> None:
        state = with_vf(having(shown(xe.host), XE, vfs=2), VF, XE, 0, driver="vfio-pci")
        reach(xe, state)
        none = having(only(state, XE), XE, vfs=0)
        assert "has VFs for guests" in str(refusals(xe.host, none)[XE]), "VFs that it does not name are left alone"
        assert reach(xe, having(state, VF, driver="none")) == [f"unbind {VF}"]
        assert reach(xe, none) == [f"sriov off {XE}"]

    def test_of_a_device_that_goes_to_vfio_go_first(self, xe: BootableHost) -> None:
        reach(xe, having(shown(xe.host), XE, vfs=2))
        bound = having(only(shown(xe.host), XE), XE, driver="vfio-pci", vfs=0)
        assert reach(xe, bound) == [f"sriov off {XE}", f"bind {XE} to vfio-pci"]
        assert reach(xe, having(bound, XE, driver="xe", vfs=2)) == [f"unbind {XE} to xe", f"sriov set {XE} 2"]

    def test_that_will_not_exist_are_refused(self, xe: BootableHost) -> None:
        state = with_vf(having(shown(xe.host), XE, vfs=None), VF, XE, 0, driver="vfio-pci")
        assert str(refusals(xe.host, state)[VF]) == f"{VF}: {XE} has 0 VFs now"

    @pytest.mark.parametrize(("vfs", "at_boot"), [(2, 1), (None, 1), (0, 1)])
    def test_only_what_is_there_now_lasts(self, xe: BootableHost, vfs: int | None, at_boot: int) -> None:
        state = having(shown(xe.host), XE, vfs=vfs, vfs_at_boot=at_boot)
        assert str(refusals(xe.host, state)[XE]) == (
            f"{XE} is to have {vfs or 0} VFs now, and 1 at boot: only what is there now is made persistent"
        )

    def test_at_boot_alone(self, xe: BootableHost) -> None:
        state = having(shown(xe.host), XE, vfs=2)
        reach(xe, state)
        assert reach(xe, having(state, XE, vfs=None, vfs_at_boot=2)) == [f"sriov set {XE} 2 --persistent"]
        assert reach(xe, state) == [f"persist remove {XE}"]

    def test_more_than_a_device_has(self, xe: BootableHost) -> None:
        assert "has at most" in str(refusals(xe.host, having(shown(xe.host), XE, vfs=60_000))[XE])


class TestVgpus:
    @pytest.fixture
    def state(self, a2: BootableHost) -> HostState:
        state = with_vf(shown(a2.host), MDEV_VF, A2, 0)
        given = {"at_boot": True, "parameters": {"frame_rate_limiter": "0"}}
        return with_vgpu(state, MDEV_VF, "A2-4C", UUIDS[0], **given)

    def test_are_created_and_removed(self, a2: BootableHost, state: HostState) -> None:
        assert settings(a2.host, state) == [
            (UUIDS[0], "state", "present", "absent"),
            (UUIDS[0], "at_boot", "true", "false"),
        ]
        created = [f"vgpu create A2-4C on {MDEV_VF} with frame_rate_limiter=0 --persistent"]
        assert reach(a2, state) == created
        a2.boots()
        assert shown(a2.host).vgpus[0].state is Presence.ABSENT, "at boot only, as long as nothing restores it"
        assert reach(a2, state) == created
        assert reach(a2, without_vgpus(state)) == [f"vgpu remove {UUIDS[0]}"]
        assert shown(a2.host).vgpus == ()

    def test_are_no_longer_restored_at_boot(self, a2: BootableHost, state: HostState) -> None:
        reach(a2, state)
        (vgpu,) = state.vgpus
        kept = state.model_copy(update={"vgpus": (vgpu.model_copy(update={"at_boot": False}),)})
        assert reach(a2, kept) == [f"persist remove {UUIDS[0]}"]
        assert reach(a2, state) == [f"persist import {UUIDS[0]}"], "it exists, and is made persistent again"
        a2.boots()
        assert shown(a2.host).vgpus[0].at_boot is True

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            ({"type": "A2-8C"}, "its type is A2-4C, not A2-8C"),
            ({"parameters": {"frame_rate_limiter": "1"}}, "its frame_rate_limiter is 0, not 1"),
            ({"parameters": {"nvidia/vgpu_params": "a=1"}}, "its nvidia/vgpu_params is frame_rate_limiter=0, not a=1"),
        ],
    )
    def test_are_never_changed(self, a2: BootableHost, state: HostState, other: dict[str, object], words: str) -> None:
        reach(a2, state)
        (vgpu,) = state.vgpus
        changed = state.model_copy(update={"vgpus": (vgpu.model_copy(update=other),)})
        assert words in str(refusals(a2.host, changed)[UUIDS[0]])

    def test_alike_are_created_together(self, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, beginning("pool"))
        state = HostState(version=1)
        for uuid in UUIDS[:3]:
            state = with_vgpu(state, "mbochs", "mbochs-medium", uuid)
        assert reach(machine, state) == ["vgpu create 3 of mbochs-medium on mbochs"]

    def test_more_than_fit_are_refused_together(self, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, beginning("pool"))
        state = HostState(version=1)
        for number in range(40):
            state = with_vgpu(state, "mbochs", "mbochs-medium", f"c0ffee00-0000-4000-8000-{number:012}")
        assert len(refusals(machine.host, state)) == 40

    def test_that_are_vfs_have_no_uuid(self, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, beginning("l40s"))
        vf, pf = "0000:41:00.4", "0000:41:00.0"
        state = with_vgpu(with_vf(shown(machine.host), vf, pf, 0), vf, "L40S-12Q", at_boot=True)
        assert reach(machine, state) == [f"vgpu create L40S-12Q on {vf} --persistent"]
        assert [(v.name, v.type, v.at_boot) for v in shown(machine.host).vgpus] == [(vf, "L40S-12Q", True)]
        assert reach(machine, without_vgpus(state)) == [f"vgpu remove {vf}"]

    def test_a_mediated_device_needs_one(self, a2: BootableHost) -> None:
        assert "needs a uuid" in str(refusals(a2.host, with_vgpu(shown(a2.host), A2, "A2-4C"))[A2])

    def test_come_after_their_vfs(self, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, beginning("l40s"))
        vf, pf = "0000:41:00.4", "0000:41:00.0"
        machine.does(lambda host: host.vgpu.plan_vfs(pf, 0, foreign=True))
        state = with_vgpu(with_vf(having(shown(machine.host), pf, vfs=32), vf, pf, 0), vf, "L40S-12Q")
        later = {later.name for later in machine.host.state.prepare(state).later}
        assert later == {vf}
        assert reach(machine, state) == [f"sriov set {pf} 32", f"vgpu create L40S-12Q on {vf}"]

    def test_that_vfioctl_did_not_create_are_not_removed(self) -> None:
        host = Host.recorded("a2")
        state = without_vgpus(shown(host))
        assert state.vgpus
        assert all("vfioctl did not create" in str(error) for error in refusals(host, state).values())
        assert len(refusals(host, state)) == len(state.vgpus)

    def test_absent_now_and_present_at_boot_is_refused(self, a2: BootableHost, state: HostState) -> None:
        reach(a2, state)
        (vgpu,) = state.vgpus
        goal = state.model_copy(update={"vgpus": (vgpu.model_copy(update={"state": Presence.ABSENT}),)})
        assert "absent now, and created at boot" in str(refusals(a2.host, goal)[UUIDS[0]])

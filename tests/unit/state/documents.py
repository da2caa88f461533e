"""Documents for the tests of the state, made from the present state of a simulated host."""

from __future__ import annotations

from typing import Any

from tests.hosts.vgpu_machines import BootableHost
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.state.model.difference import Applied
from vfioctl.state.model.document import DeviceState, HostState, Presence, VfPlace, VgpuGoal
from vfioctl.units import Uuid


def shown(host: Host) -> HostState:
    """The present state."""
    return host.state.present()[0]


def checked(state: HostState) -> HostState:
    """The same, as if it had been read: validated."""
    return HostState.model_validate_json(state.model_dump_json(), strict=True)


def only(state: HostState, *addresses: str) -> HostState:
    """The document with these devices only."""
    return checked(HostState(version=1, devices=tuple(d for d in state.devices if d.address in addresses)))


def having(state: HostState, address: str, **settings: Any) -> HostState:
    """The document with other settings of one device."""
    devices = tuple(d.model_copy(update=settings) if d.address == address else d for d in state.devices)
    assert devices != state.devices
    return checked(state.model_copy(update={"devices": devices}))


def with_vf(state: HostState, address: str, of: str, number: int, **settings: Any) -> HostState:
    """The document with one VF more."""
    vf = DeviceState(address=PciAddress(address), vf=VfPlace(of=PciAddress(of), number=number), **settings)
    return checked(state.model_copy(update={"devices": (*state.devices, vf)}))


def with_vgpu(state: HostState, parent: str, kind: str, uuid: str | None = None, **settings: Any) -> HostState:
    """The document with one vGPU more."""
    goal = VgpuGoal(uuid=Uuid(uuid) if uuid else None, parent=parent, type=kind, **settings)
    return checked(state.model_copy(update={"vgpus": (*state.vgpus, goal)}))


def without_vgpus(state: HostState) -> HostState:
    """The document in which no vGPU of it is to exist, now or at boot."""
    gone = {"state": Presence.ABSENT, "at_boot": False}
    return state.model_copy(update={"vgpus": tuple(vgpu.model_copy(update=gone) for vgpu in state.vgpus)})


def titles(applied: Applied) -> list[str]:
    """What was done."""
    return [outcome.plan.intent.title() for outcome in applied.outcomes]


def planned(host: Host, state: HostState) -> list[str]:
    """What would be done first."""
    return [plan.intent.title() for plan in host.state.prepare(state).plans]


def reach(machine: BootableHost, state: HostState) -> list[str]:
    """Apply the document, and see that it is then met, and that nothing is left to do."""
    done = titles(machine.host.state.apply(state))
    comparison = machine.host.state.compare(state)
    assert comparison.differences == ()
    assert not machine.host.state.apply(state).outcomes
    return done

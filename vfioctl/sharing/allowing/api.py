"""The use cases of allow-lists: plan one, plan its end, show what cgroups may open. Writes only through a plan."""

from __future__ import annotations

import errno as errnos
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from vfioctl.errors import BadSpec, HostError, KernelRefused, UnknownDevice
from vfioctl.inventory.api import InventoryApi
from vfioctl.kernel.device_program import MOST, ordered
from vfioctl.sharing.allowing.entries import allows, restricted
from vfioctl.sharing.allowing.entries import notes as entry_notes
from vfioctl.sharing.allowing.reading import (
    read_classes,
    read_gpu_nodes,
    read_holders,
    read_notes,
    read_others,
    read_setting,
    without_number,
)
from vfioctl.sharing.allowing.resources import UNREAD, refused_in, refused_on
from vfioctl.sharing.allowing.values import (
    Allowed,
    GpuNodes,
    Note,
    Setting,
    above,
    cgroup_in,
    note_file,
    setting_in,
    setting_of,
    subject_of,
)

if TYPE_CHECKING:
    from vfioctl.core.change import Change, Intent, Plan
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.kernel.device_lists import UnitDevices
    from vfioctl.session import Session

_MOST_NOTED = 20
"""Holders that a plan names."""
_NO_NOTE: tuple[str, Note | None] = ("", None)


class AllowApi:
    """Which GPUs the processes of a cgroup may open: by systemd where a unit owns it, else by a program of vfioctl."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel, self._devices = session, session.kernel, InventoryApi(session)

    def plan_allow(self, cgroup: str, selectors: Sequence[str]) -> Plan:
        """Plan that a cgroup may open these GPUs (named as for `inventory.find`) and no others; devices that are no
        GPU's stay as they are. Raises BadSpec, UnknownDevice, BadAddress, KernelRefused, HostError."""
        path = cgroup_in(cgroup)
        inventory = self._devices.inventory(nvml=False)
        chosen = self._devices.chosen(inventory, selectors, every=False)
        if wrong := [str(address) for address in chosen if not inventory.by_address[address].is_gpu]:
            raise BadSpec(f"{', '.join(wrong)} is no GPU", hint="vfioctl inventory lists them")
        nodes = read_gpu_nodes(self._kernel, self._devices, inventory)
        refused = nodes.refused(chosen)
        if len(refused) > MOST:
            raise HostError(f"this host has {len(refused)} nodes to refuse; vfioctl refuses at most {MOST}")
        self._require(path)
        from vfioctl.sharing.allowing.intents import AllowIntent

        intent = AllowIntent(cgroup=path, devices=tuple(str(address) for address in chosen))
        devices = self._kernel.unit_devices(path)
        if devices:
            _refuse_later_files(devices)
        setting = setting_of(devices) if devices else None
        text, note = self._note(path, setting)
        notes = [*self._notes(path, nodes, chosen, refused)]
        program = refused_on(self._kernel, path) or ""
        if setting is None:
            return self._plan(intent, _changes(path, program, ", ".join(ordered(refused)), (), text, None), notes)
        start = setting_in(note.before) if note and note.after == setting.text else setting
        classes = read_classes(self._kernel, nodes, (setting, start))
        wanted = restricted(start, classes, refused=refused, allowed=nodes.allowed(chosen)) if refused else start
        notes += entry_notes(start, classes, refused) if refused else ()
        kept = Note(path, start.text, wanted.text) if wanted != start else None
        return self._plan(intent, _changes(path, program, "", (setting, wanted), text, kept), notes)

    def plan_disallow(self, cgroup: str) -> Plan:
        """Plan to remove what vfioctl has set for a cgroup, and nothing else. Of a unit that does not run, what is set
        for it is removed, too; any other cgroup that is gone needs nothing.
        Raises BadSpec, KernelRefused, HostError."""
        path = cgroup_in(cgroup)
        from vfioctl.sharing.allowing.intents import DisallowIntent

        setting = read_setting(self._kernel, path)
        text, note = self._note(path, setting)
        program, notes, settings = self._program(path), list[str](), tuple[Setting, ...]()
        if setting and note and setting.text == note.after:
            settings = (setting, setting_in(note.before))
        elif setting and note:
            notes.append("somebody has changed what the unit may open since: its settings stay as they are")
        return self._plan(DisallowIntent(cgroup=path), _changes(path, program, "", settings, text, None), notes)

    def _note(self, path: str, setting: Setting | None) -> tuple[str, Note | None]:
        """Return the note about the unit of a cgroup. A cgroup of the same name that is no unit's has none; of a unit
        that is in another slice now, it is the same."""
        text, note = read_notes(self._kernel).get(path.rpartition("/")[2], _NO_NOTE)
        return _NO_NOTE if setting is None and note and note.cgroup != path else (text, note)

    def _program(self, path: str) -> str:
        """Return what vfioctl's program on a cgroup refuses; empty without one, on a cgroup that is gone, and on a
        kernel that has no such programs. Raises KernelRefused."""
        try:
            return refused_in(self._kernel.device_programs(path))
        except KernelRefused as error:
            if error.errno != errnos.ENOENT:
                raise
        except HostError:
            pass
        return ""

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent of this subsystem again. Raises what planning raises."""
        from vfioctl.sharing.allowing.intents import AllowIntent, DisallowIntent

        if isinstance(intent, AllowIntent):
            return self.plan_allow(intent.cgroup, intent.devices)
        if isinstance(intent, DisallowIntent):
            return self.plan_disallow(intent.cgroup)
        raise BadSpec(f"{intent.verb} is not planned here")

    def allowed(self, cgroup: str | None = None) -> tuple[Allowed, ...]:
        """Return what a cgroup may open; without one, of each cgroup that vfioctl restricts. Raises BadSpec,
        UnknownDevice if there is no such cgroup, KernelRefused, HostError."""
        processes = self._devices.processes()  # its workers scan while the rest is read
        if cgroup is not None:
            path = cgroup_in(cgroup)
            self._require(path)
            paths = [path]
        else:
            noted = {note.cgroup for _, note in read_notes(self._kernel).values() if note}
            live = {path for path in noted if self._kernel.unit_devices(path)}
            paths = sorted({*self._kernel.restricted_cgroups(), *live})
        nodes = read_gpu_nodes(self._kernel, self._devices, self._devices.inventory(nvml=False))
        # of a slice above many cgroups, once
        refused_at = cache(lambda place: self._refused(place, nodes))
        others_on = cache(lambda place: read_others(self._kernel, place))
        found = []
        for path in paths:
            of_each = {place: refused_at(place) for place in (*above(path), path)}
            by_systemd, by_program = of_each.pop(path)
            higher = {place: (*ordered(one | two),) for place, (one, two) in of_each.items() if one | two}
            refused = ordered(set(by_systemd | by_program).union(*higher.values()))
            holders, unread, unknown = read_holders(self._kernel, processes, path, refused)
            mechanisms = [name for name, used in (("bpf", by_program), ("systemd", by_systemd)) if used]
            others = dict.fromkeys(name for place in (*above(path), path) for name in others_on(place))
            found.append(
                Allowed(
                    cgroup=path,
                    mechanisms=tuple(mechanisms),
                    gpus=nodes.open_to(refused),
                    refused=refused,
                    above=higher,
                    others=tuple(others),
                    holders=holders,
                    unread=unread,
                    unknown=unknown,
                )
            )
        return tuple(found)

    def _refused(self, cgroup: str, nodes: GpuNodes) -> tuple[frozenset[str], frozenset[str]]:
        """Return the GPU nodes that systemd's list of a cgroup refuses, and those of vfioctl's program."""
        text = refused_on(self._kernel, cgroup) or ""
        program = frozenset() if text == UNREAD else frozenset(filter(None, text.split(", ")))
        setting = read_setting(self._kernel, cgroup)
        if setting is None or not setting.restricts:
            return frozenset(), program
        classes = read_classes(self._kernel, nodes, (setting,))
        return frozenset(number for number in nodes.every if not allows(setting, classes, number)), program

    def _require(self, cgroup: str) -> None:
        try:
            self._kernel.device_programs(cgroup)
        except KernelRefused as error:
            if error.errno != errnos.ENOENT:
                raise
            hint = "cat /proc/PID/cgroup shows the cgroup of a process"
            raise UnknownDevice(f"there is no cgroup {cgroup}", hint=hint) from None

    def _notes(
        self, cgroup: str, nodes: GpuNodes, chosen: Sequence[PciAddress], refused: frozenset[str]
    ) -> Iterator[str]:
        if not refused:
            yield "no other GPU of this host has a device node: nothing is refused"
        if unknown := [str(gpu) for gpu in without_number(nodes) if gpu not in chosen]:
            yield f"no device node of {', '.join(unknown)} is known: it is not refused"
        if refused:
            yield "only nodes that exist now are refused: run it again when a GPU has got another driver"
        wanted = nodes.allowed(chosen)
        for place in above(cgroup):
            if blocked := wanted & frozenset.union(*self._refused(place, nodes)):
                yield f"{place} refuses {', '.join(ordered(blocked))}, and lists of all cgroups above apply too"
        if others := read_others(self._kernel, cgroup):
            yield f"other programs stay attached, and may refuse more: {', '.join(others)}"
        holders, _, _ = read_holders(self._kernel, self._devices.processes(), cgroup, refused)
        for holder in holders[:_MOST_NOTED]:
            yield f"process {holder.pid} ({holder.name}) has {holder.path} open and keeps it: it is not revoked"
        if len(holders) > _MOST_NOTED:
            yield f"so have {len(holders) - _MOST_NOTED} more processes: vfioctl share allowed lists them"

    def _plan(self, intent: Intent, changes: Sequence[Change], notes: Sequence[str]) -> Plan:
        from vfioctl.core.change import Draft

        return self._session.plan(Draft(intent, changes=tuple(changes), notes=tuple(notes) if changes else ()))


def _refuse_later_files(devices: UnitDevices) -> None:
    if devices.later:
        raise HostError(
            f"{devices.unit} would open all GPUs again with the next daemon-reload: {', '.join(devices.later)} "
            "sets DeviceAllow or DevicePolicy too, and is read after what vfioctl sets",
            hint="give that file a name that sorts before 50-DeviceAllow.conf",
        )


def _changes(
    cgroup: str, program: str, refused: str, settings: tuple[Setting, ...], text: str, note: Note | None
) -> list[Change]:
    """Return what differs. `settings`: of the unit, before and after; none if it stays or there is no unit."""
    from vfioctl.core.change import Change
    from vfioctl.sharing.allowing.values import NOTE, PROGRAM, UNIT

    unit = cgroup.rpartition("/")[2]
    values: Mapping[tuple[str, str], tuple[str, str]] = {
        (NOTE, note_file(unit)): (text, note.text if note else ""),
        (PROGRAM, cgroup): (program, refused),
        **({(UNIT, unit): (settings[0].text, settings[1].text)} if settings else {}),
    }
    return [
        Change(kind=kind, name=name, subject=subject_of(cgroup), before=before, after=after)
        for (kind, name), (before, after) in values.items()
        if before != after
    ]

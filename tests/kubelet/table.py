"""The kubelet's knowledge of devices: which there are, and which container has which. May not call a plugin; the only
file that it touches is its checkpoint."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.kubelet.pods import Options
from vfioctl.kubelet.proto import deviceplugin_pb2 as api

CHECKPOINT = "kubelet_internal_checkpoint"
HEALTHY = "Healthy"


class Place(NamedTuple):
    """A container, and a resource that it needs."""

    uid: str
    container: str
    resource: str


@dataclass(frozen=True)
class Held:
    """The devices of one place, by NUMA node as the kubelet keeps them, and the plugin's answer."""

    nodes: Mapping[int, Sequence[str]]
    answer: api.ContainerAllocateResponse

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(device for ids in self.nodes.values() for device in ids)


@dataclass
class Table:
    """What the kubelet knows. A restart begins with an empty one."""

    healthy: dict[str, set[str]] = field(default_factory=dict)
    unhealthy: dict[str, set[str]] = field(default_factory=dict)
    devices: dict[str, dict[str, api.Device]] = field(default_factory=dict)
    held: dict[Place, Held] = field(default_factory=dict)
    allocated: dict[str, set[str]] = field(default_factory=dict)
    """Devices that are not given away, by resource: those held, and those of an Allocate that has not ended."""

    def update(self, resource: str, devices: Iterable[api.Device]) -> None:
        """A list of the plugin replaces the one before."""
        self.devices[resource] = {device.ID: device for device in devices}
        known = self.devices[resource].values()
        self.healthy[resource] = {device.ID for device in known if device.health == HEALTHY}
        self.unhealthy[resource] = {device.ID for device in known if device.health != HEALTHY}

    def lose(self, resource: str) -> None:
        """The plugin has gone: none of its devices is healthy until it is back."""
        self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
        self.healthy[resource] = set()

    def knows(self, resource: str) -> bool:
        """Whether a plugin gives it. What is not known costs a container nothing."""
        return resource in self.healthy or resource in self.allocated

    def hold(self, place: Place, ids: Iterable[str], answer: api.ContainerAllocateResponse) -> None:
        nodes: dict[int, list[str]] = {}
        for device in sorted(ids):
            for number in self.nodes_of(place.resource, device) or [0]:
                nodes.setdefault(number, []).append(device)
        self.held[place] = Held(nodes, answer)

    def nodes_of(self, resource: str, device: str) -> Sequence[int]:
        known = self.devices.get(resource, {}).get(device)
        return [node.ID for node in known.topology.nodes] if known else []

    def forget_all_but(self, uids: Collection[str]) -> None:
        """The devices of pods that are not active are free, unless nothing has ended."""
        ended = [place for place in self.held if place.uid not in uids]
        for place in ended:
            del self.held[place]
        if ended:
            self.count()

    def count(self) -> None:
        """Only what is held is allocated."""
        self.allocated = {}
        for place, held in self.held.items():
            self.allocated.setdefault(place.resource, set()).update(held.ids)

    def of(self, uid: str, container: str) -> Iterator[tuple[str, Held]]:
        """What a container holds, by resource."""
        for place, held in self.held.items():
            if place[:2] == (uid, container):
                yield place.resource, held

    def options(self, uid: str, container: str, *, cdi: bool) -> Options:
        """What the container is started with. Of two values for one name the first counts."""
        envs: dict[str, str] = {}
        annotations: dict[str, str] = {}
        devices: dict[str, tuple[str, str, str]] = {}
        mounts: dict[str, tuple[str, str, bool]] = {}
        names: list[str] = []
        for _, held in self.of(uid, container):
            answer = held.answer
            envs = {**answer.envs, **envs}
            annotations = {**answer.annotations, **annotations}
            for spec in answer.devices:
                devices.setdefault(spec.container_path, (spec.container_path, spec.host_path, spec.permissions))
            for mount in answer.mounts:
                mounts.setdefault(mount.container_path, (mount.container_path, mount.host_path, mount.read_only))
            names += [device.name for device in answer.cdi_devices if cdi]
        return Options(envs, tuple(devices.values()), tuple(mounts.values()), annotations, tuple(names))

    def save(self, folder: Path) -> None:
        """Writes the checkpoint in the kubelet's form; the checksum is of another kind, because Go's is not known."""
        entries = [
            {
                "PodUID": place.uid,
                "ContainerName": place.container,
                "ResourceName": place.resource,
                "DeviceIDs": {str(number): ids for number, ids in held.nodes.items()},
                "AllocResp": base64.b64encode(held.answer.SerializeToString()).decode(),
            }
            for place, held in self.held.items()
        ]
        registered = {resource: sorted(ids) for resource, ids in self.healthy.items()}
        data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
        text = json.dumps({"Data": data, "Checksum": zlib.crc32(json.dumps(data).encode())})
        new = folder / f".{CHECKPOINT}"
        new.write_text(text)
        new.rename(folder / CHECKPOINT)

    @classmethod
    def load(cls, folder: Path) -> Table:
        """What a kubelet starts with: who has what, and no healthy device."""
        table = cls()
        file = folder / CHECKPOINT
        if not file.exists():
            return table
        data = json.loads(file.read_text())["Data"]
        for entry in data["PodDeviceEntries"]:
            place = Place(entry["PodUID"], entry["ContainerName"], entry["ResourceName"])
            answer = api.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            table.held[place] = Held({int(number): ids for number, ids in entry["DeviceIDs"].items()}, answer)
        for resource in data["RegisteredDevices"]:
            table.healthy[resource], table.unhealthy[resource] = set(), set()
        table.count()
        return table


class Choice:
    """The devices for one container and resource, chosen as the kubelet does: those to be reused, then those that the
    plugin prefers, then any."""

    def __init__(self, table: Table, resource: str, needed: int, order: random.Random) -> None:
        self._table, self._resource, self._left, self._order = table, resource, needed, order
        self.ids: list[str] = []

    def take(self, ids: Iterable[str]) -> bool:
        """Takes of these what is still needed, in no order; whether that was enough."""
        unused = sorted(set(ids) - set(self.ids))
        self._order.shuffle(unused)
        taken = unused[: self._left]
        self.ids += taken
        self._left -= len(taken)
        self._table.allocated.setdefault(self._resource, set()).update(taken)
        return not self._left

    def available(self) -> set[str]:
        """The healthy devices that nobody has. Raises LookupError if they are too few."""
        known = self._table.healthy[self._resource] - self._table.allocated.get(self._resource, set())
        if len(known) < self._left:
            what = f"requested number of devices unavailable for {self._resource}"
            raise LookupError(f"{what}. Requested: {self._left}, Available: {len(known)}")
        return known

"""What PodResources shows: pods with their devices, in the shape of a release. May do no input or output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.kubelet.pods import Pod
from tests.kubelet.state import State
from vfioctl.kubelet.proto import podresources_pb2 as api


def listed(state: State) -> Sequence[api.PodResources]:
    """List, which first forgets the devices of pods that have ended."""
    with state.changed:
        state.forget_ended()
        shown = state.active() if state.release.lists_active_only else state.arrived
        return [_pod(state, state.lives[uid].pod) for uid in sorted(shown) if uid in state.lives]


def allocatable(state: State) -> Sequence[api.ContainerDevices]:
    """GetAllocatableResources: the healthy devices, whoever has them."""
    with state.changed:
        healthy = [(resource, device) for resource, ids in state.table.healthy.items() for device in sorted(ids)]
        return [_entry(resource, [device], state.table.nodes_of(resource, device)) for resource, device in healthy]


def _pod(state: State, pod: Pod) -> api.PodResources:
    containers = [
        api.ContainerResources(name=container.name, devices=_devices(state, pod.uid, container.name))
        for container in pod.listed
    ]
    return api.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)


def _devices(state: State, uid: str, container: str) -> Iterator[api.ContainerDevices]:
    for resource, held in state.table.of(uid, container):
        for number, ids in held.nodes.items():
            for entry in [[device] for device in ids] if state.release.entry_per_device else [ids]:
                yield _entry(resource, entry, [number])


def _entry(resource: str, ids: Sequence[str], nodes: Sequence[int]) -> api.ContainerDevices:
    topology = api.TopologyInfo(nodes=[api.NUMANode(ID=number) for number in nodes])
    return api.ContainerDevices(resource_name=resource, device_ids=ids, topology=topology)

"""Reads which containers and libvirt domains run, and which devices they have. May not write.
What runtimes (runc, crun, containerd, podman) and images wrote is not trusted: a file that is no JSON, too long or of
another form has no devices, and is reported. libvirt is asked in a worker, which is abandoned if it does not answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from vfioctl.claims.model.cdi import CONTROL_NODE, node_path
from vfioctl.claims.model.passthrough_devices import devices_in
from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.libvirt.domains import SECONDS, SOCKETS, running
from vfioctl.kernel.protocol import Unanswered, per_subject
from vfioctl.untrusted_text import parse_json

if TYPE_CHECKING:
    from vfioctl.kernel.protocol import Reader

# Where each runtime keeps a directory for each container, and what the file in it is. `*`: a namespace.
_STATES = (
    ("/run/runc", "state.json"),
    ("/run/containerd/runc/*", "state.json"),
    ("/run/docker/runtime-runc/*", "state.json"),
    ("/run/crun", "status"),
    ("/run/containerd/io.containerd.runtime.v2.task/*", "config.json"),
)
PODMAN = "/run/containers/storage/overlay-containers"
_MOST_CONTAINERS, _LONGEST, _LONGEST_PATH = 2000, 2 << 20, 4096
_VFIO = "/dev/vfio/"
_POD = (
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
    ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
    ("io.kubernetes.cri.container-name", "io.kubernetes.container.name"),
)
"""The annotations of containerd and CRI-O."""


class Container(NamedTuple):
    """A container that exists. `nodes`: its VFIO device files by path; `numbers`: of all its nodes, as `c 243:1`."""

    id: str
    nodes: tuple[str, ...]
    numbers: tuple[str, ...]
    pod: str = ""
    """NAMESPACE/NAME/CONTAINER, in Kubernetes."""


class Containers(NamedTuple):
    """The containers of a host. `unknown`: which states could not be read."""

    found: tuple[Container, ...] = ()
    unknown: tuple[str, ...] = ()


def read_containers(kernel: Reader) -> Containers:
    """Return the containers that have device files or belong to a pod."""
    containers: dict[tuple[str, tuple[str, ...]], Container] = {}
    unknown: list[str] = []
    for home, name, file in _places(kernel):
        path = f"{home}/{name}/{file}"
        try:
            container = _read(kernel, name, path)
        except KernelRefused as error:
            if error.symbol != "ENOENT":
                unknown.append(f"{path} cannot be read: {error.symbol}")
        except (ValueError, RecursionError):
            unknown.append(f"{path} is not understood")
        else:
            if container and (container.nodes or container.numbers or container.pod):
                containers.setdefault((container.id, container.nodes), container)
    return Containers(tuple(containers.values()), tuple(unknown))


def _places(kernel: Reader) -> Iterator[tuple[str, str, str]]:
    for pattern, file in _STATES:
        place, star, _ = pattern.partition("/*")
        homes = [f"{place}/{name}" for name in names_in(kernel, place)[:_MOST_CONTAINERS]] if star else [place]
        for home in homes:
            yield from ((home, name, file) for name in names_in(kernel, home)[:_MOST_CONTAINERS])
    for name in names_in(kernel, PODMAN)[:_MOST_CONTAINERS]:
        yield PODMAN, name, "userdata/config.json"


def _read(kernel: Reader, name: str, path: str) -> Container | None:
    """Return a container; None for one whose process has ended. Raises KernelRefused, ValueError."""
    document = _object(kernel.read(path))
    if not _runs(kernel, path, document):
        return None
    config = document
    if path.endswith("/status"):  # of crun, which names the bundle
        bundle = document.get("bundle")
        if not isinstance(bundle, str) or not bundle.startswith("/") or len(bundle) > _LONGEST_PATH:
            raise ValueError("no bundle")
        config = _object(kernel.read(f"{bundle}/config.json"))
    elif path.endswith("/state.json"):
        config = _mapping(document.get("config"))
    devices = [device for device in _devices(config) if isinstance(device, dict)]
    paths = (node_path(str(device.get("path", ""))) for device in devices)
    nodes = tuple(path for path in paths if path.startswith(_VFIO) and path != CONTROL_NODE)
    numbers = (f"c {device['major']}:{device['minor']}" for device in devices if _has_number(device))
    return Container(name, nodes, tuple(numbers), _pod(config))


def _runs(kernel: Reader, path: str, document: Mapping[str, Any]) -> bool:
    pid = document.get("init_process_pid", document.get("pid"))
    if path.endswith("/config.json"):
        home = path.removesuffix("/config.json")
        pid_text = text_of(kernel, f"{home}/init.pid") or text_of(kernel, f"{home}/pidfile")
        is_pid = pid_text.isascii() and pid_text.isdecimal() and len(pid_text) < len("4294967296")
        pid = int(pid_text) if is_pid else None
    return not isinstance(pid, int) or kernel.has(f"/proc/{pid}")


def _devices(config: Mapping[str, Any]) -> Sequence[Any]:
    devices = config.get("devices") or _mapping(config.get("linux")).get("devices")
    return devices if isinstance(devices, list) else ()


def _has_number(device: Mapping[str, Any]) -> bool:
    is_character = device.get("type", "c") in ("c", "u")
    return is_character and all(isinstance(device.get(name), int) and device[name] >= 0 for name in ("major", "minor"))


def _pod(config: Mapping[str, Any]) -> str:
    values = _mapping(config.get("annotations"))
    labels = config.get("labels")
    if isinstance(labels, list):  # as runc keeps annotations
        values = dict(label.split("=", 1) for label in labels if isinstance(label, str) and "=" in label)
    parts = [next((values[name] for name in names if isinstance(values.get(name), str)), "") for names in _POD]
    return "/".join(parts) if all(parts) else ""


def _object(text: str) -> Mapping[str, Any]:
    document = parse_json(text, most=_LONGEST)
    if not isinstance(document, dict):
        raise ValueError("no object")  # noqa: TRY004 - the file is wrong, not the caller
    return document


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


URI = "qemu:///system"


class Domains(NamedTuple):
    """What libvirt says. `unknown`: why it cannot be asked; empty if it answered, or if this host has none."""

    running: Mapping[str, Sequence[str]] = MappingProxyType({})
    """The addresses and UUIDs of the devices of each running domain, by its name."""
    unknown: str = ""


def read_domains(kernel: Reader) -> Domains:
    """Return the running domains. A host without libvirt's socket has none."""
    if not any(kernel.has(path) for path in SOCKETS):
        return Domains()
    ((_, said),) = kernel.survey(ask, [URI], timeout=SECONDS)
    if isinstance(said, Unanswered):
        return Domains(unknown=f"libvirt cannot be asked: {said.reason}")
    running, why = said
    return Domains(dict(running), f"libvirt cannot be asked: {why}" if why else "")


@per_subject
def ask(kernel: Reader, uri: str) -> tuple[list[tuple[str, list[str]]], str]:
    """Return each running domain's name and devices, and why libvirt could not be asked."""
    del kernel
    return running(uri, devices_in)

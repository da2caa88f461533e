"""The table `[kubelet]` of the configuration: which devices become which extended resources. May not do I/O.

::

    [kubelet]
    poll = "10s"

    [[kubelet.resources]]
    name = "nvidia.com/GA100_A100"
    match = ["10de:20b0"]
    consumer = "kubevirt"
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, NamedTuple

from vfioctl.claims.model.cdi import Node, checked_kind
from vfioctl.core.frozen import record_class
from vfioctl.core.limits import FORBID, Checked, Strict, Text
from vfioctl.errors import BadSpec
from vfioctl.placement.model.share import MEMORY_UNIT, WHOLE
from vfioctl.serving.address import Listen
from vfioctl.units import parse_duration, parse_size

_DOMAIN = r"(?=[^/]{1,253}/)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_RESOURCE = re.compile(rf"{_DOMAIN}/[A-Za-z0-9]([A-Za-z0-9_.-]{{0,61}}[A-Za-z0-9])?", re.ASCII)
_OF_KUBERNETES = re.compile(r"(.*\.)?(kubernetes|k8s)\.io/.*|requests\..*", re.ASCII)
_HUNDREDTHS = re.compile("[1-9][0-9]?|100", re.ASCII)
_SHORTEST, _LONGEST = 1.0, 3600.0
_LONGEST_PATH = 60
"""Bytes of the path of a directory of sockets: a path may have 107, with the name of the socket (unix(7))."""


class DeviceKind(StrEnum):
    """What the devices of a resource are."""

    PASSTHROUGH = "passthrough"
    """Whole GPUs."""
    VF = "vf"
    """VFs that exist, as they are."""
    MDEV = "mdev"
    """Mediated devices that exist."""
    VGPU = "vgpu"
    """vGPUs of a type, which are created when a pod gets them, and removed when it is gone."""
    CORES = "cores"
    """Hundredths of GPUs that stay with their host driver, for containers; 100 are a whole GPU."""
    MEMORY = "memory"
    """Units of the memory of such GPUs."""


class _Known(NamedTuple):
    """What a resource is that other device plugins have under the same name."""

    devices: DeviceKind
    unit: str
    beside: str = ""


KNOWN = {
    "tencent.com/vcuda-core": _Known(DeviceKind.CORES, "1", "tencent.com/vcuda-memory"),
    "tencent.com/vcuda-memory": _Known(DeviceKind.MEMORY, "256MiB", "tencent.com/vcuda-core"),
    "aliyun.com/gpu-mem": _Known(DeviceKind.MEMORY, "1GiB"),
}
"""Source: gpu-manager's pkg/types/types.go, gpushare-device-plugin's pkg/gpu/nvidia/const.go."""
SHARED = frozenset({DeviceKind.CORES, DeviceKind.MEMORY})
"""What a container gets a number of: parts of one GPU."""
MOST_UNITS = 1000
"""Of one GPU."""


class Consumer(StrEnum):
    """Who gets the devices of a pod, and so what the answer to Allocate has."""

    DEVICES = "devices"
    """Any container: the device nodes."""
    KUBEVIRT = "kubevirt"
    """KubeVirt: the device nodes, and an environment variable with the devices by position."""
    KATA = "kata"
    """Kata Containers: the names of CDI devices."""


class CdiBy(StrEnum):
    """How the names of CDI devices are passed on."""

    FIELD = "field"
    """In a field of the answer, from Kubernetes 1.28 on."""
    ANNOTATION = "annotation"
    """As an annotation, which older kubelets pass on, too."""


def _resource(text: str) -> str:
    if not _RESOURCE.fullmatch(text) or _OF_KUBERNETES.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is no extended resource: write DOMAIN/NAME, such as nvidia.com/GA100_A100")
    try:
        return checked_kind(text)
    except BadSpec:
        raise ValueError(f"{text[:60]!r} is no name of CDI devices, too: let it begin with a letter") from None


def _seconds(text: str) -> str:
    try:
        seconds = parse_duration(text)
    except BadSpec as error:
        raise ValueError(error.message) from None
    if not _SHORTEST <= seconds <= _LONGEST:
        raise ValueError("a duration from 1s to 1h is needed")
    return text


def _directory(text: str) -> str:
    if not text.startswith("/") or len(text.encode()) > _LONGEST_PATH or "\0" in text:
        raise ValueError(f"an absolute path of at most {_LONGEST_PATH} bytes is needed")
    return text.rstrip("/") or "/"


Duration = Annotated[str, Checked(_seconds)]
"""A duration from 1s to 1h."""
Directory = Annotated[str, Checked(_directory)]
"""A directory of sockets."""


@record_class
class ResourceSettings:
    """One extended resource: which devices it has, and for whom they are."""

    __pydantic_config__: ClassVar = FORBID

    name: Annotated[str, Checked(_resource)]
    devices: DeviceKind = DeviceKind.PASSTHROUGH
    match: tuple[Annotated[str, Text(255, least=1)], ...] = ()
    """Addresses, `vendor:device`, aliases of `[claims.models]`, or parts of names: of the function, or of a vGPU's
    parent. If empty, all devices of its kind but the boot display."""
    type: Annotated[str, Text(255)] = ""
    """The type of vGPUs."""
    consumer: Consumer = Consumer.DEVICES
    node: Node = Node.GROUP
    """Which device node a container gets."""
    bind: Annotated[bool, Strict()] = True
    """Whether devices are bound to VFIO when a pod gets them. Else only those that are on VFIO already are healthy."""
    cdi: CdiBy = CdiBy.FIELD
    unit: Annotated[str, Text(16)] = ""
    """How much one device of cores or memory is: hundredths of a GPU, of which 1 is the default, or a size, of which
    1GiB is."""
    beside: Annotated[str, Text(317)] = ""
    """Another resource of cores or memory: a container asks for both or for none, and gets both of one GPU."""

    def __post_init__(self) -> None:
        if (known := KNOWN.get(self.name)) and self.devices is DeviceKind.PASSTHROUGH:
            given = {"devices": known.devices, "unit": self.unit or known.unit, "beside": self.beside or known.beside}
            for field, value in given.items():
                object.__setattr__(self, field, value)
        self._refuse_unclear_share()
        if self.devices is DeviceKind.VGPU and not self.type:
            raise ValueError('type: vGPUs that are created need one, such as "nvidia-63": vfioctl vgpu types')
        if self.type and self.devices not in (DeviceKind.VGPU, DeviceKind.MDEV):
            raise ValueError(f"type: {self.devices} devices have none")

    def _refuse_unclear_share(self) -> None:
        if not self.is_shared:
            if self.unit or self.beside:
                raise ValueError("unit and beside are for cores and memory")
            return
        if self.consumer is not Consumer.DEVICES:
            raise ValueError(f"consumer: {self.devices} of a GPU are for containers, not for {self.consumer}")
        if self.beside == self.name:
            raise ValueError("beside: another resource is needed")
        if self.devices is DeviceKind.CORES and WHOLE % self.size:
            raise ValueError(f"unit: {self.unit} hundredths do not add up to a whole GPU")
        if self.devices is DeviceKind.MEMORY and self.size % MEMORY_UNIT:
            raise ValueError(f"unit: {self.unit} is no multiple of 256MiB")

    @property
    def is_shared(self) -> bool:
        """Whether a container gets a number of parts of a GPU."""
        return self.devices in SHARED

    @property
    def size(self) -> int:
        """Hundredths of a GPU, or bytes, of one device of cores or memory. Raises ValueError."""
        try:
            if self.devices is DeviceKind.MEMORY:
                return parse_size(self.unit or "1GiB")
        except BadSpec as error:
            raise ValueError(f"unit: {error.message}") from None
        if not _HUNDREDTHS.fullmatch(self.unit or "1"):
            raise ValueError(f"unit: a number of hundredths of a GPU from 1 to {WHOLE} is needed")
        return int(self.unit or "1")

    @property
    def endpoint(self) -> str:
        """The name of its socket."""
        return f"vfioctl-{self.name.replace('/', '_')}"[:_LONGEST_ENDPOINT] + ".sock"


_LONGEST_ENDPOINT = 40
_PLUGINS = "/var/lib/kubelet/device-plugins"
_POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"


@record_class
class KubeletSettings:
    """The settings of the device plugin."""

    __pydantic_config__: ClassVar = FORBID

    plugins: Directory = _PLUGINS
    """Where the kubelet has its socket, and device plugins have theirs."""
    pod_resources: Annotated[str, Text(107, least=2)] = _POD_RESOURCES
    """The socket of the kubelet that tells which pod has which device."""
    listen: Listen = "127.0.0.1:9820"
    """Where /metrics and /healthz are served; empty for nowhere."""
    run: Directory = "/run/vfioctl"
    """Where the state of the service is written."""
    allocate_timeout: Duration = "60s"
    """How long an Allocate may take. The kubelet has no timeout."""
    poll: Duration = "10s"
    """How often the kubelet is asked which pod has which device."""
    grace: Duration = "60s"
    """How long a claim waits for its pod to appear, and how long after the kubelet's start none is released."""
    resources: tuple[ResourceSettings, ...] = ()

    def __post_init__(self) -> None:
        for what, names in (("name", self.names), ("socket", [r.endpoint for r in self.resources])):
            if twice := next((name for name in names if names.count(name) > 1), ""):
                raise ValueError(f"resources: two have the {what} {twice}")
        for resource in self.resources:
            other = self.resource(resource.beside) if resource.beside else None
            if resource.beside and (other is None or other.devices not in SHARED - {resource.devices}):
                kind = next(iter(SHARED - {resource.devices}))
                raise ValueError(
                    f"resources: {resource.name} is beside {resource.beside}, which is no resource of {kind}"
                )
            if other and (other.beside != resource.name or other.match != resource.match):
                raise ValueError(
                    f"resources: {resource.name} is beside {other.name}, so that needs the same match, and"
                    f' beside = "{resource.name}"'
                )

    @property
    def names(self) -> list[str]:
        """The names of the resources."""
        return [resource.name for resource in self.resources]

    def seconds(self, name: str) -> float:
        """Return one of the durations."""
        return parse_duration(getattr(self, name))

    def resource(self, name: str) -> ResourceSettings | None:
        """Return the resource with that name, if there is one."""
        return next((resource for resource in self.resources if resource.name == name), None)

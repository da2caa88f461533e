"""The options that ask for a claim, and the request that they make. May not access a host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_type_hints

import typer

from vfioctl.claims.api import suggest_owners
from vfioctl.claims.model.access import ACCESS, access_in
from vfioctl.console.options import Decorator, completion, with_options
from vfioctl.errors import BadSpec
from vfioctl.inventory.api import suggest_devices, suggest_nodes
from vfioctl.placement.model.share import Enforcement
from vfioctl.units import parse_size

if TYPE_CHECKING:
    from vfioctl.claims.api import ClaimsApi
    from vfioctl.inventory.model.values import Subject
    from vfioctl.placement.model.request import ClaimRequest


Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        "-d",
        metavar="DEVICE",
        help="Device: 0000:41:00.0, 41:00.0, gpu0, or the UUID of a mediated device. Repeatable.",
        autocompletion=completion(suggest_devices),
    ),
]
OwnerName = Annotated[
    str,
    typer.Option(
        "--owner",
        metavar="OWNER",
        help="vm/NAME, pod/NAMESPACE/NAME/CONTAINER or user/NAME.",
        autocompletion=completion(suggest_owners),
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", help="Name of this request. A request with the same key returns the same claim."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, with the plan; record and change nothing.")
]


AccessOf = Annotated[
    str | None,
    typer.Option(
        metavar="USER|:GROUP|USER:GROUP",
        help="Let this user or group, too, open the device nodes; QEMU needs no root then.",
    ),
]
"""Without it, only root may."""


class Wish(NamedTuple):
    """The options that `claim create` and `place` share, and what they ask for, as it was typed."""

    gpus: Annotated[int | None, typer.Option(metavar="N", help="Number of GPUs; vfioctl selects them.", min=1)] = None
    vfs: Annotated[
        int | None, typer.Option(metavar="N", help="Number of existing VFs of GPUs; vfioctl selects them.", min=1)
    ] = None
    device: Devices = None
    vgpu: Annotated[
        str | None, typer.Option(metavar="TYPE[=K]", help="Number of new vGPUs of this type (default: 1).")
    ] = None
    numa: Annotated[
        str,
        typer.Option(
            metavar="same|N|any",
            help="Take devices of one NUMA node, of node N, or of as few nodes as possible.",
            autocompletion=completion(suggest_nodes),
        ),
    ] = "any"
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "--of",
            metavar="MODEL",
            help="Part of the GPU's name, its IDs as in 10de:2330, or an alias from config.toml.",
        ),
    ] = None
    memory_min: Annotated[str | None, typer.Option(metavar="SIZE", help="Least memory of each GPU, such as 40GiB.")] = (
        None
    )
    cpus: Annotated[
        int | None, typer.Option(metavar="N", help="Number of CPUs, in whole cores of the devices' NUMA node.", min=1)
    ] = None
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Take the CPUs that the host isolates (isolcpus=, nohz_full=) first.")
    ] = False
    hugepages: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Amount of memory in free hugepages of that node, such as 64GiB.")
    ] = None
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="After DURATION (10m, 2h) the claim may be released.")
    ] = None
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label of the claim. Repeatable.")
    ] = None
    access: AccessOf = None
    no_bind: Annotated[bool, typer.Option("--no-bind", help="Leave the devices with their drivers.")] = False
    cores: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="For containers: hundredths of one GPU that stays with its host driver; 100, 200, ...: whole GPUs.",
            min=1,
        ),
    ] = None
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="For containers: memory of that GPU, in units of 256 MiB, such as 8GiB."),
    ] = None
    enforce: Annotated[
        Enforcement | None,
        typer.Option(help="What must keep its client within the share (default: the strongest that the host has)."),
    ] = None
    spread: Annotated[
        bool, typer.Option("--spread", help="Take the share from the GPU with the most free, not the least that fits.")
    ] = False

    def refuse_unclear(self) -> None:
        """Raise BadSpec unless it asks for vGPUs, or for GPUs or VFs, devices or both."""
        if not (self.gpus or self.vfs or self.device or self.vgpu or self.is_native):
            hint = "give --gpus N, --vfs N, --device DEVICE, --vgpu TYPE, --cores N or --gpu-memory SIZE"
            raise BadSpec("--gpus, --vfs, --device, --vgpu, --cores: one of them is needed", hint=hint)
        if self.is_native and (self.gpus or self.vfs or self.vgpu):
            raise BadSpec("--cores and --gpu-memory exclude --gpus, --vfs and --vgpu", hint="make two claims")
        if self.is_native and self.access is not None:
            raise BadSpec("--access is for device nodes of VFIO, which --cores and --gpu-memory do not use")
        if self.vgpu and (self.gpus or self.vfs or self.device):
            raise BadSpec("--gpus, --vfs, --device, --vgpu: --vgpu excludes the others", hint="make two claims")
        if self.gpus and self.vfs:
            raise BadSpec("--gpus and --vfs exclude each other", hint="make two claims")
        if self.realtime and not self.cpus:
            raise BadSpec("--realtime is for CPUs, and none are asked for", hint="give --cpus N")

    @property
    def is_native(self) -> bool:
        """Whether it asks for GPUs that stay with their host driver."""
        return bool(self.cores or self.gpu_memory)

    def asked(self, api: ClaimsApi, owner: str) -> ClaimRequest:
        """Return the request on a host. Raises BadSpec, UnknownDevice, BadAddress."""
        return self.request(owner, api.devices_called(self.device) if self.device else ())

    def request(self, owner: str, devices: Sequence[Subject] = ()) -> ClaimRequest:
        """Return the request. `devices`: what the names in `self.device` mean. Raises BadSpec."""
        from vfioctl.console.waiting import seconds_in
        from vfioctl.placement.model.request import ClaimRequest

        self.refuse_unclear()
        kind, count = vgpu_in(self.vgpu)
        return ClaimRequest(
            owner=owner,
            devices=tuple(devices),
            gpus=self.gpus or self.vfs or 0,
            virtual=bool(self.vfs),
            vgpu=kind,
            vgpus=count,
            numa=numa_in(self.numa),
            model=self.model or "",
            memory_min=size_in(self.memory_min),
            cpus=self.cpus or 0,
            realtime=self.realtime,
            hugepages=size_in(self.hugepages),
            ttl=seconds_in(self.ttl) if self.ttl is not None else None,
            labels=labels_in(self.label or (), self.access),
            bind=not (self.no_bind or self.is_native),
            cores=self.cores or 0,
            gpu_memory=size_in(self.gpu_memory),
            enforce=self.enforce or "",
            spread=self.spread,
        )


def wish_options(*without: str) -> Decorator:
    """Give a command the options of `Wish` in the place of its parameter `wish`, `without` these."""
    hints = get_type_hints(Wish, include_extras=True)
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in Wish._field_defaults.items()
        if name not in without
    ]
    return with_options("wish", options, lambda values: Wish(**values))


def default_owner() -> str:
    """Return the user of this process, or who called sudo, as an owner."""
    from vfioctl.core.caller import this_process

    caller = this_process()
    return f"user/{caller.sudo_user or caller.user}"


def size_in(text: str | None) -> int:
    """Return the bytes in `40GiB`; 0 for None. Raises BadSpec."""
    return 0 if text is None else parse_size(text)


def key_in(text: str | None) -> str:
    """Return the name of a request; empty for None. Raises BadSpec for an empty one."""
    if text == "":
        raise BadSpec("--key is empty", hint="give the request a name, or leave out --key")
    return text or ""


def numa_in(text: str) -> Literal["any", "same"] | int:
    """Return a node's number, `same` or `any`. Raises BadSpec."""
    if text == "same":
        return "same"
    if text == "any":
        return "any"
    if re.fullmatch(r"[0-9]{1,4}", text, re.ASCII):
        return int(text)
    raise BadSpec(f"not a NUMA node: {text[:40]!r}", hint="write its number, same or any")


def labels_in(texts: Sequence[str], access: str | None = None) -> Mapping[str, str]:
    """Return the labels of `KEY=VALUE`, ..., and the one for `--access`. Raises BadSpec."""
    labels = {ACCESS: access_in(access).text} if access is not None else {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadSpec(f"not a label: {text[:60]!r}", hint="write it as KEY=VALUE")
        if key == ACCESS:
            raise BadSpec(f"the label {ACCESS} is set by --access", hint="--access USER or --access :GROUP")
        if key in labels:
            raise BadSpec(f"the label {key[:60]!r} is given twice", hint="a label has one value")
        labels[key] = value
    return labels


def vgpu_in(text: str | None) -> tuple[str, int]:
    """Return the type and the number of `TYPE[=K]`; no type and 1 for None. Raises BadSpec."""
    from vfioctl.vgpu.model.lookup import type_and_number

    return type_and_number(text) if text else ("", 1)

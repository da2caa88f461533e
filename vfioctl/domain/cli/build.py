"""`vfioctl domain build`. May not add behaviour to the api."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import Command
from vfioctl.console.options import AsJson, completion
from vfioctl.console.output import draw, emit_document, emit_file, refuse_to_replace, say, write_whole
from vfioctl.domain.api import DomainApi
from vfioctl.domain.cli.options import Connect
from vfioctl.errors import BadSpec, some_of
from vfioctl.inventory.api import suggest_devices, suggest_nodes
from vfioctl.inventory.model.values import PciAddress

if TYPE_CHECKING:
    from vfioctl.domain.build.build import Built

_EXAMPLES = """[bold]Examples[/]
  vfioctl domain build ml1 --gpus 2 --cpus 16 --memory 64GiB --simulate hgx8
  vfioctl domain build ml1 --gpus 2 --cpus 16 --memory 64GiB --explain --simulate hgx8
  vfioctl domain build game --device gpu1 --cpus 8 --template windows-desktop --simulate workstation
  vfioctl domain build ml1 --gpus 8 --cpus 128 --memory 512GiB --json --simulate hgx8"""

_PANEL_PLACE, _PANEL_PARTS = "Placement", "Disks and networks"


def add_to(app: typer.Typer) -> None:
    """Add the command to `vfioctl domain`."""
    app.command(cls=Command, epilog=_EXAMPLES)(build)


def _suggest_templates(_session: object, _begun: str) -> list[tuple[str, str]]:
    from vfioctl.domain.document.templates import templates

    return [(name, "") for name in templates()]


Name = Annotated[str | None, typer.Argument(metavar="NAME", help="The domain's name.")]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="TEMPLATE",
        help="A template of /etc/vfioctl/templates, or one that comes with vfioctl (compute-linux).",
        autocompletion=completion(_suggest_templates),
    ),
]
Claim = Annotated[str | None, typer.Option(metavar="CLAIM", help="The devices, CPUs and hugepages of this claim.")]
# numbers are text here, and checked with the rest of the spec: typer takes longer for one than the build does
Gpus = Annotated[str | None, typer.Option("--gpus", metavar="N", help="So many GPUs, which vfioctl chooses.")]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        "-d",
        metavar="DEVICE",
        help="This device: 41:00.0, gpu0, or the UUID of a mediated device. Repeat it for each.",
        autocompletion=completion(suggest_devices),
    ),
]
Cpus = Annotated[
    str | None, typer.Option("--cpus", metavar="N", help="N vCPUs, each pinned to a CPU near the devices.")
]
Memory = Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="The memory, such as 64GiB.")]
Hugepages = Annotated[
    str | None,
    typer.Option(
        "--hugepages",
        metavar="auto|1GiB|2MiB|none",
        help="The size of the memory's pages; auto takes the largest that are free.",
        rich_help_panel=_PANEL_PLACE,
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="strict|preferred",
        help="If something cannot be had: refuse (strict), or do without it and say what is weaker.",
        rich_help_panel=_PANEL_PLACE,
    ),
]
Threads = Annotated[
    str | None,
    typer.Option(
        "--smt",
        metavar="together|isolate",
        help="Use all threads of a core as a guest's core, or one vCPU for each core.",
        rich_help_panel=_PANEL_PLACE,
    ),
]
Numa = Annotated[
    str | None,
    typer.Option(
        "--numa",
        metavar="same|N|any",
        help="All GPUs of one NUMA node, of node N, or of as few nodes as there are.",
        autocompletion=completion(suggest_nodes),
        rich_help_panel=_PANEL_PLACE,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help="A part of the GPU's name, or 10de:2330.", rich_help_panel=_PANEL_PLACE
    ),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="ADDRESS=N",
        help="The NUMA node of a device, if the firmware does not tell. Repeat it for each.",
        rich_help_panel=_PANEL_PLACE,
    ),
]
Disks = Annotated[
    list[str] | None,
    typer.Option(
        "--disk",
        metavar="PATH",
        help="A disk image or block device, in place of the template's disks. Repeat it for each.",
        rich_help_panel=_PANEL_PARTS,
    ),
]
Seed = Annotated[
    str | None,
    typer.Option(
        "--seed", metavar="PATH", help="An image with a seed for cloud-init, read-only.", rich_help_panel=_PANEL_PARTS
    ),
]
Networks = Annotated[
    list[str] | None,
    typer.Option(
        "--network",
        metavar="NETWORK",
        help="A libvirt network, in place of the template's. Repeat it for each.",
        rich_help_panel=_PANEL_PARTS,
    ),
]
Display = Annotated[
    bool | None,
    typer.Option(
        "--display/--no-display",
        show_default=False,
        help="Whether the first mediated device shows the guest's display; it does if the template has graphics.",
        rich_help_panel=_PANEL_PARTS,
    ),
]
SpecFile = Annotated[
    Path | None,
    typer.Option("--spec", metavar="FILE", help="A TOML or YAML file that says the same; options override it."),
]
NcclTopology = Annotated[
    Path | None,
    typer.Option(
        "--nccl-topo",
        metavar="FILE",
        help="Also write the topology that NCCL reads in the guest (NCCL_TOPO_FILE) to this file.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of --nccl-topo.")]
Explain = Annotated[bool, typer.Option("--explain", help="Say what was chosen and why, not the XML. --json has both.")]


def build(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    name: Name = None,
    *,
    template: Template = None,
    claim: Claim = None,
    gpus: Gpus = None,
    device: Devices = None,
    cpus: Cpus = None,
    memory: Memory = None,
    hugepages: Hugepages = None,
    policy: Policy = None,
    smt: Threads = None,
    numa: Numa = None,
    model: Model = None,
    node: Nodes = None,
    disk: Disks = None,
    seed: Seed = None,
    network: Networks = None,
    display: Display = None,
    spec: SpecFile = None,
    connect: Connect = "",
    nccl_topo: NcclTopology = None,
    force: Force = False,
    explain: Explain = False,
    as_json: AsJson = False,
) -> None:
    """Print the XML of a domain with GPUs, with its CPUs, memory and devices on the right NUMA nodes.

    The devices are chosen as a claim would get them, or are those of a claim. The domain gets whole cores near them
    that no claim, no other guest and no other domain has, memory of the same NUMA nodes, and PCI buses that show the
    guest where its devices are. Everything else is the template's. Nothing is reserved or changed.
    """
    if nccl_topo == Path("-"):
        raise BadSpec("--nccl-topo writes no topology to stdout, which has the domain", hint="name a file")
    given = asked(
        name=name,
        template=template,
        claim=claim,
        gpus=gpus,
        devices=device,
        cpus=cpus,
        memory=memory,
        hugepages=hugepages,
        policy=policy,
        smt=smt,
        numa=numa,
        model=model,
        nodes=node,
        disks=disk,
        seed=seed,
        networks=network,
        display=display,
    )
    api = DomainApi(opened(ctx))
    built = api.build(api.spec(given, spec), connect=connect)
    if nccl_topo:
        _write_topology(built, nccl_topo, force=force)
    _show(built, explain=explain, as_json=as_json)


def _write_topology(built: "Built", file: Path, *, force: bool) -> None:
    refuse_to_replace(file, force=force, otherwise="name a file")
    write_whole(file, built.nccl_topology.encode())
    if missing := built.not_in_nccl_topology:
        say(f"--nccl-topo: {some_of(missing)}: not in the file, because the NUMA node is not known")


def _show(built: "Built", *, explain: bool, as_json: bool) -> None:
    if as_json:
        emit_document(built.summary(), indented=True)
        return
    if explain:
        from vfioctl.domain.render.build import choices_page

        draw(choices_page(built.layout.choices))
        return
    emit_file(built.xml)
    for choice in built.weaker:
        say(f"{choice.what}: {choice.weaker}")


def asked(**given: str | list[str] | bool | None) -> dict[str, Any]:
    """Return what options ask for, under the names of a spec."""
    said: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "nodes" in said:
        said["nodes"] = dict(map(_node, said["nodes"]))
    return said


def _node(text: str) -> tuple[PciAddress, str]:
    address, equals, node = text.partition("=")
    if not equals:
        raise BadSpec(f"--node {text[:40]}: the NUMA node is missing", hint="write --node ADDRESS=N, as 41:00.0=1")
    return PciAddress(address), node

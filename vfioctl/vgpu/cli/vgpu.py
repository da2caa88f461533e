"""`vfioctl vgpu`: the types of vGPUs that cards offer, and the vGPUs that are there. See also `vgpu_change`."""

import sys
from dataclasses import fields, is_dataclass
from typing import Annotated

import typer

from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand, HelpfulGroup
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit, width
from vfioctl.vgpu.cli import change as vgpu_change
from vfioctl.vgpu.cli import restore
from vfioctl.vgpu.cli.completion import complete_instance, complete_parent, complete_type, unnumbered

app = typer.Typer(
    name="vgpu", cls=HelpfulGroup, invoke_without_command=True, add_completion=False, rich_markup_mode="rich"
)


Parent = Annotated[
    str | None,
    typer.Argument(
        metavar="PARENT",
        help="Only this card: 0000:08:00.0, 08:00.0, gpu0, one of its VFs, or a name such as mtty.",
        autocompletion=complete_parent,
        show_default=False,
    ),
]


@app.callback(
    epilog="""[bold]Examples[/]
  vfioctl vgpu types --simulate a2
  vfioctl vgpu create A2-4C --count 2 --dry-run --simulate a2
  vfioctl vgpu list --simulate l40s""",
)
def vgpu(ctx: typer.Context) -> None:
    """List, make and remove vGPUs of GPUs.

    The same for every interface that the kernel has: mediated devices (mdev), NVIDIA's vendor-specific VFIO, plain
    SR-IOV, and Intel's xe with its profiles.
    """
    if ctx.invoked_subcommand is None:
        ctx.get_help()
        raise typer.Exit(2)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl vgpu types --simulate a2
  vfioctl vgpu types 41:00.0 --after L40S-12Q=2 --simulate l40s
  vfioctl vgpu types --simulate xe --json""",
)
def types(
    ctx: typer.Context,
    parent: Parent = None,
    *,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="TYPE[=N]",
            help="What would remain if these were made; may be given again.",
            autocompletion=complete_type,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the types of vGPUs by card, and how many more there is room for.

    FREE is what the card as a whole has room for, if only that type is made. Where the kernel does not tell exactly, it
    is a range: 1-4 is one for certain, and four at most.
    """
    host = chosen(ctx).open()
    found = host.vgpus()
    from vfioctl.vgpu.capacity import after as remaining
    from vfioctl.vgpu.model.lookup import cards_called, requested
    from vfioctl.vgpu.model.vgpu import VgpuTypesDocument

    parent = unnumbered(host, parent)
    cards = cards_called(found, parent)
    asked = requested(cards, after or ())
    forecasts = tuple(remaining(card, asked[card.id]) for card in cards if card.id in asked)
    if as_json:
        _emit_document(VgpuTypesDocument(cards, forecasts, found.warnings))
        return
    from vfioctl.vgpu.render.listing import vgpu_types_page

    draw(vgpu_types_page(cards, host.titles(cards), forecasts, found.warnings, width=width()))


@app.command(
    "list",
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl vgpu list --simulate a2
  vfioctl vgpu list --simulate mi300x-vf --json""",
)
def list_instances(ctx: typer.Context, parent: Parent = None, *, as_json: AsJson = False) -> None:
    """List the vGPUs that are there, and those that mdevctl has defined.

    vGPUs that vfioctl did not make are foreign: it shows them, and leaves them alone.
    """
    host = chosen(ctx).open()
    found = host.vgpus()
    from vfioctl.vgpu.model.lookup import cards_called
    from vfioctl.vgpu.model.vgpu import VgpuListDocument

    parent = unnumbered(host, parent)
    cards = {card.id for card in cards_called(found, parent)}
    instances = tuple(vgpu for vgpu in found.instances if parent is None or vgpu.card in cards)
    if as_json:
        _emit_document(VgpuListDocument(instances, found.warnings))
        return
    from vfioctl.vgpu.render.listing import vgpu_table

    draw(vgpu_table(instances, found.warnings, width=width()))


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl vgpu show 41:00.5 --simulate l40s
  vfioctl vgpu show 41:00.5 --simulate l40s --json""",
)
def show(
    ctx: typer.Context,
    instance: Annotated[
        str,
        typer.Argument(
            metavar="INSTANCE",
            help="A UUID, of which a beginning will do, or the address of a VF.",
            autocompletion=complete_instance,
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show everything about one vGPU."""
    from vfioctl.vgpu.model.lookup import instance_called

    host = chosen(ctx).open()
    found = host.vgpus()
    vgpu = instance_called(found, instance)
    if as_json:
        _emit_document(vgpu)
        return
    from vfioctl.vgpu.render.listing import vgpu_page

    titles = host.titles(card for card in found.cards if card.id == vgpu.card)
    draw(vgpu_page(vgpu, titles.get(vgpu.card, "")))


vgpu_change.add_to(app)
restore.add_to(app)


def _emit_document(document: object) -> None:
    """Whole lines for people; ten thousand offers in half the time and space for programs."""
    import json

    indent, separators = (2, None) if sys.stdout.isatty() else (None, (",", ":"))
    emit(json.dumps(document, default=_plain, indent=indent, separators=separators, ensure_ascii=False))


def _plain(value: object) -> dict[str, object]:
    if not is_dataclass(value):
        raise TypeError(f"no form in JSON: {value!r}")
    return {field.name: getattr(value, field.name) for field in fields(value)}

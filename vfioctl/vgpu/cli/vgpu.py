"""`vfioctl vgpu types`, `list` and `show`. The other commands of `vfioctl vgpu` are in `change`."""

from typing import Annotated

import typer

from vfioctl.console.changes import tell_unfinished
from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson
from vfioctl.console.output import draw, emit_document, width
from vfioctl.inventory.api import InventoryApi
from vfioctl.vgpu.api import VgpuApi
from vfioctl.vgpu.cli import change
from vfioctl.vgpu.cli.completion import complete_parent, complete_type, complete_vgpu

app = group_app("vgpu")

Parent = Annotated[
    str | None,
    typer.Argument(
        metavar="PARENT",
        help="Only this card: 0000:08:00.0, 08:00.0, gpu0, one of its VFs, or a name such as mtty.",
        autocompletion=complete_parent,
        show_default=False,
    ),
]


@app.group_with_examples("""
  vfioctl vgpu types --simulate a2
  vfioctl vgpu create A2-4C --count 2 --dry-run --simulate a2
  vfioctl vgpu list --simulate l40s""")
def vgpu() -> None:
    """List, create and remove vGPUs.

    The commands are the same for every kernel interface: mediated devices (mdev), NVIDIA's vendor-specific VFIO, plain
    SR-IOV, and Intel's xe with its profiles."""


@app.with_examples("""
  vfioctl vgpu types --simulate a2
  vfioctl vgpu types 41:00.0 --after L40S-12Q=2 --simulate l40s
  vfioctl vgpu types --simulate xe --json""")
def types(
    ctx: typer.Context,
    parent: Parent = None,
    *,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="TYPE[=N]",
            help="Show the capacity that remains if these are created. May be repeated.",
            autocompletion=complete_type,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the vGPU types of each card, and how many more can be created.

    FREE is the number that can still be created on the whole card if only that type is used. If the kernel does not
    report an exact number, it is a range: 1-4 means at least one, and at most four. What live claims hold is not free,
    also if a reboot has removed their vGPUs."""
    session = opened(ctx)
    api = VgpuApi(session)
    vgpus = api.vgpus()
    tell_unfinished(session)
    from vfioctl.vgpu.ledger.journaled import without_claimed_room
    from vfioctl.vgpu.model.lookup import cards_called, requested
    from vfioctl.vgpu.model.vgpu import VgpuTypesDocument
    from vfioctl.vgpu.placement.capacity import after as remaining

    cards = cards_called(without_claimed_room(session, vgpus), parent and api.parent_called(parent))
    asked = requested(cards, after or ())
    forecasts = tuple(remaining(card, asked[card.id]) for card in cards if card.id in asked)
    if as_json:
        emit_document(VgpuTypesDocument(cards, forecasts, vgpus.warnings), compact=True)
        return
    from vfioctl.vgpu.render.listing import vgpu_types_page

    draw(vgpu_types_page(cards, api.titles(cards), forecasts, vgpus.warnings, width=width()))


@app.with_examples(
    """
  vfioctl vgpu list --simulate a2
  vfioctl vgpu list --simulate mi300x-vf --json""",
    name="list",
)
def list_vgpus(ctx: typer.Context, parent: Parent = None, *, as_json: AsJson = False) -> None:
    """List the existing vGPUs, and those that mdevctl has defined.

    vGPUs that vfioctl did not create are foreign: they are listed, but changed only with --foreign."""
    session = opened(ctx)
    api = VgpuApi(session)
    vgpus = api.vgpus()
    tell_unfinished(session)
    from vfioctl.vgpu.model.lookup import cards_called
    from vfioctl.vgpu.model.vgpu import VgpuListDocument

    cards = {card.id for card in cards_called(vgpus, parent and api.parent_called(parent))}
    instances = tuple(vgpu for vgpu in vgpus.instances if parent is None or vgpu.card in cards)
    names = {vgpu.id for vgpu in instances}
    reserved = tuple(reserved for reserved in InventoryApi(session).reservations() if reserved.subject in names)
    if as_json:
        emit_document(VgpuListDocument(instances, vgpus.warnings, reserved), compact=True)
        return
    from vfioctl.vgpu.render.listing import vgpu_table

    draw(vgpu_table(instances, vgpus.warnings, reserved, width=width()))


@app.with_examples("""
  vfioctl vgpu show 41:00.5 --simulate l40s
  vfioctl vgpu show 41:00.5 --simulate l40s --json""")
def show(
    ctx: typer.Context,
    vgpu: Annotated[
        str,
        typer.Argument(
            metavar="VGPU",
            help="A UUID (the first characters are enough), or the address of a VF.",
            autocompletion=complete_vgpu,
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show everything about one vGPU."""
    from vfioctl.vgpu.model.lookup import instance_called

    api = VgpuApi(opened(ctx))
    vgpus = api.vgpus()
    shown = instance_called(vgpus, vgpu)
    if as_json:
        emit_document(shown, compact=True)
        return
    from vfioctl.vgpu.render.listing import vgpu_page

    titles = api.titles(card for card in vgpus.cards if card.id == shown.card)
    draw(vgpu_page(shown, titles.get(shown.card, "")))


change.add_to(app)

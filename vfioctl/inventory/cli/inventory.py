"""`vfioctl inventory`: shows the host's GPUs as a table, a tree, CSV or JSON. May not add behaviour to the api."""

import gc
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vfioctl.console.changes import tell_unfinished
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App, Command
from vfioctl.console.options import AsJson, completion, device_argument
from vfioctl.console.output import UNLIMITED, clear, draw, emit_csv, emit_document, say, width
from vfioctl.console.waiting import seconds_in
from vfioctl.errors import BadSpec, some_of
from vfioctl.inventory.api import InventoryApi, suggest_devices, suggest_drivers, suggest_nodes
from vfioctl.inventory.selection.selector import Filters, matching

if TYPE_CHECKING:
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.session import Session

app = App(add_completion=False)


def _suggest_columns(_session: "Session", begun: str) -> list[tuple[str, str]]:
    from vfioctl.inventory.render.listing import FIELDS

    before, comma, _ = begun.rpartition(",")
    return [(f"{before}{comma}{name}", field.column.title) for name, field in FIELDS.items()]


_WATCH_EACH = "2s"
_SHORTEST_WATCH = 0.1


class Format(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    CSV = "csv"
    JSON = "json"


class _Form(NamedTuple):
    format: Format
    columns: str | None
    header: bool
    everything: bool
    tree: bool

    @property
    def is_flat(self) -> bool:
        """Whether it is a list of single devices, not a page."""
        return self.format is Format.CSV or self.columns is not None or not self.header


class _Watchable(Command):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # typer knows no option whose value may be left out
        return super().parse_args(ctx, [f"--watch={_WATCH_EACH}" if word == "--watch" else word for word in args])


@app.with_examples(
    """
  vfioctl inventory --simulate hgx8
  vfioctl inventory --simulate workstation --tree
  vfioctl inventory --simulate laptop --driver i915 --format wide
  vfioctl inventory --simulate hgx8 --numa 1 --columns gpu,address --no-header
  vfioctl inventory --simulate mi300x --all --json""",
    cls=_Watchable,
)
def inventory(  # noqa: PLR0913 - each is an option
    ctx: typer.Context,
    devices: Annotated[
        list[str] | None, device_argument(suggest_devices, meaning="List only these: 41:00.0, gpu0, 10de:2330, ...")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="List every PCI function.")] = False,
    tree: Annotated[bool, typer.Option("--tree", help="Show NUMA nodes, groups and members.")] = False,
    ready: Annotated[bool, typer.Option("--ready", help="List only devices that are ready for a guest.")] = False,
    driver: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="List only devices of this driver; none: devices without a driver.",
            autocompletion=completion(suggest_drivers),
        ),
    ] = None,
    numa: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="List only devices of this NUMA node.", autocompletion=completion(suggest_nodes)
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Show only these columns.", autocompletion=completion(_suggest_columns)),
    ] = None,
    no_header: Annotated[bool, typer.Option("--no-header", help="Omit the column titles.")] = False,
    as_format: Annotated[
        Format | None, typer.Option("--format", metavar="FORMAT", help="table, wide (all columns), csv or json.")
    ] = None,
    watch: Annotated[
        str | None, typer.Option(metavar="[=SECONDS]", help="Update the list when a device changes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List GPUs, and the functions that must be bound together with them.

    Lists GPUs with their companions (functions of the same card or IOMMU group), by NUMA node and group, with their
    drivers and whether they are ready for a guest. With a filter, lists the devices that match, one a line. A wider
    terminal shows more columns, a pipe all of them."""
    filters = Filters(devices or (), driver, numa, ready)
    form = _Form(_format(as_format, as_json=as_json), columns, not no_header, everything or bool(devices), tree)
    _refuse_contradictions(form, filters)
    seconds = _seconds(watch)
    session = opened(ctx)
    api = InventoryApi(session)
    host = api.inventory()
    tell_unfinished(session)
    _show(host, filters, form)
    if watch is not None:
        gc.enable()  # off in commands that end soon
        for changed in api.changes(host, seconds):
            clear()
            _show(changed, filters, form)


def _format(asked: Format | None, *, as_json: bool) -> Format:
    if as_json and asked not in (None, Format.JSON):
        raise BadSpec(f"--json and --format {asked} exclude each other", hint="give one of them")
    return Format.JSON if as_json else asked or Format.TABLE


def _refuse_contradictions(form: _Form, filters: Filters) -> None:
    if form.tree and form.format is Format.JSON:
        raise BadSpec("--tree and --json exclude each other", hint="--json has the groups and NUMA nodes in it")
    if form.tree and (form.is_flat or filters.words):
        raise BadSpec("--tree shows the whole host: it goes with --all only", hint="leave out --tree")
    if form.format is Format.JSON and form.is_flat:
        raise BadSpec("--columns and --no-header are for tables and CSV", hint="jq chooses fields of JSON")


def _seconds(watch: str | None) -> float:
    seconds = seconds_in(watch)
    if watch is not None and seconds < _SHORTEST_WATCH:
        raise BadSpec(f"--watch={watch[:40]} is too often", hint=f"the shortest is {_SHORTEST_WATCH} s")
    return seconds


def _show(found: "Inventory", filters: Filters, form: _Form) -> None:
    shown = matching(found, filters, everything=form.everything) if filters.words else None
    unread = () if shown is not None else tuple(found.unread)
    if shown == ():
        say(f"No device matches {filters.words}.")
    if found.unread and shown is not None and not filters.devices:
        say(f"{some_of(found.unread)} could not be read: it is unknown whether {filters.words} applies.")
    if form.format is Format.JSON:
        from vfioctl.inventory.model.document import document_of

        emit_document(document_of(found, everything=form.everything, shown=shown), compact=True)
    elif shown is not None or form.is_flat:
        listed = shown if shown is not None else matching(found, filters, everything=form.everything)
        _show_list(found, listed, unread, form)
    else:
        _show_page(found, form)


def _show_list(
    found: "Inventory", shown: "tuple[Function, ...]", unread: "tuple[PciAddress, ...]", form: _Form
) -> None:
    from vfioctl.inventory.render.listing import fields_called, flat_table, rows_of, texts

    names = fields_called(form.columns)
    rows = rows_of(found, shown, names, unread)
    if form.format is Format.CSV:
        emit_csv([*([names] if form.header else []), *map(texts, rows)])
    elif rows:
        page = flat_table(rows, names, width=_width(form), asked=form.columns is not None, header=form.header)
        draw(page, within=_width(form))


def _show_page(found: "Inventory", form: _Form) -> None:
    from vfioctl.inventory.render.listing import inventory_table
    from vfioctl.inventory.render.tree import inventory_tree

    if form.tree:
        draw(inventory_tree(found, everything=form.everything), within=_width(form))
    else:
        draw(inventory_table(found, width=_width(form), everything=form.everything), within=_width(form))


def _width(form: _Form) -> int:
    return UNLIMITED if form.format is Format.WIDE else width()

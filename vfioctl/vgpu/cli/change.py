"""`vfioctl vgpu create` and `remove`: vGPUs are made and removed, whatever interface of the kernel they have."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import carry_out, preview
from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.options import AsJson, DryRun, ForceHolders, Foreign, Persistent, Wait, Yes
from vfioctl.console.output import say
from vfioctl.console.waiting import planned
from vfioctl.errors import BadSpec, NoCapacity
from vfioctl.vgpu.cli.completion import complete_instance, complete_parent, complete_type, unnumbered

if TYPE_CHECKING:
    from vfioctl.core.change import Plan
    from vfioctl.host import Host

_MOST_TRIES = 4
"""Each but the first on other places: somebody was faster on those before."""


def add_to(app: typer.Typer) -> None:
    """Adds these commands to `vfioctl vgpu`."""
    app.command(cls=HelpfulCommand, epilog=_CREATE)(create)
    app.command(cls=HelpfulCommand, epilog=_REMOVE)(remove)


TypeName = Annotated[
    str,
    typer.Argument(
        metavar="TYPE",
        help="By id, name or profile: nvidia-754, A2-4C, 1155. As listed by vgpu types.",
        autocompletion=complete_type,
    ),
]
OnParent = Annotated[
    str | None,
    typer.Option(metavar="PARENT", help="Only on this card, or this one of its VFs.", autocompletion=complete_parent),
]
OnNode = Annotated[int | None, typer.Option(metavar="NODE", help="Only on cards of this NUMA node.", min=0)]
Count = Annotated[int, typer.Option(metavar="K", help="How many: all of them, or none.", min=1, max=65_535)]
Uuids = Annotated[
    list[str] | None,
    typer.Option("--uuid", metavar="UUID", help="What a mediated device is called; once for each of them."),
]
Rule = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="binpack leaves the largest types creatable for longest; spread takes the emptiest card each time; "
        "numa keeps all on as few NUMA nodes as possible.",
        autocompletion=lambda: ["binpack", "spread", "numa"],
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="For NVIDIA's vgpu_params, or placement_id; folder/file=value for any other file of the vGPU.",
    ),
]
_CREATE = """[bold]Examples[/]
  vfioctl vgpu create A2-4C --dry-run --simulate a2
  vfioctl vgpu create L40S-12Q --count 2 --placement spread --simulate l40s
  vfioctl vgpu create T4-4C --param frame_rate_limiter=0 --persistent --simulate t4"""


def create(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    type_name: TypeName,
    *,
    parent: OnParent = None,
    numa: OnNode = None,
    count: Count = 1,
    uuid: Uuids = None,
    placement: Rule = "binpack",
    param: Parameters = None,
    persistent: Persistent = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Make vGPUs of a type: all that are asked for, or none.

    Where they go is chosen by what the cards have room for, and told with its reasons. They count as made when a fresh
    look finds each of them with its type and with a node for a guest to open; otherwise everything is put back. When
    somebody else is faster, other places are tried, unless --parent names the only one.
    """
    host = chosen(ctx).open()
    place = unnumbered(host, parent)
    uuids, parameters = _uuids(uuid, count), pairs(param or ())

    def plan_it(exclude: Sequence[str]) -> "Plan":
        return host.plan_create(
            type_name,
            parent=place,
            numa=numa,
            count=count,
            uuids=uuids,
            placement=placement,
            parameters=parameters,
            persistent=persistent,
            exclude=exclude,
        )

    plan = plan_it(())
    if uuids and not any(setting.kind == "mdev" for setting in plan.settings):
        raise BadSpec(f"{type_name} is made on a VF, which is known by its address", hint="leave out --uuid")
    if dry_run:
        preview(plan, as_json=as_json)
        return
    _make(host, plan, None if parent else plan_it, ask=not yes, as_json=as_json)


def _make(
    host: "Host", plan: "Plan", elsewhere: "Callable[[Sequence[str]], Plan] | None", *, ask: bool, as_json: bool
) -> None:
    excluded: list[str] = []
    while True:
        try:
            carry_out(host, plan, ask=ask, as_json=as_json)
        except NoCapacity as full:
            excluded.append(str(full.facts.get("place", "")))
            if elsewhere is None or len(excluded) == _MOST_TRIES:
                raise
            try:
                plan = elsewhere(excluded)
            except NoCapacity:
                raise full from None
            say(f"vfioctl: {full.message}; trying elsewhere")
        else:
            return


_REMOVE = """[bold]Examples[/]
  vfioctl vgpu remove 41:00.4 --foreign --dry-run --simulate l40s
  vfioctl vgpu remove 6d3f2c1a --foreign --simulate a2"""


def remove(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    instances: Annotated[
        list[str],
        typer.Argument(
            metavar="INSTANCE",
            help="UUIDs, of which a beginning will do, or addresses of VFs.",
            autocompletion=complete_instance,
        ),
    ],
    *,
    foreign: Foreign = False,
    wait: Wait = None,
    force_holders: ForceHolders = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Remove vGPUs that nobody holds: all that are named, or none.

    What vfioctl did not make is foreign, and left alone without --foreign. A vGPU that somebody has open is refused,
    naming them: the kernel would wait for them for ever. What had it made again at boot goes with it.
    """
    from vfioctl.vgpu.model.lookup import instance_called, is_whole

    host = chosen(ctx).open()
    found = None if all(map(is_whole, instances)) else host.vgpus()
    names = [word.lower() if found is None else instance_called(found, word).id for word in instances]
    plan = planned(lambda: host.plan_remove(names, foreign=foreign, force_holders=force_holders), wait=wait)
    if dry_run:
        preview(plan, as_json=as_json)
    else:
        carry_out(host, plan, ask=not yes, as_json=as_json)


def pairs(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`name=value`, each. Raises BadSpec."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadSpec(f"not a parameter: {word[:60]!r}", hint="write it as name=value")
        found.append((name, value))
    return tuple(found)


def _uuids(given: Sequence[str] | None, count: int) -> tuple[str, ...]:
    from vfioctl.inventory.model.values import Uuid

    uuids = tuple(Uuid(text) for text in given or ())
    if uuids and len(uuids) != count:
        raise BadSpec(f"{len(uuids)} UUIDs for {count} vGPUs", hint="give --uuid once for each")
    if len(set(uuids)) < len(uuids):
        raise BadSpec("the same UUID twice")
    return uuids

"""Derives the options of `domain build` and `domain edit` from the fields of `DomainSpec`."""

from collections.abc import Mapping
from enum import Enum
from inspect import Parameter
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from vfioctl.console.options import Decorator, completion, with_options
from vfioctl.domain.model.spec import DomainSpec, Option
from vfioctl.errors import BadSpec
from vfioctl.inventory.api import suggest_devices, suggest_nodes
from vfioctl.inventory.model.values import PciAddress


def _suggest_templates(_session: object, _begun: str) -> list[tuple[str, str]]:
    from vfioctl.domain.document.templates import templates

    return [(name, "") for name in templates()]


_BY_ADDRESS = (("nodes", "--node", "the NUMA node", "1"), ("roms", "--rom", "the file", "/PATH/FILE"))
_COMPLETIONS = {"template": _suggest_templates, "devices": suggest_devices, "numa": suggest_nodes}


def spec_options(*, edits: bool = False) -> Decorator:
    """Give a command the options of `DomainSpec`, by field in `requested`; `edits`: only those of `domain edit`."""
    hints = get_type_hints(DomainSpec, include_extras=True)
    annotated = ((name, get_args(hint)) for name, hint in hints.items() if get_origin(hint) is Annotated)
    options = ((name, parts[-1], parts[0]) for name, parts in annotated if isinstance(parts[-1], Option))
    parameters = [_parameter(*option) for option in options if not edits or option[1].edits]
    return with_options("requested", parameters, given_options)


def _parameter(name: str, option: Option, kind: Any) -> Parameter:
    """Numbers are text here, and checked with the rest of the spec: typer takes longer for one than the build does."""
    is_list = get_origin(kind) in (tuple, Mapping)
    type_: Any = bool if kind == bool | None else list[str] if is_list else str
    words = "|".join(kind) if isinstance(kind, type) and issubclass(kind, Enum) else ""
    suggest = _COMPLETIONS.get(name)
    info = typer.Option(
        *(option.names or (f"--{name}",)),
        metavar=option.metavar or words or None,
        help=f"{option.text} Repeatable." if is_list else option.text,
        show_default=False,
        autocompletion=completion(suggest) if suggest else None,
        rich_help_panel=option.panel or None,
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[type_ | None, info])


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were given, in the form of a spec."""
    requested = {name: value for name, value in values.items() if value is not None}
    for name, option, what, example in _BY_ADDRESS:
        if name in requested:
            pairs = [text.partition("=") for text in requested[name]]
            if bare := [address for address, equals, _ in pairs if not equals]:
                raise BadSpec(f"{option} {bare[0][:40]}: {what} is missing", hint=f"write {option} 41:00.0={example}")
            requested[name] = {PciAddress(address): value for address, _, value in pairs}
    return requested

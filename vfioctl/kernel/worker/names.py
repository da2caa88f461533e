"""Names of functions, because a function cannot be sent to a worker. Imports only the requested module."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast


def name_of(function: Callable[..., object]) -> str:
    """The name of a function as `module:name`. Raises TypeError for one that cannot be imported by name."""
    module, name = function.__module__, function.__qualname__
    if "<" in name or named(f"{module}:{name}") is not function:
        raise TypeError(f"{module}.{name} is no function or class of a module: a worker could not import it")
    return f"{module}:{name}"


def named(name: str) -> Callable[..., Any]:
    """The function for a name from `name_of`."""
    module, _, path = name.partition(":")
    value: Any = import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return cast(Callable[..., Any], value)


def module_of(name: str) -> str:
    """The module part of a name from `name_of`."""
    return name.partition(":")[0]

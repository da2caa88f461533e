"""Functions by name, for a worker cannot be sent a function. Imports what it is asked for, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast


def name_of(function: Callable[..., object]) -> str:
    """`module:name`, by which a worker imports it. Raises TypeError for one that cannot be imported."""
    module, name = function.__module__, function.__qualname__
    if "<" in name or named(f"{module}:{name}") is not function:
        raise TypeError(f"{module}.{name} is no function or class of a module: a worker could not import it")
    return f"{module}:{name}"


def named(name: str) -> Callable[..., Any]:
    """The function that `name_of` gave the name of."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return cast(Callable[..., Any], found)


def module_of(name: str) -> str:
    """The module that a function's name begins with."""
    return name.partition(":")[0]

"""Imports what the table of subsystems names. May not know what that is."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def import_object(place: str) -> Any:
    """Import and return the object that `module:name` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)

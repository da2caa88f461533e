"""The model drawn with rich, for the command line and the interactive inventory alike.

Imports the model and rich, nothing else of vfioctl. May not print, ask, or look at a host. Colour
only repeats what is also said in words. Text that came from a host is never read as markup.
A drawing's module is imported when the drawing is asked for: not all of them need the larger models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vfioctl.render.changes import outcome_page, plan_page
    from vfioctl.render.function import function_page
    from vfioctl.render.holders import holders_page
    from vfioctl.render.journal import history_table, hosts_table
    from vfioctl.render.listing import inventory_table
    from vfioctl.render.rom import rom_page
    from vfioctl.render.tree import inventory_tree
    from vfioctl.render.vgpu import vgpu_page, vgpu_table, vgpu_types_page

__all__ = [
    "function_page",
    "history_table",
    "holders_page",
    "hosts_table",
    "inventory_table",
    "inventory_tree",
    "outcome_page",
    "plan_page",
    "rom_page",
    "vgpu_page",
    "vgpu_table",
    "vgpu_types_page",
]

_HOMES = {
    "function_page": "function",
    "history_table": "journal",
    "holders_page": "holders",
    "hosts_table": "journal",
    "inventory_table": "listing",
    "inventory_tree": "tree",
    "outcome_page": "changes",
    "plan_page": "changes",
    "rom_page": "rom",
    "vgpu_page": "vgpu",
    "vgpu_table": "vgpu",
    "vgpu_types_page": "vgpu",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

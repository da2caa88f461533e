"""The model drawn with rich, for the command line and the interactive inventory alike.

Imports the model and rich, nothing else of vfioctl. May not print, ask, or look at a host. Colour
only repeats what is also said in words. Text that came from a host is never read as markup.
"""

from vfioctl.render.changes import outcome_page, plan_page
from vfioctl.render.function import function_page
from vfioctl.render.holders import holders_page
from vfioctl.render.journal import history_table, hosts_table
from vfioctl.render.listing import inventory_table
from vfioctl.render.rom import rom_page
from vfioctl.render.tree import inventory_tree

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
]

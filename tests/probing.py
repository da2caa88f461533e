"""Reads the inventory of a host as the api does, without a ledger."""

from __future__ import annotations

from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.probe.inventory import assemble
from vfioctl.inventory.probe.scan import Scan
from vfioctl.kernel.protocol import Reader


def read_inventory(kernel: Reader) -> Inventory:
    return assemble(kernel, Scan(kernel), {}, ())

"""Cards with VFs of many mdev types each, added to a synthetic host. Equal files are one, as in bench/synthetic.py."""

from __future__ import annotations

from pathlib import Path

from bench.synthetic import Tree

VFS, TYPES = 32, 20
_BUS = 0xC0


def add_vgpus(sys_folder: Path, cards: int) -> None:
    """So many A2-like cards, `VFS` VFs each, each of these with `TYPES` types of which one can be made."""
    tree = Tree(sys_folder.parent)
    for folder in ("sys/class/mdev_bus", "sys/bus/mdev/devices", "sys/bus/pci/drivers/nvidia"):
        tree.folder(folder)
    for number in range(cards):
        _add_card(tree, number)


def _add_card(tree: Tree, number: int) -> None:
    bus = f"{_BUS + number:02x}"
    card, domain = f"0000:{bus}:00.0", f"sys/devices/pci0000:{bus}"
    texts = {"class": "0x030200", "numa_node": "0", "sriov_totalvfs": str(VFS), "modalias": _modalias(number)}
    tree.files(f"{domain}/{card}", [(name, text, 0o444) for name, text in texts.items()])
    _register(tree, card, f"{domain}/{card}")
    for vf in range(VFS):
        address = f"0000:{bus}:{(vf + 4) // 8:02x}.{(vf + 4) % 8}"
        here = f"{domain}/{address}"
        tree.files(here, [("class", "0x030200", 0o444), ("numa_node", "0", 0o444)])
        for kind in range(TYPES):
            _add_type(tree, f"{here}/mdev_supported_types/nvidia-{742 + kind}", kind)
        _register(tree, address, here)
        tree.link(f"{here}/physfn", f"{domain}/{card}")
        tree.link(f"{domain}/{card}/virtfn{vf}", here)
        tree.link(f"sys/class/mdev_bus/{address}", here)


def _add_type(tree: Tree, here: str, kind: int) -> None:
    size = 1 << kind % 5
    texts = {
        "available_instances": "1",
        "device_api": "vfio-pci",
        "name": f"NVIDIA A2-{size}{'QABC'[kind // 5]}",
        "description": f"num_heads=4, frl_config=60, framebuffer={size * 1024}M, max_resolution=7680x4320, "
        f"max_instance={16 // size}",
    }
    tree.files(here, [(name, text, 0o444) for name, text in texts.items()])
    tree.file(f"{here}/create", b"", 0o200)
    tree.folder(f"{here}/devices")


def _register(tree: Tree, address: str, here: str) -> None:
    tree.link(f"sys/bus/pci/devices/{address}", here)
    tree.link(f"sys/bus/pci/drivers/nvidia/{address}", here)
    tree.link(f"{here}/driver", "sys/bus/pci/drivers/nvidia")


def _modalias(number: int) -> str:
    return f"pci:v000010DEd000025B6sv000010DEsd{number:08X}bc03sc02i00"

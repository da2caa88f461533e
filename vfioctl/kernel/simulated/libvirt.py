"""libvirt of a simulated host: its test driver, and the definitions that it was told, which the host's file keeps.

The test driver is libvirt itself, with its schema and its parser: what it refuses here it refuses on a machine. But it
forgets with each connection. So definitions are kept where libvirtd keeps them, in /etc/libvirt/qemu/NAME.xml, over
those that the test driver's own file has; an empty text stands for one of these that was removed.
"""

from __future__ import annotations

import re
from typing import Any

from vfioctl.kernel.libvirt import asked_here, doing, value_of
from vfioctl.kernel.recorded.tree import Tree

DEFINITIONS = "/etc/libvirt/qemu"
_NO_DOMAIN, _OPERATION_FAILED = 42, 9
_UUID = re.compile(r"<uuid>([0-9a-f-]{36})</uuid>", re.ASCII)
_NAME = re.compile(r"<name>([^<]*)</name>")


def ask(tree: Tree, uri: str, question: str, *words: str) -> Any:
    """See `Kernel.ask_libvirt`."""
    if question == "facts":
        *versions, there = asked_here(uri, question)
        return (*versions, list(_all(tree, there).values()))
    if question == "definition" and (kept := _kept(tree).get(words[0])) is not None:
        asked_here(uri, "facts")  # a host without libvirt has none of these
        return kept
    return asked_here(uri, question, *words)


def tell(tree: Tree, uri: str, order: str, *words: str) -> None:
    """See `Kernel.tell_libvirt`."""
    of_driver = asked_here(uri, "facts")[2]
    known = _all(tree, of_driver)
    if order == "define":
        xml = asked_here(uri, "validated", *words)
        name, uuid = _unescaped(_of(_NAME, xml)), _of(_UUID, xml)
        for other, (_, its, *_) in known.items():
            if (other == name) != (its == uuid):
                text = f"operation failed: domain '{other}' is already defined with uuid {its}"
                value_of((None, _OPERATION_FAILED, text), uri, doing(order, words))
        _keep(tree, name, xml)
    else:
        if words[0] not in known:
            value_of(
                (None, _NO_DOMAIN, f"Domain not found: no domain with name '{words[0]}'"), uri, doing(order, words)
            )
        _keep(tree, words[0], "" if words[0] in {each[0] for each in of_driver} else None)


def _all(tree: Tree, there: list[Any]) -> dict[str, tuple[Any, ...]]:
    """Every domain by its name, in the form of `vfioctl.kernel.libvirt.facts`."""
    known = {each[0]: tuple(each) for each in there}
    for name, xml in _kept(tree).items():
        _, _, is_active, _, live, _ = known.get(name, ("", "", False, False, "", ""))
        known[name] = (name, _of(_UUID, xml or live), is_active, bool(xml), live, xml)
    return {name: each for name, each in known.items() if each[2] or each[3]}


def _kept(tree: Tree) -> dict[str, str]:
    names = [each for each in tree.directories.get(DEFINITIONS, ()) if each.endswith(".xml")]
    files = {name.removesuffix(".xml"): tree.files.get(f"{DEFINITIONS}/{name}") for name in sorted(names)}
    return {name: text for name, text in files.items() if text is not None}


def _keep(tree: Tree, name: str, xml: str | None) -> None:
    tree.remove(f"{DEFINITIONS}/{name}.xml")
    if xml is not None:
        tree.put(f"{DEFINITIONS}/{name}.xml", xml.rstrip("\n"))


def _of(pattern: re.Pattern[str], xml: str) -> str:
    found = pattern.search(xml)
    return found[1] if found else ""


def _unescaped(text: str) -> str:
    from xml.sax.saxutils import unescape

    return unescape(text)

"""Finds network interfaces in use, and which of them carry the default route or this SSH session. May not write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address, ip_address
from shlex import quote
from typing import NamedTuple

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import Descendant, Reader

_INTERFACES = "/sys/class/net"
_UP = 0x1  # IFF_UP, linux/if.h
_REJECT = 0x200  # RTF_REJECT, linux/route.h
_UPPER = "upper_"
_ANCESTORS = 64

Address = IPv4Address | IPv6Address


class Route(NamedTuple):
    """A line of the routing table."""

    version: int
    network: int
    prefix: int
    interface: str

    def leads_to(self, address: Address) -> bool:
        shift = address.max_prefixlen - self.prefix
        return self.version == address.version and int(address) >> shift == self.network >> shift


class Network:
    """The interfaces of a host and their routes."""

    def __init__(self, kernel: Reader) -> None:
        self._kernel = kernel

    def use_of(self, interface: Descendant) -> tuple[str, str, str, str] | None:
        """Return name, path, use and remedy of an interface that is up; None for others."""
        if not self._is_up(interface.path):
            return None
        name = interface.path.rpartition("/")[2]
        return name, f"{_INTERFACES}/{name}", *self._how_and_remedy(name, self._with_uppers(name, interface.path))

    def _is_up(self, path: str) -> bool:
        try:
            return bool(int(text_of(self._kernel, f"{path}/flags"), 16) & _UP)
        except ValueError:
            return False

    def _how_and_remedy(self, name: str, interfaces: Sequence[str]) -> tuple[str, str]:
        uppers = [f"a part of {upper}" for upper in interfaces[1:]]
        default = ["the default route"] if self._default & {*interfaces} else []
        session = ["this SSH session"] if self._session & {*interfaces} else []
        remedy = f"ip link set {quote(name)} down"
        if session:
            remedy = "you are logged in through it: go to the console first"
        elif default:
            remedy = f"move the default route to another interface, then {remedy}"
        return ", ".join(["up", *uppers, *default, *session]), remedy

    def _with_uppers(self, name: str, path: str) -> list[str]:
        """Return the interface and the bridges, bonds and VLANs on it."""
        uppers, todo = [name], [path]
        while todo:
            for upper in _uppers(self._kernel, todo.pop()):
                if upper not in uppers:
                    uppers.append(upper)
                    todo.append(f"{_INTERFACES}/{upper}")
        return uppers

    @cached_property
    def _routes(self) -> Sequence[Route]:
        return [*_ipv4(text_of(self._kernel, "/proc/net/route")), *_ipv6(text_of(self._kernel, "/proc/net/ipv6_route"))]

    @cached_property
    def _default(self) -> frozenset[str]:
        return frozenset(route.interface for route in self._routes if route.prefix == 0)

    @cached_property
    def _session(self) -> frozenset[str]:
        """The interfaces of the caller's SSH session; none at a console."""
        client, scope = _client(self._kernel)
        if scope or client is None or client.is_loopback:
            return frozenset({scope} - {""})
        ways = [route for route in self._routes if route.leads_to(client)]
        longest = max((route.prefix for route in ways), default=0)
        return frozenset(route.interface for route in ways if route.prefix == longest)


def _uppers(kernel: Reader, path: str) -> list[str]:
    try:
        links = kernel.directory(path, (), (_UPPER,)).links
    except KernelRefused:
        return []
    return sorted(name.removeprefix(_UPPER) for name in links)


def _ipv4(text: str) -> Iterator[Route]:
    """Parse /proc/net/route: addresses in network byte order, printed as little-endian numbers."""
    for line in text.split("\n")[1:]:
        fields = line.split()
        try:
            network, mask = (int.from_bytes(bytes.fromhex(fields[n]), "little") for n in (1, 7))
            if not int(fields[3], 16) & _REJECT:
                yield Route(4, network, mask.bit_count(), fields[0])
        except (IndexError, ValueError):
            continue


def _ipv6(text: str) -> Iterator[Route]:
    for line in text.split("\n"):
        fields = line.split()
        try:
            if fields[9] != "lo" and not int(fields[8], 16) & _REJECT:
                yield Route(6, int(fields[0], 16), int(fields[1], 16), fields[9])
        except (IndexError, ValueError):
            continue


def _client(kernel: Reader) -> tuple[Address | None, str]:
    """Return the client address of this process's SSH session, and the interface of a link-local address."""
    text, _, scope = _ssh_connection(kernel).partition(" ")[0].partition("%")
    try:
        address = ip_address(text)
    except ValueError:
        return None, ""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, scope


def _ssh_connection(kernel: Reader) -> str:
    """Return SSH_CONNECTION of the nearest ancestor that has it, because sudo removes it from the environment."""
    pid = "self"
    for _ in range(_ANCESTORS):
        for setting in text_of(kernel, f"/proc/{pid}/environ").split("\0"):
            if setting.startswith("SSH_CONNECTION="):
                return setting.partition("=")[2]
        after_name = text_of(kernel, f"/proc/{pid}/stat").rpartition(")")[2].split()
        pid = after_name[1] if len(after_name) > 1 else "0"
        if pid in ("0", "1"):
            break
    return ""

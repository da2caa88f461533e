"""A host as one text file: the tree of its facts, read from and written to the format of `docs/recorded-hosts.md`. May
not touch the machine. The text may be hostile: limits are checked before the tree is built."""

from __future__ import annotations

import errno as errnos
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from vfioctl.errors import BadDocument, KernelRefused
from vfioctl.kernel.host_paths import MPS_CONTROL, RENEWERS
from vfioctl.kernel.paths import resolve

HEADER = "#vfioctl-host 1"
SYNTHETIC = f"{HEADER} synthetic"
"""The first line of a host that was not recorded from a machine."""
END = "#end"
"""The last line of a file: without it, the file is truncated."""
MOST_BYTES, LONGEST_LINE, DEEPEST = 64 << 20, 65_536, 64
_OF_KERNEL = ("/sys/", "/proc/", "/dev/", "/lib/")
_OF_BOOT = ("/etc/mdevctl.d/", "/etc/driverctl.d/", "/etc/udev/rules.d/", "/etc/systemd/", "/etc/vfioctl/")
_INSTALLED = ("/usr/lib/vfioctl/", "/usr/lib/systemd/system/", "/usr/lib/udev/rules.d/", "/usr/local/share/")
_RUN = ("/run/libvirt/", "/run/vfioctl/", "/var/run/cdi/")
_INITRAMFS = ("/etc/initramfs-tools/", "/usr/share/initramfs-tools/", "/usr/lib/dracut/", *RENEWERS)
ROOTS = (*_OF_KERNEL, *_OF_BOOT, *_INSTALLED, *_INITRAMFS, "/etc/libvirt/", "/etc/cdi/", MPS_CONTROL, *_RUN)
_ABOVE_ROOTS = (
    *("/", "/etc", "/etc/udev", "/run", "/var", "/var/run"),
    *("/usr", "/usr/lib", "/usr/lib/systemd", "/usr/lib/udev", "/usr/local", "/usr/share", "/usr/sbin", "/usr/bin"),
)
PERMISSIONS = "sim:permissions:"  # and a node, whose permissions are
SUBJECTS = ("hwdb:", "nvml:", "sim:", "unit:", "user:")

_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f]+)+", re.ASCII)
_ESCAPE = re.compile(r"\\(n|t|r|\\|x[0-9a-f]{2}|u(?!d[89a-f])[0-9a-f]{4}|U00(?:0[0-9a-f]|10)[0-9a-f]{4})")
_LONG = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


class Node(NamedTuple):
    """A device node: `c` or `b`, and its numbers."""

    kind: str
    major: int
    minor: int


_Texts = dict[str, list[str]]
"""The lines of files with several lines: joined once at the end, because a file may have a hundred thousand."""


class Tree:
    """Files, links, directories and device nodes by absolute path, and facts that are in no file."""

    def __init__(self) -> None:
        self.synthetic = False
        self.comments: list[str] = []
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.refused: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        self.directories: dict[str, set[str]] = {"/": set()}
        self.properties: dict[str, dict[str, str]] = {}
        self._resolved: dict[str, str] = {}

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """The path with its links resolved. They are cached, because thousands of reads share them."""
        parent, _, name = path.rpartition("/")
        if parent not in self._resolved:
            self._resolved[parent] = resolve(parent, self.links.get, self.directories.__contains__)
        place = f"{self._resolved[parent].rstrip('/')}/{name}"
        if name in ("", ".", ".."):
            return resolve(place, self.links.get, self.directories.__contains__)
        if place not in self.links or not follow_last:
            return place
        if place not in self._resolved:
            self._resolved[place] = resolve(place, self.links.get, self.directories.__contains__)
        return self._resolved[place]

    def exists(self, path: str) -> bool:
        """Whether something is recorded at a resolved path."""
        return self.is_leaf(path) or path in self.directories

    def is_leaf(self, path: str) -> bool:
        return path in self.files or path in self.links or path in self.refused or path in self.nodes

    def text(self, path: str) -> str:
        """A file's text. Raises KernelRefused."""
        resolved = self.resolve(path)
        if resolved in self.files:
            return self.files[resolved]
        if resolved in self.refused:
            raise KernelRefused(path, self.refused[resolved])
        raise KernelRefused(path, errnos.EISDIR if resolved in self.directories else errnos.ENOENT)

    def put(self, path: str, text: str) -> None:
        self._join(path)
        self.files[path] = text

    def put_link(self, path: str, target: str) -> None:
        self._join(path)
        self.links[path] = target.rstrip("/") or target[:1]
        self._resolved.clear()

    def put_refused(self, path: str, errno: int) -> None:
        self._join(path)
        self.refused[path] = errno

    def put_node(self, path: str, node: Node) -> None:
        self._join(path)
        self.nodes[path] = node

    def put_directory(self, path: str) -> None:
        if path not in self.directories:
            self._join(path)
            self.directories[path] = set()
            self._resolved.clear()

    def remove(self, path: str) -> None:
        """Removes a path and everything below it."""
        doomed = [path]
        while doomed:
            here = doomed.pop()
            doomed += [f"{here}/{name}" for name in self.directories.get(here, ())]
            for kind in (self.files, self.links, self.refused, self.nodes, self.directories):
                kind.pop(here, None)
            self.properties.pop(f"{PERMISSIONS}{here}", None)
        parent, _, name = path.rpartition("/")
        self.directories.get(parent or "/", set()).discard(name)
        self._resolved.clear()

    def _join(self, path: str) -> None:
        known = False
        while not known:
            parent, _, name = path.rpartition("/")
            known = (parent or "/") in self.directories
            self.directories.setdefault(parent or "/", set()).add(name)
            path = parent
            if not known:
                self._resolved.clear()


def parse(text: str, source: str) -> Tree:
    """The tree of a host file; `source` names it in errors. Raises BadDocument with the line's number."""
    lines = text.split("\n")
    if lines[0].rstrip() not in (HEADER, SYNTHETIC):
        raise BadDocument(f"{source} is not a vfioctl host file: its first line is not {HEADER!r}")
    tree, texts = Tree(), _Texts()
    tree.synthetic = lines[0].rstrip() == SYNTHETIC
    for number, line in enumerate(lines[1:], start=2):
        try:
            _take(tree, texts, line)
        except ValueError as error:
            raise BadDocument(f"{source}, line {number}: {error}") from None
    tree.files.update((path, "\n".join(parts)) for path, parts in texts.items())
    for path in filter(tree.is_leaf, tree.directories):
        raise BadDocument(f"{source}: {path} is a directory and something else")
    return tree


def _take(tree: Tree, texts: _Texts, line: str) -> None:
    if len(line) > LONGEST_LINE:
        raise ValueError(f"the line has {len(line)} characters; the maximum is {LONGEST_LINE}")
    if line[:1] == "/" and line[-1] != "/":  # nearly all lines
        _take_path(tree, texts, line)
    elif line.startswith("#"):
        tree.comments += [line] if line != END else []
    elif line.startswith(SUBJECTS):
        _take_property(tree, line)
    elif line.endswith("/") and " " not in line:
        tree.put_directory(_checked(_unescape(line[:-1])))
    elif line:
        _take_path(tree, texts, line)


def _take_property(tree: Tree, line: str) -> None:
    subject, _, rest = line.partition(" ")
    key, equals, value = rest.partition(" = ")
    if not equals or not key:
        raise ValueError("a property has the form SUBJECT KEY = TEXT")
    tree.properties.setdefault(subject, {})[key] = _unescape(value)


def _take_path(tree: Tree, texts: _Texts, line: str) -> None:
    path, form, value = _parts(line)
    if form == "|" and path in tree.files:
        texts.setdefault(path, [tree.files[path]]).append(value)
        return
    if tree.exists(path):
        raise ValueError(f"{path} appears twice")
    if form in ("=", "|"):
        tree.put(path, value)
    elif form == "->":
        tree.put_link(path, value)
    elif form == "!":
        tree.put_refused(path, _errno(value))
    elif form == "%":
        tree.put_node(path, _node(value))
    else:
        raise ValueError(f"unknown form: {line.partition(' ')[2][:20]!r}")


def _parts(line: str) -> tuple[str, str, str]:
    """The path, the form, and the value. Raises ValueError for a path that a host file may not have."""
    path, _, rest = line.partition(" ")
    form, _, value = rest.partition(" ")
    return _checked(_unescape(path)), form, _unescape(value)


def _checked(path: str) -> str:
    if len(path) > 4096 or path.count("/") > DEEPEST or not _PATH.fullmatch(path) or not f"{path}/".startswith(ROOTS):
        raise ValueError(f"not a path that a host file may have: {path[:80]!r}")
    return path


def _errno(name: str) -> int:
    for number, known in errnos.errorcode.items():
        if known == name:
            return number
    raise ValueError(f"not an errno: {name[:20]!r}")


def _node(text: str) -> Node:
    match = re.fullmatch(r"([cb]) ([0-9]{1,7}) ([0-9]{1,7})", text, re.ASCII)
    if match is None:
        raise ValueError(f"not a device node: {text[:40]!r}")
    return Node(match[1], int(match[2]), int(match[3]))


def form(tree: Tree) -> str:
    """The text of the host file: sorted, one fact a line."""
    comments = ("".join(c if c.isprintable() else " " for c in comment) for comment in tree.comments)
    return "\n".join([SYNTHETIC if tree.synthetic else HEADER, *comments, *_facts(tree), END]) + "\n"


def unfit(tree: Tree) -> list[str]:
    """The paths that a host file cannot hold: for instance, a name has a control character, or a line is too long."""
    kinds = (tree.files, tree.links, tree.refused, tree.nodes, tree.directories)
    return [path for kind in kinds for path in kind if _is_below(path) and not _fits(tree, path)]


def _fits(tree: Tree, path: str) -> bool:
    try:
        _checked(path)
    except ValueError:
        return False
    text = tree.files.get(path) or tree.links.get(path, "")
    if len(text) < LONGEST_LINE // 8:
        return True
    if any(len(line) > LONGEST_LINE for line in text.split("\n")):
        return False  # not escaped first: escaping megabytes of a damaged file takes seconds
    return all(len(line) <= LONGEST_LINE for line in _file_lines(path, text))


def _facts(tree: Tree) -> Iterator[str]:
    lines: list[tuple[str, Sequence[str]]] = [
        *((path, _file_lines(path, text)) for path, text in tree.files.items()),
        *((path, [f"{_quoted(path)} -> {_escape(target)}"]) for path, target in tree.links.items()),
        *((path, [f"{_quoted(path)} ! {errnos.errorcode.get(n, 'EIO')}"]) for path, n in tree.refused.items()),
        *((path, [f"{_quoted(path)} % {node.kind} {node.major} {node.minor}"]) for path, node in tree.nodes.items()),
        *((path, [f"{_quoted(path)}/"]) for path, names in tree.directories.items() if not names and _is_below(path)),
        *(
            (subject, [f"{subject} {key} = {_escape(value)}" for key, value in sorted(facts.items())])
            for subject, facts in tree.properties.items()
        ),
    ]
    for _, facts in sorted(lines):
        yield from facts


def _is_below(path: str) -> bool:
    """Whether a host file lists the path itself; `/` and `/etc` are only its parents."""
    return path not in _ABOVE_ROOTS


@lru_cache(maxsize=1 << 16)  # a simulated host is written anew after each change
def _file_lines(path: str, text: str) -> Sequence[str]:
    if "\n" not in text:
        return (f"{_quoted(path)} = {_escape(text)}",)
    return tuple(f"{_quoted(path)} | {_escape(line)}" for line in text.split("\n"))


def _escape(text: str) -> str:
    """The text on one line, without a character that could control a terminal."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in text)


def _quoted(path: str) -> str:
    """A path without spaces: the driver of a watchdog is called `i6300ESB timer`."""
    return _escape(path).replace(" ", "\\x20")


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda m: _LONG.get(m[1]) or chr(int(m[1][1:], 16)), text)

"""A recorded host, read-only. Touches nothing on the machine except its file."""

from __future__ import annotations

import errno as errnos
import marshal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from vfioctl.errors import BadDocument, KernelRefused
from vfioctl.kernel.open_nodes import BELIEVED_USERS, NO_PROCESSES, Opened
from vfioctl.kernel.protocol import (
    EVERY_LINK,
    NOT_LISTED,
    Descendant,
    Directory,
    DiskImage,
    Kernel,
    NvmlAnswer,
    Prefixes,
    Unanswered,
)
from vfioctl.kernel.recorded import devices
from vfioctl.kernel.recorded.tree import END, MOST_BYTES, Node, Tree, parse
from vfioctl.kernel.untrusted_files import read_file
from vfioctl.kernel.worker.wire import name_of

T = TypeVar("T")


def read_tree(file: Path) -> Tree:
    """The tree of a host file. Raises BadDocument."""
    try:
        text = read_file(file, MOST_BYTES).decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise BadDocument(f"{file} is not a vfioctl host file: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        hint = "--root reads a captured directory" if isinstance(error, IsADirectoryError) else ""
        raise BadDocument(f"{file} cannot be read: {error.strerror}", hint=hint) from None
    tree = parse(text, str(file))
    if not text.rstrip("\n").endswith(f"\n{END}"):
        raise BadDocument(f"{file} is truncated: its last line is not {END!r}", hint="record it again")
    return tree


class Recorded(Kernel):
    """Implements the kernel protocol on a tree. Nothing blocks, and nothing can be written."""

    def __init__(self, tree: Tree, description: str) -> None:
        self._tree, self._description = tree, description

    @property
    def tree(self) -> Tree:
        return self._tree

    @property
    def description(self) -> str:
        return self._description

    @property
    def read_only(self) -> str:
        return "a recorded host is read-only"

    def read(self, path: str) -> str:
        return self.tree.text(path)

    def link(self, path: str) -> str:
        tree = self.tree
        resolved = tree.resolve(path, follow_last=False)
        if resolved in tree.links:
            return tree.links[resolved]
        raise KernelRefused(path, errnos.EINVAL if tree.exists(resolved) else errnos.ENOENT)

    def children(self, path: str) -> list[str]:
        tree = self.tree
        resolved = tree.resolve(path)
        if resolved in tree.directories:
            return sorted(tree.directories[resolved])
        raise KernelRefused(path, errnos.ENOTDIR if tree.exists(resolved) else errnos.ENOENT)

    def has(self, path: str) -> bool:
        tree = self.tree
        try:
            return tree.exists(tree.resolve(path))
        except KernelRefused:
            return False

    def modified(self, path: str) -> float:
        raise KernelRefused(path, errnos.ENODATA)

    def device_number(self, path: str) -> Node:
        node = self.tree.nodes.get(self.tree.resolve(path))
        if node is None:
            raise KernelRefused(path, errnos.ENOENT)
        return node

    def disk_image(self, path: str) -> DiskImage:
        """Its path alone, with the links that are recorded resolved."""
        try:
            return DiskImage(self.tree.resolve(path))
        except KernelRefused:
            return DiskImage(path)

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        names, tree = self.children(path), self.tree
        home = tree.resolve(path)
        targets = {name: tree.links[f"{home}/{name}"] for name in names if f"{home}/{name}" in tree.links}
        texts, refused = {}, {}
        for name in names:
            if name in wanted and name not in targets:
                try:
                    texts[name] = tree.text(f"{home}/{name}")
                except KernelRefused as error:
                    refused[name] = error.symbol
        chosen = {name: target for name, target in targets.items() if name.startswith(links)}
        return Directory(frozenset(names), texts, chosen, refused)

    def texts_below(self, path: str, name: str) -> Directory:
        names, texts, refused = self.children(path), {}, {}
        tree = self.tree
        home = tree.resolve(path)
        for folder in (folder for folder in names if f"{home}/{folder}" in tree.directories):
            try:
                texts[folder] = tree.text(f"{home}/{folder}/{name}")
            except KernelRefused as error:
                refused[folder] = error.symbol
        return Directory(frozenset(names), texts, {}, refused)

    def survey(
        self,
        reader: Callable[..., Callable[[str], T]],
        subjects: Iterable[str],
        *,
        args: Sequence[object] = (),
        timeout: float | None = None,
        total: float | None = None,
    ) -> Iterator[tuple[str, T | Unanswered]]:
        name_of(reader)  # as for a worker, which could not import another one
        read_one = reader(self, *marshal.loads(marshal.dumps(cast(Any, tuple(args)))))
        for subject in subjects:
            yield subject, self._answer_of(read_one, str(subject))

    def _answer_of(self, read: Callable[[str], T], subject: str) -> T | Unanswered:
        if self.tree.properties.get(f"sim:{subject.rpartition('/')[2]}", {}).get("unanswered") == "1":
            return Unanswered("no answer in 2 s")
        return read(subject)

    def properties(self, modalias: str) -> Mapping[str, str]:
        return self.tree.properties.get(f"hwdb:{modalias}", {})

    def nvml(
        self, gpus: Sequence[str], *, types: bool = False, links: bool = False, usage: bool = False
    ) -> Callable[[], NvmlAnswer]:
        every = [*self.tree.properties.items()]  # in one go: another thread may add some to a simulated host
        known = {s[5:]: facts for s, facts in every if s.startswith("nvml:")}
        if reason := self.nvml_error or ("" if known else "not recorded"):
            return lambda: Unanswered(reason)
        return lambda: {gpu: known.get(gpu, {"error": NOT_LISTED}) for gpu in gpus}

    @property
    def nvml_error(self) -> str:
        """Why NVML cannot be used on this host; empty if it can."""
        return self.tree.properties.get("sim:nvml", {}).get("error", "")

    @property
    def processes_unknown(self) -> str:
        recorded = any(name.isdecimal() for name in self.tree.directories.get("/proc", ()))
        return "" if recorded else NO_PROCESSES

    @property
    def reads_all_processes(self) -> bool:
        return devices.read_by_root(self.tree)

    @property
    def believed_users(self) -> Collection[str]:
        return BELIEVED_USERS

    def made_by_root(self, hierarchy: str, path: str) -> str:
        return path  # owners of control groups are not recorded

    def open_nodes(self, pid: str) -> Opened:
        return devices.open_nodes(self.tree, pid)

    def below(self, path: str) -> Sequence[Descendant]:
        resolved = self.tree.resolve(path)
        if resolved not in self.tree.directories:
            raise KernelRefused(path, errnos.ENOENT)
        return list(devices.below(self.tree, resolved))

    def claimed(self, number: str) -> bool:
        return number in self.tree.properties.get("sim:claimed", {})

    def user(self, uid: int) -> str:
        return self.tree.properties.get(f"user:{uid}", {}).get("name", str(uid))

    def unit_states(self, names: Sequence[str]) -> Mapping[str, str]:
        known = {name: self.tree.properties.get(f"unit:{name}", {}).get("state") for name in names}
        return {name: state for name, state in known.items() if state}

    def config(self, address: str) -> bytes:
        return devices.config_of(self.tree, address)

    def rom(self, address: str) -> bytes:
        return devices.rom_of(self.tree, address)

    def ask_libvirt(self, uri: str, question: str, *words: str) -> Any:
        from vfioctl.kernel.libvirt.answers import asked_here

        return asked_here(uri, question, *words)

"""Fixtures of the tests with a kubelet that is played: each test runs with each release of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.hosts.machines import reduced
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.node import H100, NEAR, SERVER, Node
from tests.kubelet.releases import RELEASES, Release
from vfioctl.kernel.recorded.tree import Tree


@pytest.fixture(params=RELEASES, ids=str)
def release(request: pytest.FixtureRequest) -> Release:
    assert isinstance(request.param, Release)
    return request.param


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets, which have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="k-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def kubelet(short_folder: Path, release: Release) -> Iterator[Kubelet]:
    """A kubelet that runs, with an empty checkpoint."""
    played = Kubelet(short_folder, release)
    played.start()
    yield played
    played.stop()


class MakeNode(Protocol):
    def __call__(self, tree: Tree, resources: str, **settings: str) -> Node: ...


@pytest.fixture
def make_node(kubelet: Kubelet, short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeNode]:
    """Makes a node, whose service ends with the test."""
    made: list[Node] = []
    monkeypatch.setattr("vfioctl.kubelet.model.settings._SHORTEST", 0.01)

    def make(tree: Tree, resources: str, **settings: str) -> Node:
        made.append(Node(short_folder, kubelet, tree, resources, **settings))
        monkeypatch.setenv("VFIOCTL_CONFIG", str(made[-1].config))
        return made[-1]

    yield make
    for node in made:
        node.kill()


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """A server with four GPUs, whose service runs as a thread."""
    made = make_node(reduced("hgx8", *NEAR), SERVER)
    made.start(H100)
    return made

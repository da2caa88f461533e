"""The node that all tests here share, in one boot: containerd, the kubelet, and vfioctl as its device plugin."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.inside import conftest, topology
from tests.lab.kubelet.node import Node, running
from tests.lab.kubelet.plugin import BUSY, CARD, FAR, Plugin

collect_ignore_glob = conftest.collect_ignore_glob
pytest_runtest_setup = conftest.pytest_runtest_setup
lab, results = conftest.lab, conftest.results


@pytest.fixture(scope="session")
def node(lab: topology.Topology, results: Path) -> Iterator[Node]:
    with running(results, lab.busy_nic) as started:
        yield started


@pytest.fixture(scope="session")
def plugin(node: Node, lab: topology.Topology, results: Path) -> Iterator[Plugin]:
    """The service. It starts beside the kubelet, as on a node that boots."""
    made = Plugin(node, results, {CARD: lab.display, FAR: lab.far_display, BUSY: lab.busy_display})
    made.start()
    yield made
    made.end()

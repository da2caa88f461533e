"""The annotation that a node reports: which GPUs there are, and which of them each container has since when."""

from __future__ import annotations

import json

from tests.unit.sharing.extender.api_server import node
from vfioctl.sharing.extender.names import REPORT, Unit
from vfioctl.sharing.extender.reading import Given, read_node
from vfioctl.sharing.extender.report import Held, ReportedGpu, report_of

GIB = 1 << 30
GPUS = [ReportedGpu("0000:01:00.0", "GPU-a", 16 * GIB, is_open=True), ReportedGpu("0000:02:00.0", "GPU-b", 0)]
OLD, NEW = "2026-11-28T19:00:00.000+00:00", "2026-11-28T19:10:00.000+00:00"


def test_the_extender_reads_what_a_node_reports() -> None:
    held = [Held("0000:01:00.0", 4 * GIB, "ml/a/c0", is_of_pods=True, since=OLD)]
    found = read_node(node("n", 1, 16, {REPORT: report_of(GPUS, held, GIB)}), Unit.GIB)
    assert found
    assert (found.sizes, found.ids, found.problems) == ((16, 0), ("GPU-a", "GPU-b"), ())
    assert found.has == {"ml/a/c0": Given("GPU-a", 1_795_892_400 * 10**9)}


def test_of_two_pods_with_one_name_the_newer_is_told() -> None:
    """The older one's claim is not released yet. Claims come newest first."""
    newer = Held("0000:01:00.0", 4 * GIB, "ml/a/c0", is_of_pods=True, since=NEW)
    older = Held("0000:02:00.0", 4 * GIB, "ml/a/c0", is_of_pods=True, since=OLD)
    report = json.loads(report_of(GPUS, [newer, older], GIB))
    assert report["containers"] == {"ml/a/c0": {"id": "GPU-a", "since": NEW}}
    assert [gpu["memory"] for gpu in report["gpus"]] == [16 * GIB, 4 * GIB]

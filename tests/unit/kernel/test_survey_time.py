"""How long a survey may take: a subject by its progress, all of them by one limit."""

from __future__ import annotations

import time

from vfioctl.kernel.live.host import Live
from vfioctl.kernel.protocol import Unanswered, per_subject
from vfioctl.kernel.worker.processes import report_progress


@per_subject
def slowly(_: object, subject: str) -> str:
    """Takes a second; `moving` says that it goes on."""
    for _ in range(20):
        time.sleep(0.05)
        if subject == "moving":
            report_progress()
    return subject


@per_subject
def quickly(_: object, subject: str) -> str:
    time.sleep(0.05)
    return subject


def test_a_subject_that_makes_progress_is_not_given_up() -> None:
    live = Live()
    found = dict(live.survey(slowly, ["moving", "silent"], timeout=0.4))
    assert found["moving"] == "moving"
    assert isinstance(found["silent"], Unanswered)


def test_all_subjects_together_have_one_limit() -> None:
    live, began = Live(), time.monotonic()
    found = dict(live.survey(quickly, map(str, range(1000)), timeout=20.0, total=5.0))
    assert time.monotonic() - began < 15
    assert found["0"] == "0"
    assert found["999"] == Unanswered("the scan took longer than 5 s")
    assert len(found) == 1000

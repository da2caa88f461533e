"""The table sharing of the configuration: what it takes, and what it refuses with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from vfioctl.core.limits import read_document
from vfioctl.sharing.model.settings import SharingSettings


def settings(**table: Any) -> SharingSettings:
    return read_document(SharingSettings, table)


def groups(*paths: str) -> list[dict[str, str]]:
    return [{"path": path} for path in paths]


def test_defaults_measure_everything_and_freeze_nothing() -> None:
    found = settings()
    assert (found.throttle, found.groups, found.gpus) == (False, (), ())
    assert found.seconds("poll") == 0.5


def test_weights() -> None:
    found = settings(groups=[{"path": "/a", "weight": 300}, {"path": "/b"}])
    assert found.weights == {"/a": 300, "/b": 100}


@pytest.mark.parametrize("path", ["/a", "/user.slice/a b", "/machine.slice/qemu-1-x.scope", "/ü"])
def test_paths(path: str) -> None:
    assert settings(groups=groups(path)).weights == {path: 100}


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"poll": "0.1s"}, "from 0.167s to 1s"),
        ({"poll": "2s"}, "from 0.167s to 1s"),
        ({"poll": "1s", "min_run": "0.5s"}, "min_run"),
        ({"quantum": "0s"}, "duration"),
        ({"groups": groups("/")}, "below the root"),
        ({"groups": groups("a")}, "below the root"),
        ({"groups": groups("/a/../b")}, "no .."),
        ({"groups": groups("/a\nb")}, "below the root"),
        ({"groups": groups("/a/")}, "below the root"),
        ({"groups": groups("/a", "/a/b")}, "/a is there twice, or has another one below it"),
        ({"groups": groups("/a", "/a")}, "/a is there twice"),
        ({"groups": [{"path": "/a", "weight": 0}]}, "greater than or equal to 1"),
        ({"groups": [{"path": "/a", "weight": "100"}]}, "integer"),
        ({"groups": groups(*(f"/{number}" for number in range(257)))}, "at most 256"),
        ({"gpus": ["gpu0"]}, "no address of a GPU"),
        ({"listen": "everywhere"}, "no address with a port"),
        ({"throttle": "yes"}, "boolean"),
        ({"speed": 1}, "speed"),
    ],
)
def test_refusals(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(**table)
    assert reason in str(refused.value)


def test_groups_whose_names_begin_alike_are_apart() -> None:
    assert len(settings(groups=groups("/a", "/ab", "/b/a")).groups) == 3

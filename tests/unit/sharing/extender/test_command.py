"""`vfioctl share extender serve`: its options, and its end by a signal."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from tests.unit.conftest import ROOT
from tests.unit.sharing.extender.api_server import ApiServer
from vfioctl.errors import BadSpec
from vfioctl.kubelet.model.settings import KubeletSettings
from vfioctl.sharing import api as api_of_sharing
from vfioctl.sharing.cli import extender as cli
from vfioctl.sharing.extender.names import Unit
from vfioctl.sharing.extender.settings import LISTEN, checked
from vfioctl.sharing.model.settings import SharingSettings

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


class TestSettings:
    def test_in_a_pod_nothing_needs_to_be_given(self) -> None:
        settings = checked(environment=POD)
        assert (settings.listen, settings.unit, settings.api_server.url) == (LISTEN, Unit.GIB, "https://10.0.0.1:6443")
        assert checked(environment={"KUBERNETES_SERVICE_HOST": "fd00::1"}).api_server.url == "https://[fd00::1]:443"

    def test_each_service_of_a_host_has_a_port_of_its_own(self) -> None:
        listen = [LISTEN, SharingSettings().listen, KubeletSettings().listen]
        assert len(set(listen)) == len(listen)
        options: Any = typer.main.get_command(cli.app)
        assert next(o.default for o in options.commands["serve"].params if o.name == "listen") == LISTEN

    def test_elsewhere_the_api_server_is_asked_for(self) -> None:
        with pytest.raises(BadSpec, match="this is no pod of a cluster"):
            checked(environment={})

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "10.0.0.1",
            "ftp://a",
            "https://",
            "http://a:b",
            "http://a:99999",
            "http://u:p@a",
            "http://a?b",
            "http://a b",
        ],
    )
    def test_what_is_no_url(self, url: str) -> None:
        with pytest.raises(BadSpec, match="is no URL of one"):
            checked(api_server=url)

    @pytest.mark.parametrize("listen", ["", "1", ":9822", "0.0.0.0", "127.0.0.1:99999", "a.example:1", "0.0.0.0:1 "])
    def test_what_is_no_address(self, listen: str) -> None:
        with pytest.raises(BadSpec, match="is no address with a port"):
            checked(listen, api_server="http://a")

    def test_files(self, tmp_path: Path) -> None:
        here = tmp_path / "here"
        here.touch()
        with pytest.raises(BadSpec, match="there is no such file"):
            checked(api_server="http://a", files={"token": tmp_path / "x"})
        with pytest.raises(BadSpec, match="TLS needs a certificate and its key"):
            checked(api_server="http://a", files={"key": here})
        with pytest.raises(BadSpec, match="TLS needs a certificate and its key"):
            checked(api_server="http://a", files={"clients": here})


class TestGarbage:
    """Commands do without collecting it, which for a service means memory that grows."""

    @pytest.fixture(autouse=True)
    def _off_at_first(self) -> Iterator[None]:
        gc.disable()
        yield
        gc.enable()

    def test_it_is_collected_while_the_extender_is_served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = list[bool]()
        monkeypatch.setattr(api_of_sharing, "serve_extender", lambda *_, **__: seen.append(gc.isenabled()))
        cli.serve(api_server="http://127.0.0.1:1")
        assert seen == [True]

    def test_it_is_collected_while_a_node_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = list[bool]()
        reporting = SimpleNamespace(run=lambda *_, **__: seen.append(gc.isenabled()))
        monkeypatch.setattr(api_of_sharing, "node_report", lambda *_: reporting)
        monkeypatch.setattr(cli, "opened", lambda _: None)
        cli.report(typer.Context(typer.main.get_command(cli.app)), api_server="http://127.0.0.1:1")
        assert seen == [True]


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal(api: ApiServer, number: int) -> None:
    program = [sys.executable, "-c", "from vfioctl.app import console; console()"]
    words = ["share", "extender", "serve", "--listen", "127.0.0.1:0", "--unit", "MiB", "--api-server", api.url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*program, *words], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        lines = []
        for line in service.stderr:
            lines.append(line)
            if len(lines) == 3:
                break
        service.send_signal(number)
        rest = service.stderr.read()
        assert (service.wait(20), rest) == (0, "")
    assert sorted(re.sub(r"\d+", "N", line) for line in lines) == [
        "info: N nodes are listed\n",
        "info: N pods are listed\n",
        "serving on port N\n",
    ]

"""vfioctl report: what is in it, and above all what is not."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.unit.conftest import Run
from vfioctl.doctor.report.redaction import Redaction
from vfioctl.kernel.live.kernel_log import _lines, kernel_log
from vfioctl.kernel.protocol import KERNEL_LOG

NAMES = ["README.txt", "host.host", "doctor.json", "claims.json", "changes.json", "kernel.log"]


class TestRedaction:
    REDACTION = Redaction(
        [("host", "gpu-host-7"), ("user", "ada"), ("owner", "web1"), ("owner", "x"), ("user", "root")]
    )

    @pytest.mark.parametrize(
        ("text", "redacted"),
        [
            ("guest web1 of ada on gpu-host-7", "guest owner-1 of user-1 on host-1"),
            ("web10 and web1x and theada stay", "web10 and web1x and theada stay"),
            ("root stays, and x, which is short", "root stays, and x, which is short"),
            ("/home/eve/vm.xml", "/home/user/vm.xml"),
            ("Serial Number: ABC123 of it", "Serial Number: redacted of it"),
            ("serial=XYZ", "serial=redacted"),
            ("10.1.2.3 and 127.0.0.1", "192.0.2.1 and 127.0.0.1"),
            ("driver 535.104.05.1.2 of 0000:1b:00.0", "driver 535.104.05.1.2 of 0000:1b:00.0"),
            ("mac 52:54:00:12:34:56", "mac 00:00:00:00:00:01"),
        ],
    )
    def test_replaces_what_names_somebody(self, text: str, redacted: str) -> None:
        assert self.REDACTION.text(text) == redacted

    def test_a_uuid_has_one_pseudonym(self) -> None:
        one, other = "4e8c5df7-c4fa-4719-904f-5579cd5ac35f", "5e8c5df7-c4fa-4719-904f-5579cd5ac35f"
        text = Redaction([]).text(f"{one} {other} {one}").split()
        assert text[0] == text[2] != text[1]
        assert one not in text

    def test_without_private_words_nothing_else_is_replaced(self) -> None:
        assert Redaction([]).text("guest web1") == "guest web1"


class TestCommand:
    @pytest.fixture
    def files(self, run: Run, tmp_path: Path) -> dict[str, str]:
        made = run("claim create --owner vm/secret-guest --gpus 1 --label mail=me@here --key k1 --yes --simulate hgx8")
        assert made.code == 0
        file = tmp_path / "report.tar.gz"
        answer = run(f"report -o {file} --simulate hgx8")
        assert answer.code == 0, answer.err
        with tarfile.open(file) as archive:
            assert {member.uname for member in archive} == {""}
            texts = {m.name.removeprefix("vfioctl-report/"): archive.extractfile(m) for m in archive}
            read = {name: text.read().decode() for name, text in texts.items() if text}
        assert answer.out.strip() == read["README.txt"].strip()
        return read

    def test_says_first_what_is_in_it(self, files: dict[str, str]) -> None:
        assert list(files) == NAMES
        first = files["README.txt"]
        assert all(name in first for name in NAMES[1:])
        assert "Kept: " in first
        assert "Left out: " in first
        assert "kernel.log: the kernel's log could not be read" in " ".join(first.split())
        assert max(map(len, first.partition("Missing:")[0].splitlines())) <= 80

    def test_names_nobody(self, files: dict[str, str]) -> None:
        whole = "\n".join(files.values())
        for private in ("secret-guest", "me@here", "k1"):
            assert private not in whole
        assert json.loads(files["claims.json"])[0]["owner"] == "vm/owner-1"
        (change,) = json.loads(files["changes.json"])
        assert (change["verb"], change["state"]) == ("bind", "done")
        assert json.loads(files["doctor.json"])["results"]

    def test_the_host_in_it_is_the_host(self, run: Run, files: dict[str, str], tmp_path: Path) -> None:
        host = tmp_path / "host.host"
        host.write_text(files["host.host"])
        assert "1 ready for a guest" in run(f"inventory --host {host}").out

    def test_replaces_no_file_unasked(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "report.tar.gz"
        file.write_text("precious")
        assert run(f"report -o {file} --simulate hgx8").code == 2
        assert file.read_text() == "precious"
        assert run(f"report -o {file} --force --simulate hgx8").code == 0
        assert tarfile.is_tarfile(file)

    def test_needs_a_file_or_writes_nothing(self, run: Run) -> None:
        assert run("report --simulate hgx8").code == 2
        answer = run("report --dry-run --simulate hgx8")
        assert answer.code == 0
        assert answer.out.startswith("A report of vfioctl")
        assert "Nothing was written" in answer.err


class TestKernelLog:
    def test_a_record_is_a_line(self) -> None:
        assert _lines("6,339,5140900,-;NET: Registered protocol\n SUBSYSTEM=net\n") == [
            "[    5.140900] NET: Registered protocol"
        ]
        assert _lines("nothing of this form") == []

    @pytest.mark.skipif(not os.access(KERNEL_LOG, os.R_OK), reason="only root may read the kernel's log")
    def test_is_read_to_its_end(self) -> None:
        try:
            lines = kernel_log().split("\n")
        except PermissionError:
            pytest.skip("the kernel's log is not for this container")
        assert all(line.startswith("[") for line in lines if line)

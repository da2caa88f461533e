"""What the configuration keeps from claims: the claim of GPUs and of vGPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.conftest import Run


@pytest.mark.parametrize(
    ("host", "card", "wanted"),
    [
        ("t4", "0000:3b:00.0", "--vgpu T4-4C"),
        ("l40s", "0000:41:00.0", "--vgpu L40S-12Q"),
        ("gh200", "0009:01:00.0", "--gpus 1"),
        ("gh200", "0009:01:00.0", "--device gpu0"),
    ],
)
@pytest.mark.parametrize("setting", ['reserved = ["{}"]', 'modes = {{"{}" = "host"}}'])
def test_a_card_that_is_reserved_or_the_host_s_is_not_claimed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, card: str, wanted: str, setting: str
) -> None:
    file = tmp_path / "config.toml"
    monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
    file.write_text(f"[claims]\n{setting.format(card)}\n")
    assert run(f"claim create --owner vm/a {wanted} --yes --simulate {host}").code == 4
    assert run(f"claim list --json --simulate {host}").document["claims"] == []
    file.write_text(f"[claims]\n{setting.format('0000:ff:00.0')}\n")
    answer = run(f"claim create --owner vm/a {wanted} --yes --simulate {host} --json")
    assert answer.code == 0, answer.out

"""`vfioctl install` and `uninstall`, on a simulated host and on real files, with and without vfioctl's package."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hosts.machines import original
from tests.hosts.vgpu_machines import BootableHost
from tests.unit.conftest import Run
from vfioctl.core.change import Plan
from vfioctl.host import Host
from vfioctl.kernel import files as live_files
from vfioctl.persist import packaged
from vfioctl.persist.model.installed import COMPLETIONS, FILES, IN_PACKAGE, LINKS, PAGES

RULE = "/etc/udev/rules.d/62-vfioctl-boot.rules"
UNIT = "/etc/systemd/system/vfioctl-restore.service"
ENABLED = "/etc/systemd/system/multi-user.target.wants/vfioctl-restore.service"
EARLY = "/usr/lib/vfioctl/vfioctl-early"
KUBELET = "/etc/systemd/system/vfioctl-kubelet.service"
KUBELET_ENABLED = "/etc/systemd/system/multi-user.target.wants/vfioctl-kubelet.service"


@pytest.fixture
def server(fast_folder: Path) -> BootableHost:
    return BootableHost(fast_folder, original("hgx8"))


@pytest.fixture
def with_package(server: BootableHost) -> BootableHost:
    """A host with vfioctl's Debian package, whose units deb-systemd-helper has enabled."""
    texts = packaged.of_boot()
    for path, place in IN_PACKAGE.items():
        server.add(place, texts[path])
    for link in LINKS:
        unit = link.rpartition("/")[2]
        server.edit(lambda tree, link=link, unit=unit: tree.put_link(link, f"/lib/systemd/system/{unit}"))  # type: ignore[misc]
    return server


def install(host: Host) -> Plan:
    return host.persist.plan_install()


def uninstall(host: Host) -> Plan:
    return host.persist.plan_uninstall()


def present(server: BootableHost) -> Mapping[str, str]:
    return {**server.tree.files, **server.tree.links}


class TestInstall:
    def test_puts_everything_in_place_and_enables_it(self, server: BootableHost) -> None:
        server.does(install)
        assert install(server.host).nothing_to_do
        files = server.tree.files
        assert "drivers_probe" in files[RULE]
        assert files[EARLY].startswith("#!/bin/sh")
        assert server.tree.links[ENABLED] == "../vfioctl-restore.service"
        assert {*COMPLETIONS, f"{PAGES}/vfioctl.1", f"{PAGES}/vfioctl-bind.1"} <= files.keys()

    def test_renews_what_another_release_left(self, server: BootableHost) -> None:
        server.does(install)
        server.add(RULE, "# of an earlier release")
        server.add(f"{PAGES}/vfioctl-retired.1", "a command that is no more")
        rule, page = install(server.host).changes
        assert (rule.name, page.name, page.after) == (RULE, f"{PAGES}/vfioctl-retired.1", "")
        server.does(install)
        assert install(server.host).nothing_to_do

    def test_leaves_a_unit_that_systemctl_has_enabled(self, server: BootableHost) -> None:
        server.does(install)
        server.edit(lambda tree: tree.put_link(ENABLED, UNIT))
        assert install(server.host).nothing_to_do
        server.does(uninstall)
        assert ENABLED not in server.tree.links

    def test_enables_no_service_that_is_for_the_administrator_to_enable(self, server: BootableHost) -> None:
        server.does(install)
        assert "kubelet serve" in server.tree.files[KUBELET]
        assert KUBELET_ENABLED not in server.tree.links
        server.edit(lambda tree: tree.put_link(KUBELET_ENABLED, KUBELET))
        assert install(server.host).nothing_to_do, "it is left alone"
        assert server.host.persist.not_installed() == ()

    def test_what_is_not_for_the_boot_may_fail(self, server: BootableHost) -> None:
        plan = install(server.host)
        optional = {change.name for change in plan.changes if change.may_fail}
        assert optional == {change.name for change in plan.changes} - {*FILES, *LINKS}
        assert {step.target for step in plan.steps if step.may_fail} == optional

    def test_leaves_pages_to_a_pip_that_put_them_in_place(
        self, server: BootableHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.add(f"{PAGES}/vfioctl.1", "pip wrote this")
        monkeypatch.setattr(sys, "prefix", "/usr/local")
        packaged.of_documents.cache_clear()
        try:
            server.does(install, uninstall)
        finally:
            packaged.of_documents.cache_clear()
        assert [path for path in server.tree.files if path.startswith(PAGES)] == [f"{PAGES}/vfioctl.1"]

    def test_a_plan_with_another_text_is_refused(self, server: BootableHost) -> None:
        host = server.host
        for change in (host.persist.plan_install().changes[0], host.persist.plan_install().changes[-1]):
            resource = host.session.registry.resource(change)
            resource.validate(change)
            with pytest.raises(ValueError, match=r"comes with another release|not the value of an enabled unit"):
                resource.validate(change.model_copy(update={"after": change.after + "\nreboot"}))


class TestUninstall:
    def test_leaves_nothing_of_it(self, server: BootableHost) -> None:
        before = present(server)
        server.does(install)
        server.add(f"{PAGES}/vfioctl-retired.1", "of an earlier release")
        server.does(uninstall)
        assert present(server) == before
        assert uninstall(server.host).nothing_to_do

    def test_disables_the_service_that_the_administrator_has_enabled(self, server: BootableHost, run: Run) -> None:
        before = present(server)
        server.does(install)
        server.edit(lambda tree: tree.put_link(KUBELET_ENABLED, KUBELET))
        said = run("uninstall --dry-run --simulate", str(server.file))
        assert "systemctl stop vfioctl-kubelet.service" in said.out
        server.does(uninstall)
        assert present(server) == before

    def test_keeps_what_is_persistent(self, server: BootableHost) -> None:
        server.does(lambda host: host.binding.plan_bind(["0000:43:00.0"], persistent=True))
        before = present(server)
        server.does(install, uninstall)
        assert present(server) == before

    @pytest.mark.parametrize("command", ["install", "uninstall"])
    def test_a_dry_run_changes_nothing(self, server: BootableHost, run: Run, command: str) -> None:
        if command == "uninstall":
            server.does(install)
        before = present(server)
        answer = run(f"{command} --dry-run --simulate", str(server.file))
        assert answer.code == 0
        assert f"{PAGES}/vfioctl-bind.1" in answer.out
        assert "Nothing was changed" in answer.err
        assert present(server) == before


class TestWithThePackage:
    def test_there_is_nothing_to_install(self, with_package: BootableHost, run: Run) -> None:
        answer = run("install --yes --simulate", str(with_package.file))
        assert answer.code == 0
        assert answer.out.startswith("Nothing to do")
        assert "the package vfioctl of this system has installed" in " ".join(answer.out.split())
        assert with_package.host.persist.not_installed() == ()

    def test_uninstall_takes_nothing_from_it(self, with_package: BootableHost, run: Run) -> None:
        before = present(with_package)
        answer = run("uninstall --yes --simulate", str(with_package.file))
        assert answer.code == 0
        assert "apt-get removes it" in " ".join(answer.out.split())
        assert present(with_package) == before

    def test_uninstall_disables_no_service_of_it(self, with_package: BootableHost) -> None:
        with_package.edit(lambda tree: tree.put_link(KUBELET_ENABLED, "/lib/systemd/system/vfioctl-kubelet.service"))
        assert uninstall(with_package.host).nothing_to_do

    @pytest.mark.parametrize("ask", [install, uninstall])
    def test_copies_that_take_precedence_are_removed(self, with_package: BootableHost, ask: object) -> None:
        before = present(with_package)
        for name in (UNIT, RULE, f"{PAGES}/vfioctl.1", *COMPLETIONS):
            with_package.add(name, "of an earlier `vfioctl install`")
        assert set(with_package.host.persist.not_installed()) == {UNIT, RULE}
        with_package.does(install if ask is install else uninstall)
        assert present(with_package) == before

    def test_install_enables_a_unit_again(self, with_package: BootableHost) -> None:
        with_package.edit(lambda tree: tree.remove(ENABLED))
        assert with_package.host.persist.not_installed() == (ENABLED,)
        with_package.does(install)
        assert with_package.host.persist.not_installed() == ()

    def test_a_package_of_another_release_is_told(self, with_package: BootableHost) -> None:
        with_package.add(EARLY, "#!/bin/sh")
        assert with_package.host.persist.not_installed() == (EARLY,)


def test_directories_that_are_empty_then_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = live_files._FOR_INSTALLED_FILES.pattern
    monkeypatch.setattr(live_files, "_FOR_INSTALLED_FILES", re.compile(rf"{re.escape(str(tmp_path))}(?:{pattern})"))
    share = tmp_path / "usr/local/share"
    page, fish = share / "man/man1/vfioctl.1", share / "fish/vendor_completions.d/vfioctl.fish"
    for file in (page, fish, fish.with_name("of another program")):
        live_files.replace_file(str(file), "text")
    for file in (page, fish):
        live_files.replace_file(str(file), None)
    assert not page.parent.exists()
    assert page.parents[1].is_dir(), "man is Debian's own"
    assert fish.parent.is_dir()

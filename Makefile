# `make` alone lists what there is. Everything happens in .venv; only `make system`, as root, installs anything else.

SHELL := /bin/bash
.SHELLFLAGS := -o errexit -o nounset -o pipefail -c
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# Debian's where it is 3.11 or newer and has its venv module: it takes less time than most that were built otherwise
PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 11))' \
	2> /dev/null && echo /usr/bin/python3 || echo python3)
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
RESULTS := .lab/logs
WHEELS := dist/wheels
# of `make mutants`; 0 is all
SAMPLE ?= 0
SEED ?= 1

# The one list of Debian packages: the environment with libvirt's binding, the tools that some tests ask, the lab.
PACKAGES := python3-venv python3-dev gcc pkg-config libvirt-dev libvirt-clients libvirt-daemon libxml2-utils \
	pciutils udev systemd kmod driverctl e2fsprogs iproute2 tmux lintian binutils man-db \
	qemu-system-x86 qemu-utils qemu-guest-agent linux-image-amd64 linux-headers-amd64 linux-source-6.1 make mdevctl \
	squashfs-tools busybox-static cpio initramfs-tools dracut-core sudo podman crun runc containerd \
	golang-1.19-go dpkg-dev
BENCH_PACKAGES := pciutils driverctl dpdk mdevctl psmisc util-linux kmod virtinst linux-image-amd64 \
	python3-venv python3-dev gcc pkg-config libvirt-dev
# Debian's where there is one, as dpdk-devbind and virt-install have it: vfioctl is compared with them, not two Pythons
BENCH_PYTHON ?= $(firstword $(wildcard /usr/bin/python3) $(PYTHON))

# to collect all tests takes most of a minute
ALONE = $(sort $(shell grep -rl --include='test_*.py' 'mark\.alone' tests/unit tests/contract))
PROTO := vfioctl/kubelet/proto
# seconds after which a test has failed, with the line where it waits: one that hangs must not keep the others waiting.
# A thread ends its process, which xdist replaces. Tests that are alone may have no such thread: a signal fails them
LONGEST := 600
ENDED := --timeout=$(LONGEST) --timeout-method=thread
# a command, not a target: a line that calls make is run in a dry run, too, and examples of the documents are dry runs
PACKAGED = $(BIN)/pytest tests/lab/packages

# the direct requirements of each lock file
define REQUIREMENTS
import sys, tomllib
document = tomllib.load(open("pyproject.toml", "rb"))
project = document["project"]
parts = {
    "dev": project["dependencies"] + document["dependency-groups"]["dev"],
    "run": project["dependencies"] + document["build-system"]["requires"]
    + [name for extra in ("tui", "yaml", "cloud-init", "kubelet") for name in project["optional-dependencies"][extra]],
    "libvirt": project["optional-dependencies"]["libvirt"],
    "mutants": document["dependency-groups"]["mutants"],
    "docs": document["dependency-groups"]["docs"],
}
print(*parts[sys.argv[1]], sep="\n")
endef
export REQUIREMENTS

.PHONY: help run test system style check unit coverage mutants lab kubelet boots packages bench documents docs dist deb release-check stubs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/for-run ## the main job on a simulated server with eight GPUs; needs python3 and its venv module
	@demo=$$(mktemp --directory); trap 'rm -rf "$$demo"' EXIT; cp tests/hosts/hgx8.host "$$demo"; cd "$$demo"; \
	export PATH="$(BIN):$$PATH"; unset VFIOCTL_LEDGER; \
	step() { printf '\n$$ %s\n' "$$*"; "$$@"; }; \
	step vfioctl --simulate hgx8.host inventory; \
	step vfioctl --simulate hgx8.host bind 1b:00.0 --dry-run; \
	step vfioctl --simulate hgx8.host bind 1b:00.0 --yes; \
	step vfioctl --simulate hgx8.host inventory; \
	step vfioctl --simulate hgx8.host unbind 1b:00.0 --yes; \
	step vfioctl --simulate hgx8.host history

test: ## everything: Debian packages (as root), checks, unit tests, the lab
	@$(MAKE) system
	@$(MAKE) style
# where it is missing, the kubelet is built beside the unit tests: the lab waits for it
	@mkdir -p $(RESULTS)
	@$(BIN)/python -m tests.lab.outside.kubelet > $(RESULTS)/kubelet-build.txt 2>&1 < /dev/null &
	@$(MAKE) unit
	@$(MAKE) lab
	@for part in unit lab kubelet boots packages; do \
		grep -hE '[0-9]+ passed' $(RESULTS)/$$part.txt | sed "s/^/$$(printf '%-8s' $$part) /"; \
	done

system: ## the Debian packages that the tests need: installs them as root, says the one line otherwise
	@command -v dpkg-query > /dev/null || { echo "not Debian: see to the like of $(PACKAGES)" >&2; exit 0; }; \
	present=$$(dpkg-query --show --showformat='$${Package} $${db:Status-Status}\n' $(PACKAGES) 2> /dev/null \
		| awk '$$2 == "installed" { print $$1 }' || true); \
	missing=$$(comm -23 <(printf '%s\n' $(PACKAGES) | sort -u) <(printf '%s\n' $$present | sort -u) | xargs); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "sudo apt-get install --yes --no-install-recommends $$missing"; exit 3; fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update --quiet=2; apt-get install --yes --quiet=2 --no-install-recommends $$missing

style: $(VENV)/for-tests ## ruff, ruff format, mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check: style ## the same, who may import whom, the examples in the documents: a quick part of the tests
	$(BIN)/pytest -q tests/unit/test_layering.py tests/unit/test_house_rules.py tests/unit/test_documents.py

unit: $(VENV)/with-libvirt ## all tests that need no machine
	@mkdir -p $(RESULTS)
	$(BIN)/pytest $(ENDED) --durations=20 --numprocesses auto --dist worksteal -m "not alone" tests/unit tests/contract 2>&1 | tee $(RESULTS)/unit.txt
# those with the kubelet that is played wait most of the time
	$(BIN)/pytest $(ENDED) --durations=10 --numprocesses 4 tests/kubelet 2>&1 | tee --append $(RESULTS)/unit.txt
# two runs side by side: each test of one is alone in its process
	@echo "pytest -m alone: those of the kernel beside all others"; failed=0; \
	$(BIN)/pytest --timeout=$(LONGEST) --durations=20 -m alone $(filter tests/unit/kernel/%,$(ALONE)) > $(RESULTS)/alone.txt 2>&1 & kernel=$$!; \
	$(BIN)/pytest --timeout=$(LONGEST) --durations=20 -m alone $(filter-out tests/unit/kernel/%,$(ALONE)) 2>&1 \
		| tee --append $(RESULTS)/unit.txt || failed=1; \
	wait $$kernel || failed=1; tee --append $(RESULTS)/unit.txt < $(RESULTS)/alone.txt; exit $$failed

coverage: $(VENV)/with-libvirt ## the same, with coverage, of which 95 % of the branches are needed: twice as long
	@mkdir -p $(RESULTS)
	$(BIN)/pytest --numprocesses auto -m "not alone" --cov --cov-report= --cov-fail-under=0
	$(BIN)/pytest -m alone --cov --cov-append --cov-report=term --cov-report=json:$(RESULTS)/coverage.json
	$(BIN)/python -m tests.checks.branches $(RESULTS)/coverage.json

mutants: $(VENV)/with-mutants ## mutation tests of the engine and of planning: needs 90 %; SAMPLE=300 takes only so many
	@mkdir -p $(RESULTS)
	nice -n 15 $(BIN)/python -m tests.checks.mutants --sample $(SAMPLE) --seed $(SEED) 2>&1 \
		| tee $(RESULTS)/mutants.txt

lab: $(VENV)/with-libvirt $(WHEELS)/made ## only the tests on a real kernel, in an emulated machine
	@mkdir -p $(RESULTS)
# the packages' tests run beside the machine, which keeps one processor busy, once it has started; no other machine does:
# each would take several times as long
	@(sleep 60; $(PACKAGED) > $(RESULTS)/packages.txt 2>&1) & beside=$$!; failed=0; \
	$(BIN)/python tests/lab/boot.py 2>&1 | tee $(RESULTS)/lab.txt || failed=1; \
	wait $$beside || failed=1; cat $(RESULTS)/packages.txt; \
	for part in lab packages; do \
		grep -qE '[0-9]+ passed' $(RESULTS)/$$part.txt || { echo "$$part: no test ran" >&2; failed=1; }; \
	done; exit $$failed
	@$(MAKE) kubelet boots

kubelet: $(VENV)/with-libvirt ## only the tests on a real kubelet, in an emulated machine; builds one where it is missing
	@mkdir -p $(RESULTS)
	$(BIN)/python tests/lab/boot.py --output .lab/node -- --exitfirst tests/lab/kubelet 2>&1 | tee $(RESULTS)/kubelet.txt
	@grep -qE '[0-9]+ passed' $(RESULTS)/kubelet.txt || { echo "kubelet: no test ran" >&2; exit 1; }

packages: $(VENV)/with-libvirt $(WHEELS)/made ## only the tests of the packages: installed, upgraded, purged
	@mkdir -p $(RESULTS)
	$(PACKAGED) 2>&1 | tee $(RESULTS)/packages.txt
	@grep -qE '[0-9]+ passed' $(RESULTS)/packages.txt || { echo "packages: no test ran" >&2; exit 1; }

boots: $(VENV)/with-libvirt $(WHEELS)/made ## only the tests of what happens at boot, in emulated machines with systemd
	@mkdir -p $(RESULTS)
	$(BIN)/pytest --durations=20 --numprocesses 2 --dist loadfile tests/lab/boots 2>&1 | tee $(RESULTS)/boots.txt
	@grep -qE '[0-9]+ passed' $(RESULTS)/boots.txt || { echo "boots: no test ran" >&2; exit 1; }

bench: $(VENV)/with-libvirt ## the benchmarks against lspci, driverctl, dpdk-devbind, fuser, mdevctl and virt-install
	@$(MAKE) system PACKAGES="$(BENCH_PACKAGES)"
	@mkdir -p .lab
	@$(MAKE) $(VENV)/bench/made
	export PATH=/usr/sbin:/usr/bin:/sbin:/bin; missed=0; \
	for part in inventory completion holders device vgpu claims placement domain doctor tui kubelet extender sharing boot; do \
		$(VENV)/bench/bin/python -m bench.$$part --json .lab/bench-$$part.json || missed=$$?; \
	done; \
	$(BIN)/python tests/lab/boot.py -o .lab/bench -- -s tests/lab/inside/measure_bind.py tests/lab/inside/measure_vgpu.py \
		tests/lab/inside/measure_freeze.py; exit $$missed

documents: $(VENV)/for-tests ## renews the schemas, and what the examples show
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.examples

docs: $(VENV)/docs/made ## the documents as a site in .site/html; a link that leads nowhere is an error
	rm -rf .site; mkdir -p .site/pages
	cp --parents README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE bench/README.md deploy/README.md tests/captures.py \
		$$(find docs tests -name '*.md') $$(find docs -name '*.svg' -o -name '*.json') .site/pages
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict --config-file docs/mkdocs.yml

dist: $(VENV)/for-run $(WHEELS)/made ## the wheel, the source distribution, and in dist/wheels what they need, as locked
	rm -f dist/vfioctl-*.whl dist/vfioctl-*.tar.gz
	$(BIN)/python -m hatchling build --directory dist

deb: dist ## a package for Debian 12; needs no network if dist/wheels is there
	$(BIN)/python packaging/deb/build.py dist/vfioctl-*.whl $(WHEELS) dist

release-check: $(VENV)/for-tests ## what must hold before a release; builds into dist/. TAG=v1.2.3: and that tag
	$(BIN)/python -m tests.checks.release $(TAG)

stubs: $(VENV)/made ## renews what is generated from the protocol files of the kubelet
	$(PYTHON) -m venv $(VENV)/stubs && $(VENV)/stubs/bin/pip --disable-pip-version-check --quiet install \
		$$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']['stubs'])")
	PATH="$(VENV)/stubs/bin:$$PATH" python -m grpc_tools.protoc -I. --python_out=. --mypy_out=. $(PROTO)/*.proto

lock: $(VENV)/made ## renews the lock files from pyproject.toml
	$(PYTHON) -m venv $(VENV)/lock && $(VENV)/lock/bin/pip --disable-pip-version-check --quiet install pip-tools
	for part in dev run libvirt mutants docs; do \
		$(BIN)/python -c "$$REQUIREMENTS" $$part | CUSTOM_COMPILE_COMMAND="make lock" $(VENV)/lock/bin/pip-compile \
			--quiet --upgrade --generate-hashes --strip-extras --allow-unsafe --no-annotate --no-emit-options \
			--no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
			$$([ $$part = dev ] || echo --constraint requirements-dev.lock) --output-file requirements-$$part.lock -; \
	done

clean: ## removes the environment, the lab's disks and what tests left
	rm -rf .venv .lab .site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* dist build

$(VENV)/made:
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "python3 lacks its venv module: apt-get install python3-venv" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "vfioctl needs Python 3.11 or newer: make PYTHON=python3.11 ..." >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# what the command itself needs, as locked, all of it wheels
$(VENV)/for-run: $(VENV)/made pyproject.toml requirements-run.lock
	$(PIP) install --require-hashes --no-deps --only-binary :all: --requirement requirements-run.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# what the tests need, as locked
$(VENV)/for-tests: $(VENV)/made pyproject.toml requirements-dev.lock
	$(PIP) install --require-hashes --no-deps --requirement requirements-dev.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/for-run

# what the wheel and the Debian package need, to be installed without a network
$(WHEELS)/made: $(VENV)/made requirements-run.lock
	rm -rf $(WHEELS).new
	$(PIP) download --require-hashes --no-deps --only-binary :all: --requirement requirements-run.lock \
		$(if $(wildcard $(WHEELS)),--find-links $(WHEELS)) --dest $(WHEELS).new
	rm -rf $(WHEELS)
	mv $(WHEELS).new $(WHEELS)
	@touch $@

# compiled against libvirt's headers, so apart
$(VENV)/with-libvirt: $(VENV)/for-tests requirements-libvirt.lock
	$(PIP) install --require-hashes --no-deps --requirement requirements-libvirt.lock
	@touch $@

# what the benchmarks run, with the interpreter of their peers
$(VENV)/bench/made: $(VENV)/made pyproject.toml requirements-dev.lock requirements-libvirt.lock
	$(BENCH_PYTHON) -m venv $(VENV)/bench
	$(VENV)/bench/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps \
		--requirement requirements-dev.lock --requirement requirements-libvirt.lock
	$(VENV)/bench/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable .
	@touch $@

# apart, so that its many libraries cannot change what the tests use
$(VENV)/docs/made: $(VENV)/made requirements-docs.lock
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/pip --disable-pip-version-check --quiet install --require-hashes --no-deps --only-binary :all: \
		--requirement requirements-docs.lock
	@touch $@

# only what makes mutants: the versions of what the tests need stay
$(VENV)/with-mutants: $(VENV)/with-libvirt requirements-mutants.lock
	$(PIP) install --require-hashes --no-deps --requirement requirements-mutants.lock
	@touch $@

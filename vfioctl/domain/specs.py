"""Reads the spec of a domain from a TOML or YAML file and from options. Reads that file only."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from vfioctl.core.value import first_problem
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.errors import BadSpec, HostError
from vfioctl.kernel.outside import read_file

if TYPE_CHECKING:
    from vfioctl.domain.model.fleet import FleetSpec

_LONGEST = 1 << 20
_SUBJECTS = ("claim", "gpus", "devices")
"""What a spec names one of: an option replaces what the file names."""


def read_spec(given: Mapping[str, Any], file: Path | None) -> DomainSpec:
    """Return the spec. Raises BadSpec for what is wrong in it, HostError for YAML without PyYAML."""
    said = dict(content_of(file)) if file else {}
    if any(name in given for name in _SUBJECTS):
        said = {name: value for name, value in said.items() if name not in _SUBJECTS}
    try:
        return DomainSpec.model_validate({**said, **given})
    except ValidationError as error:
        where = f"{file}: " if file else ""
        raise BadSpec(f"{where}{first_problem(error)}", hint="vfioctl domain build --help shows the options") from None


def read_fleet(file: Path) -> FleetSpec:
    """Return the fleet that a TOML or YAML file describes. Raises BadSpec, HostError."""
    from vfioctl.domain.model.fleet import FleetSpec

    content = dict(content_of(file))
    defaults, domains = content.get("defaults", {}), content.get("domains", [])
    if isinstance(defaults, dict) and isinstance(domains, list):
        content["domains"] = [_merged(defaults, each) for each in domains]
    try:
        return FleetSpec.model_validate(content)
    except ValidationError as error:
        raise BadSpec(f"{file}: {first_problem(error)}", hint="docs/how-to/apply-a-fleet.md has an example") from None


def _merged(defaults: Mapping[str, Any], domain: Any) -> Any:
    """Return a domain with the defaults; one that says what it gets has no other devices by default."""
    if not isinstance(domain, dict):
        return domain
    says = any(name in domain for name in _SUBJECTS)
    return {**{name: value for name, value in defaults.items() if not (says and name in _SUBJECTS)}, **domain}


def content_of(file: Path) -> Mapping[str, Any]:
    """Return the table of a TOML or YAML file. Raises BadSpec, HostError for YAML without PyYAML."""
    try:
        text = read_file(file, _LONGEST).decode()
        content = _yaml(text) if file.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except OSError as error:
        raise BadSpec(f"{file} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise BadSpec(f"{file} is nested too deeply") from None
    except ValueError as error:  # TOML, YAML and UTF-8 alike
        raise BadSpec(
            f"{file} is not understood: {error}"[:400], hint="write it as TOML, or as YAML in *.yaml"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise BadSpec(f"{file} is no table of settings", hint="write one setting on each line: cpus: 16")
    return content


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise HostError("a spec in YAML needs PyYAML: pip install 'vfioctl[yaml]'", hint="or write TOML") from None
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("aliases are not allowed")  # a few lines of them can mean gigabytes
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None

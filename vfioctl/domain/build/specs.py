"""Reads the spec of a domain from a TOML or YAML file and from options. Reads that file only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfioctl.core.limits import read_document, read_words
from vfioctl.domain.model.spec import SOURCES, DomainSpec
from vfioctl.errors import BadSpec, HostError
from vfioctl.kernel.untrusted_files import read_file
from vfioctl.untrusted_text import parse_toml, parse_yaml

if TYPE_CHECKING:
    from vfioctl.domain.model.fleet import FleetSpec

_LONGEST = 1 << 20
_FILES = ("user_data", "network_config")
_HINT = "docs/reference/fleet.schema.json says what each setting may be, docs/how-to/apply-a-fleet.md has examples"


def read_spec(options: Mapping[str, Any], file: Path | None) -> DomainSpec:
    """Return the spec. Raises BadSpec for what is wrong in it, HostError for YAML without PyYAML."""
    return spec_of(options, content_of(file) if file else {}, file)


def spec_of(options: Mapping[str, Any], content: Mapping[str, Any], file: Path | None) -> DomainSpec:
    """Return the spec of a file that was read, if there is one; `content`: what is in it."""
    if any(name in options for name in SOURCES):
        content = {name: value for name, value in content.items() if name not in SOURCES}
    if file is None and (plain := read_words(DomainSpec, options)):
        return plain
    from pydantic import ValidationError

    from vfioctl.core.value import first_problem

    try:
        return read_document(DomainSpec, {**content, **options})
    except ValidationError as error:
        where = f"{file}: " if file else ""
        raise BadSpec(f"{where}{first_problem(error)}", hint="vfioctl domain build --help shows the options") from None


def read_fleet(file: Path) -> FleetSpec:
    """Return the fleet that a TOML or YAML file describes. Raises BadSpec, HostError."""
    from pydantic import ValidationError

    from vfioctl.core.value import first_problem
    from vfioctl.domain.model.fleet import FleetSpec

    content = dict(content_of(file))
    defaults, domains = content.get("defaults", {}), content.get("domains")
    if isinstance(defaults, dict) and isinstance(domains, list):
        content["domains"] = [_with_absolute_paths(file, _merged(defaults, domain)) for domain in domains]
    try:
        return FleetSpec.model_validate(content)
    except ValidationError as error:
        raise BadSpec(f"{file}: {first_problem(error)}", hint=_HINT) from None


def _merged(defaults: Mapping[str, Any], domain: Any) -> Any:
    """Return a domain with the defaults; one that says what it gets has no other devices by default."""
    if not isinstance(domain, dict):
        return domain
    has_source = any(name in domain for name in SOURCES)
    return {**{name: value for name, value in defaults.items() if not (has_source and name in SOURCES)}, **domain}


def _with_absolute_paths(file: Path, domain: Any) -> Any:
    """Return a domain whose files for cloud-init are where the fleet's file is, unless it says where they are."""
    settings = domain.get("cloud_init") if isinstance(domain, dict) else None
    if not isinstance(settings, dict):
        return domain
    named = {name: settings[name] for name in _FILES if name in settings}
    folder = file.absolute().parent
    paths = {name: str(folder / value) for name, value in named.items() if isinstance(value, str) and value}
    return {**domain, "cloud_init": {**settings, **paths}}


def content_of(file: Path) -> Mapping[str, Any]:
    """Return the table of a TOML or YAML file. Raises BadSpec, HostError for YAML without PyYAML."""
    parse = parse_yaml if file.suffix in (".yaml", ".yml") else parse_toml
    try:
        content = parse(read_file(file, _LONGEST).decode())
    except ImportError:
        raise HostError("a spec in YAML needs PyYAML: pip install 'vfioctl[yaml]'", hint="or write TOML") from None
    except OSError as error:
        raise BadSpec(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOML, YAML and UTF-8 alike
        what = f"{file} is not understood: {error}"
        raise BadSpec(what[:400], hint="write it as TOML, or as YAML in *.yaml") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise BadSpec(f"{file} is no table of settings", hint="write one setting on each line: cpus: 16")
    return content

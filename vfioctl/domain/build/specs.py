"""Reads the spec of a domain from a TOML or YAML file and from options. Reads that file only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfioctl.core.limits import read_document, read_words
from vfioctl.domain.model.spec import SOURCES, DomainSpec
from vfioctl.errors import BadSpec, HostError
from vfioctl.kernel.untrusted_files import read_file

if TYPE_CHECKING:
    from vfioctl.domain.model.fleet import FleetSpec

_LONGEST = 1 << 20
_QUOTED = re.compile(r" '[!\w-]{2,}'", re.ASCII)
"""A word of the text in an error of PyYAML: the name of an alias, an anchor or a tag. Tokens are `<...>`."""
_FILES = ("user_data", "network_config")
_HINT = "docs/reference/fleet.schema.json says what each setting may be, docs/how-to/apply-a-fleet.md has examples"


def read_spec(options: Mapping[str, Any], file: Path | None) -> DomainSpec:
    """Return the spec. Raises BadSpec for what is wrong in it, HostError for YAML without PyYAML."""
    return spec_of(options, content_of(file) if file else {}, file)


def spec_of(options: Mapping[str, Any], content: Mapping[str, Any], file: Path | None) -> DomainSpec:
    """Return the spec of a file that was read, if there is one; `said`: its content."""
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
    if not (isinstance(domain, dict) and isinstance(domain.get("cloud_init"), dict)):
        return domain
    folder = file.absolute().parent
    paths = {
        name: str(folder / value) if name in _FILES and isinstance(value, str) and value else value
        for name, value in domain["cloud_init"].items()
    }
    return {**domain, "cloud_init": paths}


def content_of(file: Path) -> Mapping[str, Any]:
    """Return the table of a TOML or YAML file. Raises BadSpec, HostError for YAML without PyYAML."""
    import tomllib

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
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _refuse_twice(node)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(_problem(error, text)) from None


def _problem(error: Any, text: str) -> str:
    """Return what is wrong with YAML in one line: PyYAML has it in several, with a part of the text."""
    mark, place = getattr(error, "problem_mark", None), getattr(error, "position", None)
    if mark is None and isinstance(place, int):  # of a character that YAML does not have
        line, column = text.count("\n", 0, place), place - text.rfind("\n", 0, place) - 1
    else:
        line, column = (mark.line, mark.column) if mark else (0, 0)
    what = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"line {line + 1}, column {column + 1}: {what}"


def _refuse_twice(node: Any) -> None:
    """Raise ValueError for a key that a table has twice: PyYAML takes the last one, TOML none."""
    if node is None or node.id == "scalar":
        return
    if node.id == "sequence":
        for item in node.value:
            _refuse_twice(item)
        return
    names = set()
    for key, value in node.value:
        if key.id == "scalar":
            if key.value in names:
                raise ValueError(f"line {key.start_mark.line + 1}: {key.value[:60]} is there twice")
            names.add(key.value)
        _refuse_twice(value)


def kind_of_yaml(text: str) -> str | None:
    """Return what a text in YAML is: `mapping`, `sequence`, `scalar`, or nothing; None if that is not known here.

    Aliases are allowed: the text is not made into values. Raises ValueError, which quotes no word of the text.
    """
    try:
        import yaml
    except ImportError:
        return None
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{_QUOTED.sub('', str(error.problem))}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    return "" if node is None else str(node.id)

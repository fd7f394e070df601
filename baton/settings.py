"""What a process was told to do: TOML and environment into one checked dataclass."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

Config = TypeVar("Config")


class SettingsError(Exception):
    """One clear line about a configuration that cannot be used."""


def load(
    config: type[Config],
    section: str,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Read `[section]` of a TOML file, then BATON_SECTION_KEY variables over it.

    Strict: an unknown key or a wrong type raises SettingsError naming file or variable and key.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    if file is not None:
        values = _section(file, section)
        _known_keys(config, values, f"{file}: [{section}]")
    prefix = f"BATON_{section.upper()}_"
    origin = {key: f"{file}: [{section}] {key}" for key in values}
    for variable in sorted(environment):
        if variable.startswith(prefix):
            key = variable.removeprefix(prefix).lower()
            _known_keys(config, {key: None}, variable)
            values[key], origin[key] = _from_environment(environment[variable]), variable
    hints = get_type_hints(config)
    for key, value in values.items():
        try:
            values[key] = msgspec.convert(value, hints[key], strict=origin[key] != prefix + key.upper())
        except msgspec.ValidationError as error:
            raise SettingsError(f"{origin[key]}: {error}") from None
    try:
        return config(**values)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"[{section}]: {error}") from None


def _from_environment(text: str) -> Any:
    """JSON where it is JSON (numbers, lists, tables), else the text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _section(file: Path, section: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text())
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: not TOML: {error}") from None
    values = document.get(section, {})
    if not isinstance(values, dict):
        raise SettingsError(f"{file}: {section} must be a table")
    return values


def _known_keys(config: type, values: Mapping[str, Any], where: str, path: str = "") -> None:
    assert is_dataclass(config)
    known = [field.name for field in fields(config)]
    for key, value in values.items():
        if key not in known:
            raise SettingsError(f"{where}: unknown key {path + key!r}; known: {', '.join(sorted(known))}")
        nested = get_type_hints(config)[key]
        if is_dataclass(nested) and isinstance(value, dict) and isinstance(nested, type):
            _known_keys(nested, value, where, f"{path}{key}.")

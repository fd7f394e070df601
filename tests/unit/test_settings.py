"""Strict configuration: unknown keys and wrong types are one clear line."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from baton.settings import SettingsError, load


@dataclass(frozen=True, slots=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Example:
    port: int = 80
    name: str = "x"
    rate: float = 0.5
    listed: tuple[int, ...] = ()
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.port < 0:
            raise ValueError("port must not be negative")


def write(folder: Path, text: str) -> Path:
    path = folder / "baton.toml"
    path.write_text(text)
    return path


def test_file_and_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "[example]\nport = 81\nlisted = [1, 2]\ninner = {depth = 3}\n")
    environment = {"BATON_EXAMPLE_PORT": "82", "BATON_EXAMPLE_NAME": "y", "BATON_OTHER_PORT": "1"}
    assert load(Example, "example", file=file, environment=environment) == Example(
        82, "y", 0.5, (1, 2), Inner(3)
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[example]\nprot = 1\n", "unknown key 'prot'"),
        ("[example]\ninner = {dept = 1}\n", "unknown key 'inner.dept'"),
        ('[example]\nport = "80"\n', "[example] port: Expected `int`, got `str`"),
        ("[example]\nport = 1.5\n", "Expected `int`"),
        ("[example]\nport = -1\n", "port must not be negative"),
        ("example = 3\n", "must be a table"),
        ("[example\n", "not TOML"),
    ],
)
def test_bad_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(Example, "example", file=write(tmp_path, text), environment={})
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [("BATON_EXAMPLE_PORT", "many", "BATON_EXAMPLE_PORT"), ("BATON_EXAMPLE_PROT", "1", "unknown key 'prot'")],
)
def test_bad_environment_names_the_variable(variable: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load(Example, "example", environment={variable: value})


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(Example, "example", file=tmp_path / "none.toml", environment={})

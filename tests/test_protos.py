"""The committed stubs are current, and no field was ever renumbered, retyped or removed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).parent.parent
FIELDS = ROOT / "tests" / "proto_fields.json"


def descriptors(tmp_path: Path) -> descriptor_pb2.FileDescriptorSet:
    out = tmp_path / "all.binpb"
    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "proto").glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={out}", *protos]
    subprocess.run(command, cwd=ROOT, check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def fields_of(message: descriptor_pb2.DescriptorProto, scope: str) -> dict[str, str]:
    """ "package.Message.number" -> "name type label"."""
    name = f"{scope}.{message.name}"
    found = {}
    for field in message.field:
        kind = field.type_name or descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)
        label = descriptor_pb2.FieldDescriptorProto.Label.Name(field.label)
        found[f"{name}.{field.number}"] = f"{field.name} {kind} {label}"
    for nested in message.nested_type:
        found |= fields_of(nested, name)
    return found


def all_fields(files: descriptor_pb2.FileDescriptorSet) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files.file:
        for message in file.message_type:
            found |= fields_of(message, file.package)
    return dict(sorted(found.items()))


def broken(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [f"{key}: was {was!r}, is {now.get(key)!r}" for key, was in before.items() if now.get(key) != was]


def test_stubs_are_current(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run([str(ROOT / "proto/generate.sh"), str(tmp_path)], cwd=ROOT, check=True, env=environment)
    made = sorted((tmp_path / "proto").iterdir())
    assert made
    stale = [f.name for f in made if (ROOT / "proto" / f.name).read_bytes() != f.read_bytes()]
    assert not stale, f"run `make proto`: {stale}"


def test_fields_are_only_added(tmp_path: Path) -> None:
    now = all_fields(descriptors(tmp_path))
    before = json.loads(FIELDS.read_text())
    assert not broken(before, now), "a field of a published message changed; add a new one instead"
    added = sorted(set(now) - set(before))
    assert not added, f"new fields: run `python tests/test_protos.py` to publish {added}"


@pytest.mark.parametrize("change", ["renumbered", "retyped", "removed"])
def test_a_changed_field_is_caught(change: str) -> None:
    before = {"p.M.1": "a TYPE_STRING LABEL_OPTIONAL"}
    now = {
        "renumbered": {"p.M.2": "a TYPE_STRING LABEL_OPTIONAL"},
        "retyped": {"p.M.1": "a TYPE_UINT32 LABEL_OPTIONAL"},
        "removed": {},
    }[change]
    assert broken(before, now)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        FIELDS.write_text(json.dumps(all_fields(descriptors(Path(folder))), indent=0) + "\n")

"""What `baton up` tells its processes."""

import json

from baton.fleet_plan import ServedModel, UpOptions, plan_fleet

MODEL = ServedModel(name="m", revision="1", folder="/m", max_positions=100)


def told(options: UpOptions, role: str) -> dict[str, object]:
    planned = plan_fleet(options, MODEL, http_port=1, grpc_port=2, redis_url="unix:///s")
    environment = next(process.environment for process in planned if process.role == role)
    prefix = f"BATON_{role.upper()}_"
    return {
        key.removeprefix(prefix).lower(): json.loads(value)
        for key, value in environment.items()
        if key.startswith(prefix)
    }


def test_what_was_not_asked_for_is_left_to_the_configuration_file() -> None:
    """A variable overrides the file: telling every default would make `--config` say nothing."""
    assert "kv_blocks" not in told(UpOptions(cores={}), "decode")
    assert told(UpOptions(cores={}, kv_blocks=64), "decode")["kv_blocks"] == 64


def test_laws_are_checked_wherever_there_are_some() -> None:
    for role in ("router", "prefill", "decode"):
        assert told(UpOptions(cores={}, check_laws=True), role)["check_laws"] is True

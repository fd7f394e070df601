"""The house rules that a machine can check; each failure names the file, the fault and the mend."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LEVELS: dict[str, int] = {
    "proto": 0,
    "core": 0,
    "text": 1,
    "engine": 2,
    "rpc": 2,
    "capacity": 2,
    "kv_transfer": 3,
    "worker": 4,
    "services": 5,
    "router": 5,
    "prefill_worker": 5,
    "decode_worker": 5,
    "baton": 6,
    "sim": 6,
    "bench": 6,
}
"""A package imports only from lower levels and from itself; of one level, never each other."""

TOP = ("baton", "sim", "bench")
"""The drivers: they may meet (`baton sim`, `baton bench`)."""

EFFECTS = (
    "grpc",
    "asyncio",
    "redis",
    "kubernetes",
    "logging",
    "time",
    "os",
    "threading",
    "subprocess",
    "random",
)
"""Importing one of these makes a module a shell. `random.Random` handed in is fine: see RANDOM_OK."""

SHELLS = (
    "rpc/",
    "capacity/store.py",
    "core/parent_death.py",
    "core/recording_file.py",
    "capacity/embedded.py",
    "kv_transfer/gloo_lane.py",
    "kv_transfer/gloo_pair.py",
    "kv_transfer/lanes.py",
    "engine/torch_backend.py",
    "engine/native_backend.py",
    "engine/backends.py",
    "engine/grammar_masks.py",
    "engine/models/",
    "engine/kernels/",
    "worker/instance.py",
    "worker/lane_host.py",
    "worker/registration.py",
    "worker/router_links.py",
    "worker/self_report.py",
    "worker/shell.py",
    "worker/step_loop.py",
    "worker/timer.py",
    "decode_worker/prefill_links.py",
    "services/gateway/cancels.py",
    "services/gateway/discovery.py",
    "services/gateway/driver.py",
    "services/gateway/fleet.py",
    "services/gateway/generation.py",
    "services/gateway/http_",
    "services/gateway/intake.py",
    "services/gateway/mailbox.py",
    "services/gateway/openai_format.py",
    "services/gateway/peer_api.py",
    "services/gateway/recording.py",
    "services/gateway/sse.py",
    "baton/",
    "bench/",
)
"""Folders and files where effects live, besides every service.py and what a package's SHELL names say."""

SHELL_NAMES = ("service.py", "http.py", "app.py", "grpc_api.py", "wire.py")

TORCH = (
    "engine/torch_backend.py",
    "engine/native_backend.py",
    "engine/backends.py",
    "engine/sampler.py",
    "engine/models/",
    "engine/kernels/",
    "kv_transfer/gloo_lane.py",
    "kv_transfer/gloo_pair.py",
    "kv_transfer/lanes.py",
    "bench/",
)

LINES_MAX = 400
LINES_MAX_OF = {"engine": 300, "worker": 300}
"""Folders whose files are kept shorter."""


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, check=True, capture_output=True
    )
    paths = [ROOT / line for line in listed.stdout.decode().splitlines()]
    return [
        p for p in paths if p.exists() and "_pb2" not in p.name and p.relative_to(ROOT).parts[0] in LEVELS
    ]


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every imported module's dotted name, those under `if TYPE_CHECKING` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno


def is_shell(path: str) -> bool:
    return path.startswith(SHELLS) or path.rsplit("/", 1)[-1] in SHELL_NAMES


def faults(path: str, source: str) -> list[str]:
    """What is wrong with one file, as "path:line: fault; mend"."""
    found = []
    tree = ast.parse(source)
    package = path.split("/", 1)[0]
    for name, line in imports(tree):
        other = name.split(".", 1)[0]
        if other in LEVELS and other != package:
            allowed = LEVELS[other] < LEVELS[package] or (package in TOP and other in TOP)
            if not allowed and LEVELS[package] > 0:
                found.append(f"{path}:{line}: imports {name}, which is not below; meet in core/ or proto/")
            if LEVELS[package] == 0:
                found.append(f"{path}:{line}: core imports {name}; core stands on nothing")
        if other in EFFECTS and other != "random" and not is_shell(path):
            found.append(
                f"{path}:{line}: a plain module imports {name}; hand it in, or make the module a shell"
            )
        if other == "torch" and not path.startswith(TORCH):
            found.append(f"{path}:{line}: imports torch; only backends, models, kernels and lanes may")
        if not is_shell(path) and other in LEVELS and is_shell(name.replace(".", "/") + ".py"):
            found.append(f"{path}:{line}: a plain module imports the shell {name}; turn the call around")
    if path.endswith("__init__.py"):
        return found + ([f"{path}:1: not empty; put it in a module with a name"] if source.strip() else [])
    if not ast.get_docstring(tree):
        found.append(f"{path}:1: no docstring; say in one sentence what this file decides")
    lines_max = LINES_MAX_OF.get(package, LINES_MAX)
    if len(source.splitlines()) > lines_max:
        found.append(f"{path}:1: over {lines_max} lines; a file holds one noun, split it")
    loops = [node.iter for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    found += [
        f"{path}:{over.lineno}: iterates a set; order is chosen, sort it"
        for over in loops
        if over_a_set(over)
    ]
    for number, text in enumerate(source.splitlines(), 1):
        if any(word in text for word in ("TO" + "DO", "FIX" + "ME", "X" + "XX")):
            found.append(f"{path}:{number}: unfinished; finish it")
    return found


def over_a_set(over: ast.expr) -> bool:
    return isinstance(over, ast.Set | ast.SetComp) or (
        isinstance(over, ast.Call)
        and isinstance(over.func, ast.Name)
        and over.func.id in ("set", "frozenset")
    )


@pytest.mark.parametrize("path", [str(p.relative_to(ROOT)) for p in sources()])
def test_file_is_tidy(path: str) -> None:
    found = faults(path, (ROOT / path).read_text())
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("core/a.py", '"""A."""\nimport engine.plan\n', "core stands on nothing"),
        ("engine/a.py", '"""A."""\nfrom kv_transfer.layout import x\n', "not below"),
        ("engine/a.py", '"""A."""\nimport rpc.server\n', "not below"),
        ("router/a.py", '"""A."""\nimport decode_worker.service\n', "not below"),
        ("router/a.py", '"""A."""\nimport time\n', "plain module imports time"),
        ("router/a.py", '"""A."""\ndef f():\n    import asyncio\n', "plain module imports asyncio"),
        ("router/a.py", '"""A."""\nfrom rpc.server import x\n', "imports the shell"),
        ("router/service.py", '"""A."""\nimport torch\n', "imports torch"),
        ("router/__init__.py", "x = 1\n", "not empty"),
        ("router/a.py", "x = 1\n", "no docstring"),
        ("router/a.py", '"""A."""\n' + "x = 1\n" * 400, "over 400 lines"),
        ("engine/a.py", '"""A."""\n' + "x = 1\n" * 300, "over 300 lines"),
        ("router/a.py", '"""A."""\nfor x in {1, 2}:\n    pass\n', "iterates a set"),
        ("router/a.py", '"""A."""\ny = [x for x in set([1])]\n', "iterates a set"),
        ("router/a.py", '"""A."""\n# TO' + "DO later\n", "unfinished"),
    ],
)
def test_the_rules_have_teeth(path: str, source: str, fault: str) -> None:
    assert any(fault in found for found in faults(path, source)), faults(path, source)


def test_clean_code_passes() -> None:
    assert not faults(
        "router/a.py", '"""Who goes next."""\nfrom core.request import Role\n\nx = [r for r in Role]\n'
    )
    assert not faults(
        "router/service.py", '"""The router on the wire."""\nimport asyncio\nimport rpc.server\n'
    )

"""What two tenants share: a public system prompt, and never a token after it."""

from datetime import datetime
from pathlib import Path

import pytest

from core.cost_model import StepCost
from core.prefix_hashes import hash_root, root_with_public
from core.request import AttemptKey, Choice, ModelIdentity, TenantClass
from core.sampling import SamplingParams
from engine.config import EngineConfig
from engine.engine import Engine
from engine.fake_kv import expected_tokens
from engine.job import Job, Stage
from engine.timed_backend import TimedBackend, digest_layout
from services.gateway.config import ModelConfig
from services.gateway.models import ServedModel
from tests.live.gateway_fleet import model_folder
from text.conversation import Conversation

COST = StepCost(base_ns=1_000_000, token_ns=10_000, context_ns=100)
MODEL = ModelIdentity("m", "r")
SYSTEM = "You are a most helpful assistant of our whole company."


def cached(blocks: list[tuple[str, bytes, tuple[int, ...]]], block_size: int) -> list[int]:
    """Cached prompt tokens of each of (tenant, root, prompt), run one after the other on one engine."""
    config = EngineConfig(blocks=400 // block_size * 4, block_size=block_size, max_positions=1000)
    engine, backend = Engine(config, COST), TimedBackend(COST, digest_layout(block_size, config.blocks))
    found = []
    for number, (tenant, root, prompt) in enumerate(blocks):
        job = Job(
            key=AttemptKey(f"r{number}", 1),
            prompt=prompt,
            choices=(Choice(0),),
            params=SamplingParams(max_tokens=3),
            seed=number,
            hash_root=root,
            tenant=tenant,
            tenant_class=TenantClass.STANDARD,
        )
        assert engine.add(job, Stage.FULL, 0) is None
        drawn, first_cached = [], None
        while (plan := engine.plan(0)) is not None:
            for token in engine.step_done(backend.execute(plan), 0).tokens:
                drawn.append(token.sampled.token)
                first_cached = token.cached_tokens if first_cached is None else first_cached
            engine.check()
        assert drawn == list(expected_tokens(prompt, job.params, number, 0, len(drawn)))
        assert first_cached is not None
        found.append(first_cached)
    return found


@pytest.mark.parametrize(("block_size", "shared"), [(16, 64), (4, 68), (32, 64)])
def test_two_tenants_share_the_public_beginning_only(block_size: int, shared: int) -> None:
    public, a, b = (hash_root(salt, MODEL, "digest") for salt in (b"public", b"tenant:a", b"tenant:b"))
    beginning = tuple(range(500, 570))
    prompt = beginning + tuple(range(100))
    for_a, for_b = root_with_public(public, 70, a), root_with_public(public, 70, b)
    own, across, again = cached(
        [("a", for_a, prompt), ("b", for_b, prompt), ("b", for_b, prompt)], block_size
    )
    assert own == 0
    assert across == shared, "the public beginning, and not one block of the same text after it"
    assert again > shared, "the tenant's own"


def test_the_same_text_outside_the_namespace_is_not_shared() -> None:
    public, a, b = (hash_root(salt, MODEL, "digest") for salt in (b"public", b"tenant:a", b"tenant:b"))
    prompt = tuple(range(170))
    assert cached([("a", a, prompt), ("b", b, prompt)], 16) == [0, 0]
    # Neither does a tenant's own chain serve those who read the public one, nor the other way.
    assert cached([("a", a, prompt), ("b", root_with_public(public, 64, b), prompt)], 16) == [0, 0]
    assert cached([("b", root_with_public(public, 64, b), prompt), ("a", a, prompt)], 16) == [0, 0]


def test_which_prompts_begin_publicly(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    config = ModelConfig(
        name="m", folder=str(folder), max_positions=1000, public_system_prompts=(SYSTEM, "Short.")
    )
    now = datetime(2026, 1, 1)
    model = ServedModel.open(config, now)

    def public(*messages: tuple[str, str]) -> str:
        conversation = Conversation.of([{"role": role, "content": text} for role, text in messages])
        tokens = tuple(model.conversation_tokens(conversation, now))
        return model.tokenizer.decode(tokens[: model.public_tokens(tokens)])

    assert public(("system", SYSTEM), ("user", "a secret")) == f"system\n{SYSTEM}\nuser\n"
    assert public(("system", "Short."), ("user", "x")) == "system\nShort.\nuser\n"
    assert public(("system", SYSTEM + " More."), ("user", "x")) == ""
    assert public(("system", SYSTEM.upper()), ("user", "x")) == ""
    assert public(("user", SYSTEM)) == ""

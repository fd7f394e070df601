"""The real `openai` client against a real fleet."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.e2e.live_fleet import MODEL, LiveFleet
from tests.reference import references

CASE = references.own()[0]


@pytest.fixture(scope="module")
def client(exact_fleet: LiveFleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=exact_fleet.openai, api_key="none", max_retries=0) as found:
        yield found


def messages(content: str = CASE["prompt"]) -> list[openai.types.chat.ChatCompletionMessageParam]:
    return [{"role": "user", "content": content}]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=messages(), temperature=0, max_tokens=48)
    assert answer.choices[0].message.content == CASE["text"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(CASE["prompt_tokens"])
    assert answer.usage.completion_tokens == len(CASE["output_tokens"])


@pytest.mark.parametrize("usage_wanted", [False, True])
def test_chat_streamed(client: openai.OpenAI, usage_wanted: bool) -> None:
    extra = {"stream_options": {"include_usage": True}} if usage_wanted else {}
    chunks = list(
        client.chat.completions.create(  # type: ignore[call-overload]
            model=MODEL, messages=messages(), temperature=0, max_tokens=48, stream=True, **extra
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == CASE["text"]
    usages = [chunk for chunk in chunks if chunk.usage is not None]
    assert len(usages) == (1 if usage_wanted else 0)
    assert all(chunk.choices == [] and chunk is chunks[-1] for chunk in usages)
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["stop"]


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=8
    )
    parts = client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=8, stream=True
    )
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text
    assert "Paris" in whole.choices[0].text


def test_stop_strings_end_the_text_before_them(client: openai.OpenAI) -> None:
    full = CASE["text"]
    stop = full[8:11]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages(), temperature=0, max_tokens=48, stop=[stop, "never said"]
    )
    assert answer.choices[0].message.content == full[: full.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_the_same_seed_gives_the_same_text_whatever_else_runs(client: openai.OpenAI) -> None:
    def sampled() -> str | None:
        answer = client.chat.completions.create(
            model=MODEL, messages=messages("Tell me a story."), temperature=1.0, seed=42, max_tokens=24
        )
        return answer.choices[0].message.content

    alone = sampled()
    noise = client.chat.completions.create(
        model=MODEL, messages=messages("Count to a hundred."), max_tokens=200, stream=True
    )
    next(iter(noise))
    assert sampled() == alone
    noise.close()


def test_n_gives_n_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=messages("Tell me a story."), temperature=1.0, seed=1, n=2, max_tokens=16
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 32
    greedy = client.chat.completions.create(
        model=MODEL, messages=messages(), temperature=0, n=2, max_tokens=48
    )
    assert [choice.message.content for choice in greedy.choices] == [CASE["text"]] * 2


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=messages(), temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 4
    for one in found.content:
        assert one.logprob <= 0
        assert [top.logprob for top in one.top_logprobs] == sorted(
            (t.logprob for t in one.top_logprobs), reverse=True
        )
        assert one.token == one.top_logprobs[0].token  # greedy
        assert bytes(one.bytes or []).decode() in CASE["text"]


def test_errors_are_the_clients_exception_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=messages())
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=messages(), temperature=-1)
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model=MODEL, messages=[])
    with pytest.raises(openai.BadRequestError, match="8192"):
        client.chat.completions.create(model=MODEL, messages=messages("long " * 20_000), max_tokens=1)


def test_50_times_the_same_prompt_is_50_times_the_same_answer(client: openai.OpenAI) -> None:
    """The first alone, the others five at a time."""

    def ask(_: int) -> str | None:
        answer = client.chat.completions.create(
            model=MODEL, messages=messages(), temperature=0, max_tokens=12
        )
        return answer.choices[0].message.content

    first = ask(0)
    with ThreadPoolExecutor(5) as askers:
        assert list(askers.map(ask, range(49))) == [first] * 49

"""How a client's call becomes requests: model, tokens, parameters, hashes, seed and ids."""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from core.prefix_hashes import HASH_UNIT, chain, hash_root, pack, root_with_public
from rpc.clock import now_us, wall_us
from services.gateway.bodies import ChatBody, CompletionBody, SamplingFields, prompts, refuse_unsupported
from services.gateway.config import GatewayConfig
from services.gateway.driver import Driver
from services.gateway.generation import Generation
from services.gateway.mailbox import Mailbox
from services.gateway.models import Models, ServedModel
from services.gateway.parameters import Parameters, checked
from services.gateway.refusal import bad_field
from services.gateway.request_names import RequestNames, made_id, name_problem
from services.gateway.requests import NewRequest, Tenant
from services.gateway.structured import Structure, structure_of
from text.conversation import Conversation, TemplateError

COMPLETION_MAX_TOKENS = 16
"""What /v1/completions gives without max_tokens, at OpenAI and vLLM alike."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What every API says about a call beside its sampling."""

    tenant: Tenant
    prefix: str
    """What its id begins with."""
    client_id: str = ""
    client_id_field: str = "x-request-id"
    is_shared: bool = False
    """Several live requests may have the client's name: it is its own only on its stream."""
    deadline_us: int = 0
    """From now; 0: the server's own."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One prompt, tokenized and checked."""

    prompt: tuple[int, ...]
    parameters: Parameters
    hash_root: bytes
    prefix_hashes: bytes
    grammar: str


class Intake:
    """Makes generations. Long prompts are tokenized in threads, so that they delay nobody's tokens."""

    def __init__(
        self,
        config: GatewayConfig,
        models: Models,
        driver: Driver,
        names: RequestNames,
        seeds: random.Random,
    ) -> None:
        self._config = config
        self.models = models
        self._driver = driver
        self._names = names
        self._random = seeds
        self._threads = ThreadPoolExecutor(config.tokenizer_threads, thread_name_prefix="tokenizer")

    async def chat(self, call: Call, body: ChatBody) -> Generation:
        """Raises Refusal naming the field."""
        refuse_unsupported(body)
        model = self.models.find(body.model)
        conversation = _conversation(body)
        structure = structure_of(body, body.response_format)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        named = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
        max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens

        def ask() -> list[_Asked]:
            grammar = _grammar(model, structure)
            tokens = model.conversation_tokens(conversation, datetime.now())
            parameters = checked(
                body,
                model.limits,
                len(tokens),
                logprobs=logprobs,
                max_tokens=max_tokens,
                structured=structure is not None,
                max_tokens_field=named,
                logprobs_field="top_logprobs",
                prompt_field="messages",
            )
            return [self._asked(call, model, tokens, parameters, grammar)]

        size = sum(len(str(message["content"])) for message in conversation.messages)
        asked = await self._off_loop(ask, size, structure)
        return self._generation(call, model, asked, continues=False)

    async def completion(self, call: Call, body: CompletionBody) -> Generation:
        """Raises Refusal naming the field."""
        refuse_unsupported(body)
        model = self.models.find(body.model)
        given = prompts(body.prompt, self._config.prompts_max)
        max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        structure = structure_of(body, body.response_format)
        return await self.texts(call, model, given, body, body.logprobs, max_tokens, structure)

    async def texts(
        self,
        call: Call,
        model: ServedModel,
        given: list[str | list[int]],
        fields: SamplingFields,
        logprobs: int | None,
        max_tokens: int | None,
        structure: Structure | None = None,
    ) -> Generation:
        """Prompts without a template. Raises Refusal naming the field."""

        def ask() -> list[_Asked]:
            asked = []
            grammar = _grammar(model, structure)
            for position, prompt in enumerate(given):
                field = "prompt" if len(given) == 1 else f"prompt[{position}]"
                tokens = model.prompt_tokens(prompt, field)
                room = model.limits.max_positions - len(tokens)
                # A default is not the client's mistake: it gives way where positions run out.
                defaulted = fields.max_tokens is None and max_tokens is not None
                limit = max(1, min(max_tokens, room)) if defaulted and max_tokens is not None else max_tokens
                parameters = checked(
                    fields,
                    model.limits,
                    len(tokens),
                    logprobs=logprobs,
                    max_tokens=limit,
                    structured=structure is not None,
                    prompt_field=field,
                )
                asked.append(self._asked(call, model, tokens, parameters, grammar))
            return asked

        size = sum(len(prompt) for prompt in given)
        return self._generation(call, model, await self._off_loop(ask, size, structure), continues=True)

    async def conversation(
        self,
        call: Call,
        model: ServedModel,
        conversation: Conversation,
        fields: SamplingFields,
        logprobs: int | None,
        structure: Structure | None = None,
    ) -> Generation:
        """A chat that is checked already (gRPC). Raises Refusal naming the field."""

        def ask() -> list[_Asked]:
            grammar = _grammar(model, structure)
            tokens = model.conversation_tokens(conversation, datetime.now())
            parameters = checked(
                fields,
                model.limits,
                len(tokens),
                logprobs=logprobs,
                max_tokens=fields.max_tokens,
                structured=structure is not None,
                prompt_field="chat.messages",
            )
            return [self._asked(call, model, tokens, parameters, grammar)]

        size = sum(len(str(message["content"])) for message in conversation.messages)
        asked = await self._off_loop(ask, size, structure)
        return self._generation(call, model, asked, continues=False)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _off_loop(self, make: Callable[[], Made], characters: int, structure: Structure | None) -> Made:
        """Grammars may take long to compile, so they never do on the loop."""
        if structure is None and characters <= self._config.inline_characters_max:
            return make()
        return await asyncio.get_running_loop().run_in_executor(self._threads, make)

    def _asked(
        self, call: Call, model: ServedModel, tokens: list[int], parameters: Parameters, grammar: str
    ) -> _Asked:
        prompt = tuple(tokens)
        # The salt is who authenticated, never what a header says.
        root = hash_root(b"tenant:" + call.tenant.name.encode(), model.identity, model.dtype)
        public = model.public_tokens(prompt)
        if public >= HASH_UNIT:
            root = root_with_public(hash_root(b"public", model.identity, model.dtype), public, root)
        hashed = prompt[: self._config.prefix_hashes_max * HASH_UNIT]
        return _Asked(prompt, parameters, root, pack(chain(root, hashed)), grammar)

    def _generation(
        self, call: Call, model: ServedModel, asked: list[_Asked], *, continues: bool
    ) -> Generation:
        if (problem := name_problem(call.client_id)) is not None:
            raise bad_field(call.client_id_field, problem)
        unique = f"{self._random.getrandbits(64):016x}"
        id = made_id(call.prefix, self._config.id, unique)
        requests = tuple(
            self._request(call, model, one, id if len(asked) == 1 else f"{id}.{number}")
            for number, one in enumerate(asked)
        )
        return Generation(
            id=id,
            names=tuple(dict.fromkeys(name for name in (id, call.client_id) if name)),
            is_shared=call.is_shared,
            model=model,
            created_s=wall_us() // 1_000_000,
            requests=requests,
            stops=asked[0].parameters.stops,
            continues=continues,
            mailbox=Mailbox(self._config.client_buffer_bytes_max),
            driver=self._driver,
            registry=self._names,
            client_id_field=call.client_id_field,
        )

    def _request(self, call: Call, model: ServedModel, asked: _Asked, id: str) -> NewRequest:
        parameters = asked.parameters
        longest_us = int(self._config.deadline_s * 1e6)
        return NewRequest(
            request=id,
            tenant=call.tenant,
            model=model.identity,
            prompt=asked.prompt,
            choices=parameters.choices,
            params=parameters.params,
            seed=self._random.getrandbits(64) if parameters.seed is None else parameters.seed,
            hash_root=asked.hash_root,
            prefix_hashes=asked.prefix_hashes,
            deadline_us=now_us() + min(call.deadline_us or longest_us, longest_us),
            grammar=asked.grammar,
            stop_strings=bool(parameters.stops),
        )


def _grammar(model: ServedModel, structure: Structure | None) -> str:
    return "" if structure is None else model.grammars.compiled(structure)


def _conversation(body: ChatBody) -> Conversation:
    try:
        return Conversation.of(
            body.messages or [],
            tools=None if body.tool_choice == "none" else body.tools or None,
            add_generation_prompt=body.add_generation_prompt is not False,
            variables=body.chat_template_kwargs,
        )
    except TemplateError as error:
        raise bad_field(error.field, error.reason) from error

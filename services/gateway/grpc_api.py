"""baton.v1.Inference: many requests on one stream."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc.aio

from core.ends import End
from core.outcomes import Outcome
from proto import inference_pb2 as api
from proto.inference_pb2_grpc import InferenceServicer
from rpc.logs import Log
from rpc.status import abort, code_number, retry_after_us, status_of
from rpc.streams import Outbox
from services.gateway.actions import Ended
from services.gateway.bodies import SamplingFields
from services.gateway.cancels import Cancels
from services.gateway.choice_text import Piece
from services.gateway.generation import Generation
from services.gateway.http_api import UNKNOWN_KEY
from services.gateway.intake import Call, Intake
from services.gateway.mailbox import Item
from services.gateway.models import ServedModel
from services.gateway.refusal import Refusal, bad_field
from services.gateway.requests import Tenant
from services.gateway.stream_names import Asked, StreamNames
from services.gateway.structured import Structure, structure
from services.gateway.tenants import Tenants
from text.conversation import Conversation, TemplateError

OUTBOX_MESSAGES_MAX = 10_000
"""Messages that may wait for one client; beyond it the stream and its requests end."""
FLUSH_S = 10.0
"""How long the last messages of a stream may take to leave."""
LEAVING = End(Outcome.DRAINING, "this gateway is leaving; a new connection finds another")


class InferenceApi(InferenceServicer):
    """The public API for programs."""

    def __init__(self, intake: Intake, tenants: Tenants, cancels: Cancels, log: Log) -> None:
        self._intake = intake
        self._tenants = tenants
        self._cancels = cancels
        self._log = log
        self.leaving = asyncio.Event()
        """Once set, open streams start nothing more, and end when what they run has."""

    async def Generate(self, request_iterator: Any, context: Any) -> None:
        tenant = await self._tenant(context)
        conversation = _Conversation(self, tenant, context)
        await conversation.run()

    async def Cancel(self, request: api.CancelRequest, context: Any) -> api.CancelResponse:
        tenant = await self._tenant(context)
        return api.CancelResponse(found=await self._cancels.cancel(tenant.name, request.request_id))

    async def ListModels(self, request: api.ListModelsRequest, context: Any) -> api.ListModelsResponse:
        await self._tenant(context)
        models = [
            api.Model(identity=_identity(model), max_positions=model.limits.max_positions)
            for model in self._intake.models.all
        ]
        return api.ListModelsResponse(models=models)

    async def generation(self, tenant: Tenant, start: api.StartGeneration) -> Generation:
        """Raises Refusal naming the field."""
        model = self._intake.models.find(start.model.name, start.model.revision)
        if start.model.adapter:
            raise Refusal(
                End(Outcome.MODEL_NOT_FOUND, f"no adapter {start.model.adapter!r}", "model.adapter")
            )
        call = Call(
            tenant=tenant,
            prefix="gen-",
            client_id=start.client_id,
            client_id_field="client_id",
            is_shared=True,
            deadline_us=start.deadline_ms * 1000,
        )
        fields, logprobs = _sampling(start.sampling)
        wanted = structure_asked(start.sampling)
        kind = start.WhichOneof("prompt")
        if kind == "chat":
            return await self._intake.conversation(call, model, _chat(start.chat), fields, logprobs, wanted)
        if kind is None:
            raise bad_field("prompt", "is missing")
        prompt: str | list[int] = start.text if kind == "text" else list(start.tokens.ids)
        return await self._intake.texts(call, model, [prompt], fields, logprobs, fields.max_tokens, wanted)

    def failed(self, error: Exception) -> None:
        self._log.error("grpc_failed", error=repr(error))

    async def cancel(self, tenant: Tenant, name: str) -> None:
        await self._cancels.cancel(tenant.name, name)

    async def _tenant(self, context: Any) -> Tenant:
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        scheme, _, key = metadata.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
        tenant = self._tenants.of_key(key or metadata.get("x-api-key", ""))
        if tenant is None:
            await abort(context, UNKNOWN_KEY)
        return tenant


class _Conversation:
    """One client stream: its live requests end with it."""

    def __init__(self, service: InferenceApi, tenant: Tenant, context: Any) -> None:
        self._service = service
        self._tenant = tenant
        self._context = context
        self._outbox: Outbox[api.GenerateResponse] = Outbox(OUTBOX_MESSAGES_MAX)
        self._overflowed = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._names = StreamNames()

    async def run(self) -> None:
        """A client may half-close once it has asked for everything: its answers still come.

        A broken stream cancels this coroutine, and with it what runs.
        """
        await self._context.send_initial_metadata(())
        loop = asyncio.get_running_loop()
        writer = loop.create_task(self._outbox.drain_into(self._context.write))
        overflow = loop.create_task(self._overflowed.wait())
        answered = loop.create_task(self._until_answered())
        left = loop.create_task(self._until_left())
        waiting = (writer, overflow, answered, left)
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if overflow not in done and (answered in done or left in done):
                await (answered if answered in done else left)
                await self._outbox.empty(FLUSH_S)
        finally:
            for task in (*waiting, *self._tasks):
                task.cancel()
            await asyncio.gather(*waiting, *self._tasks, return_exceptions=True)
        if self._overflowed.is_set():
            await abort(self._context, End(Outcome.SLOW_CLIENT, "the client does not read its stream"))
        if left in done and answered not in done:
            await abort(self._context, LEAVING)

    async def _until_answered(self) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            self._on_message(message)
        await self._until_idle()

    async def _until_left(self) -> None:
        await self._service.leaving.wait()
        await self._until_idle()

    async def _until_idle(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _on_message(self, message: api.GenerateRequest) -> None:
        kind = message.WhichOneof("message")
        if kind == "start":
            self._start(message.start)
        elif kind == "cancel" and message.cancel.request_id:
            self._spawn(self._service.cancel(self._tenant, message.cancel.request_id))
        elif kind == "cancel":
            self._names.cancel(message.cancel.client_id)

    def _start(self, start: api.StartGeneration) -> None:
        if self._service.leaving.is_set():
            self._send(start.client_id, "", error=_error(LEAVING))
            return
        try:
            asked = self._names.claim(start.client_id)
        except Refusal as refusal:
            self._send(start.client_id, "", error=_error(refusal.end))
            return
        self._spawn(self._answer(start, asked))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _answer(self, start: api.StartGeneration, asked: Asked) -> None:
        request_id = ""
        try:
            generation = await self._service.generation(self._tenant, start)
            request_id = generation.id
            with generation:
                asked.began(lambda: generation.cancel(Outcome.CANCELLED, "cancelled by request"))
                await self._relay(start.client_id, generation)
        except Refusal as refusal:
            self._send(start.client_id, request_id, error=_error(refusal.end))
        except Exception as error:
            # One request's error never ends another's.
            self._service.failed(error)
            self._send(start.client_id, request_id, error=_error(End(Outcome.INTERNAL, "internal error")))
        finally:
            self._names.release(start.client_id, asked)

    async def _relay(self, client_id: str, generation: Generation) -> None:
        accepted = False
        while not generation.done:
            for number, item in await generation.mailbox.take(None):
                if not accepted and not (
                    isinstance(item, Ended) and item.end.outcome is not Outcome.COMPLETED
                ):
                    accepted = True
                    self._send(client_id, generation.id, accepted=_accepted(generation))
                self._relay_one(client_id, generation, number, item)

    def _relay_one(self, client_id: str, generation: Generation, number: int, item: Item) -> None:
        if isinstance(item, Piece):
            generation.note(number, item)
            self._send(client_id, generation.id, tokens=_tokens(item))
        elif isinstance(item, Ended):
            generation.note(number, item)
            if item.end.outcome is Outcome.COMPLETED:
                self._send(client_id, generation.id, finished=_finished(generation))
            else:
                self._send(client_id, generation.id, error=_error(item.end))

    def _send(self, client_id: str, request_id: str, **message: Any) -> None:
        response = api.GenerateResponse(client_id=client_id, request_id=request_id, **message)
        if not self._outbox.put(response):
            self._overflowed.set()


def _identity(model: ServedModel) -> api.ModelIdentity:
    identity = model.identity
    return api.ModelIdentity(name=identity.name, revision=identity.revision, adapter=identity.adapter)


def _sampling(options: api.SamplingOptions) -> tuple[SamplingFields, int | None]:
    """(fields as the HTTP bodies have them, logprobs)."""

    def given(name: str) -> Any:
        return getattr(options, name) if options.HasField(name) else None

    fields = SamplingFields(
        temperature=given("temperature"),
        top_p=given("top_p"),
        top_k=given("top_k"),
        min_p=given("min_p"),
        frequency_penalty=given("frequency_penalty"),
        presence_penalty=given("presence_penalty"),
        repetition_penalty=given("repetition_penalty"),
        logit_bias={str(token): value for token, value in options.logit_bias.items()},
        stop=list(options.stop) or None,
        stop_token_ids=list(options.stop_token_ids),
        max_tokens=given("max_tokens"),
        min_tokens=given("min_tokens"),
        n=given("n"),
        seed=given("seed"),
        ignore_eos=given("ignore_eos"),
    )
    return fields, given("logprobs")


_KINDS = {"json_schema": "json"}
"""Where a field's name is not that of its kind in services/gateway/structured.py."""


def structure_asked(options: api.SamplingOptions) -> Structure | None:
    """What the answers must follow; None: anything. Raises Refusal naming the field."""
    if not options.HasField("structure"):
        return None
    name = options.structure.WhichOneof("kind")
    if name is None:
        raise bad_field("sampling.structure", "names no kind")
    value = getattr(options.structure, name)
    value = list(value.texts) if name == "choice" else value
    strict = not options.structure.lenient
    return structure(_KINDS.get(name, name), value, f"sampling.structure.{name}", strict=strict)


def _chat(chat: api.Chat) -> Conversation:
    messages = [{"role": message.role, "content": message.content} for message in chat.messages]
    try:
        return Conversation.of(messages)
    except TemplateError as error:
        raise bad_field(f"chat.{error.field}", error.reason) from error


def _accepted(generation: Generation) -> api.Accepted:
    prompt_tokens = sum(len(request.prompt) for request in generation.requests)
    return api.Accepted(model=_identity(generation.model), prompt_tokens=prompt_tokens)


def _tokens(piece: Piece) -> api.Tokens:
    logprobs = [
        api.TokenLogprob(
            id=token,
            logprob=one.logprob,
            top_ids=[other for other, _ in one.top],
            top_logprobs=[value for _, value in one.top],
        )
        for token, one in zip(piece.tokens, piece.logprobs, strict=False)
    ]
    return api.Tokens(
        choice=piece.choice,
        first_index=piece.first_index,
        ids=piece.tokens,
        text=piece.text,
        logprobs=logprobs,
    )


def _finished(generation: Generation) -> api.Finished:
    usage = generation.usage
    choices = [
        api.ChoiceFinish(choice=choice, reason=generation.finishes[choice].value)
        for choice in sorted(generation.finishes)
    ]
    return api.Finished(
        choices=choices,
        usage=api.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
        ),
    )


def _error(end: End) -> api.Error:
    wait_us = retry_after_us(end)
    return api.Error(
        reason=end.outcome.value,
        message=end.message or end.outcome.value.replace("_", " "),
        field=end.field,
        retry_after_ms=0 if wait_us is None else -(-wait_us // 1000),
        code=code_number(status_of(end.outcome).code),
    )

"""What each HTTP path answers."""

from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry

from core.ends import End
from core.outcomes import Outcome
from rpc.logs import Log
from rpc.metrics import exposition
from services.gateway.bodies import ChatBody, CompletionBody, parsed
from services.gateway.cancels import Cancels
from services.gateway.config import GatewayConfig
from services.gateway.fleet import Fleet
from services.gateway.generation import Generation
from services.gateway.http_call import HttpCall, Receive, Send, while_connected
from services.gateway.intake import Call, Intake
from services.gateway.openai_format import ChatFormat, CompletionFormat, Format, model_body
from services.gateway.refusal import Refusal
from services.gateway.request_names import name_problem
from services.gateway.requests import Tenant
from services.gateway.sse import fail, stream, whole
from services.gateway.tenants import Tenants

Handler = Callable[[HttpCall], Awaitable[None]]

UNKNOWN_KEY = End(Outcome.UNAUTHENTICATED, "this API key is not known")


class HttpApi:
    """The ASGI application of one gateway process."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        intake: Intake,
        tenants: Tenants,
        cancels: Cancels,
        fleet: Fleet,
        registry: CollectorRegistry,
        is_ready: Callable[[], bool],
        started_s: int,
        log: Log,
    ) -> None:
        self._config = config
        self._intake = intake
        self._tenants = tenants
        self._cancels = cancels
        self._fleet = fleet
        self._registry = registry
        self._is_ready = is_ready
        self._started_s = started_s
        self._log = log
        self._paths: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ready": {"GET": self._ready},
            "/metrics": {"GET": self._metrics},
            "/fleet": {"GET": self._show_fleet},
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call = HttpCall(scope, receive, send)
        client_id = call.header("x-request-id")
        if client_id and name_problem(client_id) is None:
            call.response_headers.append(("x-request-id", client_id))
        try:
            await self._route(call)(call)
        except Refusal as refusal:
            await fail(call, refusal.end)
        except ConnectionError:
            return
        except Exception as error:
            # One request's error never ends another's; this is a bug, told to whoever reads the log.
            self._log.error("http_failed", path=call.path, error=repr(error))
            await fail(call, End(Outcome.INTERNAL, "internal error"))
            raise

    def _route(self, call: HttpCall) -> Handler:
        methods = self._paths.get(call.path) or self._deep(call.path)
        if methods is None:
            return self._not_found
        handler = methods.get("GET" if call.method == "HEAD" else call.method)
        return handler or self._wrong_method(methods)

    def _deep(self, path: str) -> dict[str, Handler] | None:
        parts = path.split("/")
        if path.startswith("/v1/models/") and parts[3]:
            return {"GET": self._model}
        if len(parts) == 5 and parts[:3] == ["", "v1", "requests"] and parts[3] and parts[4] == "cancel":
            return {"POST": self._cancel}
        return None

    def _tenant(self, call: HttpCall) -> Tenant:
        scheme, _, key = call.header("authorization").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
        tenant = self._tenants.of_key(key or call.header("x-api-key"))
        if tenant is None:
            raise Refusal(UNKNOWN_KEY)
        return tenant

    # Answers.

    async def _chat(self, call: HttpCall) -> None:
        tenant = self._tenant(call)
        body = parsed(ChatBody, await call.body(self._config.body_bytes_max))
        generation = await self._intake.chat(self._call(call, tenant, "chatcmpl-"), body)
        format = ChatFormat(generation, _include_usage(body))
        await self._generate(call, generation, format, bool(body.stream))

    async def _completion(self, call: HttpCall) -> None:
        tenant = self._tenant(call)
        body = parsed(CompletionBody, await call.body(self._config.body_bytes_max))
        generation = await self._intake.completion(self._call(call, tenant, "cmpl-"), body)
        format = CompletionFormat(generation, _include_usage(body))
        await self._generate(call, generation, format, bool(body.stream))

    def _call(self, call: HttpCall, tenant: Tenant, prefix: str) -> Call:
        return Call(tenant=tenant, prefix=prefix, client_id=call.header("x-request-id"))

    async def _generate(self, call: HttpCall, generation: Generation, format: Format, streamed: bool) -> None:
        if not call.response_headers:
            call.response_headers.append(("x-request-id", generation.id))
        keep_alive_s = self._config.keep_alive_s
        with generation:
            generation.mailbox.on_overflow = call.abort
            answer = (
                stream(call, generation, format, keep_alive_s)
                if streamed
                else whole(call, generation, format, keep_alive_s)
            )
            await while_connected(call, answer, lambda: generation.cancel(Outcome.CANCELLED))

    async def _cancel(self, call: HttpCall) -> None:
        tenant = self._tenant(call)
        request = call.path.split("/")[3]
        if not await self._cancels.cancel(tenant.name, request):
            raise Refusal(End(Outcome.REQUEST_NOT_FOUND, f"no live request {request!r}", "id"))
        await call.json(200, {"id": request, "object": "request.cancelled", "cancelled": True})

    # Facts.

    async def _models(self, call: HttpCall) -> None:
        self._tenant(call)
        models = [model_body(model, self._started_s) for model in self._intake.models.all]
        await call.json(200, {"object": "list", "data": models})

    async def _model(self, call: HttpCall) -> None:
        self._tenant(call)
        model = self._intake.models.find(call.path.removeprefix("/v1/models/"))
        await call.json(200, model_body(model, self._started_s))

    async def _health(self, call: HttpCall) -> None:
        await call.json(200, {"status": "ok"})

    async def _ready(self, call: HttpCall) -> None:
        if not self._is_ready():
            raise Refusal(End(Outcome.NO_WORKER, "no router or no worker is reachable yet"))
        await call.json(200, {"status": "ready"})

    async def _metrics(self, call: HttpCall) -> None:
        page, content_type = exposition(self._registry)
        await call.respond(200, page, content_type)

    async def _show_fleet(self, call: HttpCall) -> None:
        tenants = not self._tenants.configured
        if not tenants and (call.header("authorization") or call.header("x-api-key")):
            tenants = self._tenant(call).admin
        await call.json(200, await self._fleet.state(tenants))

    async def _not_found(self, call: HttpCall) -> None:
        raise Refusal(End(Outcome.REQUEST_NOT_FOUND, f"there is no {call.path}"))

    def _wrong_method(self, methods: dict[str, Handler]) -> Handler:
        async def answer(call: HttpCall) -> None:
            problem = {"message": f"use {', '.join(methods)}", "type": "invalid_request_error"}
            body = {"error": {**problem, "param": None, "code": "method_not_allowed"}}
            await call.json(405, body, [("allow", ", ".join(methods))])

        return answer


def _include_usage(body: ChatBody | CompletionBody) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)

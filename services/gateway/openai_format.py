"""How answers look to OpenAI's clients: chunks of a stream, whole responses, errors."""

from dataclasses import dataclass, field
from typing import Any

from core.ends import End
from core.outcomes import FinishReason
from rpc.status import status_of
from services.gateway.choice_text import Piece
from services.gateway.generation import Generation, Usage
from services.gateway.models import ServedModel
from text.tokenizer import Tokenizer

Json = dict[str, Any]


def error_body(end: End) -> Json:
    status = status_of(end.outcome)
    message = end.message or end.outcome.value.replace("_", " ")
    return {
        "error": {
            "message": message,
            "type": status.error_type,
            "param": end.field or None,
            "code": end.outcome.value,
        }
    }


def usage_body(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def model_body(model: ServedModel, created_s: int) -> Json:
    return {
        "id": model.identity.name,
        "object": "model",
        "created": created_s,
        "owned_by": "baton",
        "root": str(model.identity),
        "max_model_len": model.limits.max_positions,
    }


@dataclass(slots=True)
class _Gathered:
    """One choice of a whole response."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    finish: FinishReason | None = None


class ChatFormat:
    """chat.completion and chat.completion.chunk."""

    def __init__(self, generation: Generation, include_usage: bool = False) -> None:
        self._generation = generation
        self._include_usage = include_usage
        self._begun: dict[int, None] = {}
        self._gathered = [_Gathered() for _ in range(generation.choices)]

    def chunks(self, choice: int, piece: Piece) -> list[Json]:
        """The role chunk first, then text, then the finish in a chunk of its own."""
        made = []
        if choice not in self._begun:
            self._begun[choice] = None
            made.append(self._chunk(choice, {"role": "assistant", "content": ""}, None, None))
        logprobs = self._logprobs(piece)
        if piece.text or (logprobs is not None and logprobs["content"]):
            made.append(self._chunk(choice, {"content": piece.text}, logprobs, None))
        if piece.finish is not None:
            made.append(self._chunk(choice, {}, None, piece.finish))
        return made

    def usage_chunk(self) -> Json | None:
        return self._frame([], usage_body(self._generation.usage)) if self._include_usage else None

    def gather(self, choice: int, piece: Piece) -> None:
        gathered = self._gathered[choice]
        gathered.texts.append(piece.text)
        logprobs = self._logprobs(piece)
        if logprobs is not None:
            gathered.logprobs += logprobs["content"]
        gathered.finish = piece.finish or gathered.finish

    def whole(self) -> Json:
        asked = self._generation.requests[0].params.logprobs is not None
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(one.texts), "refusal": None},
                "logprobs": {"content": one.logprobs, "refusal": None} if asked else None,
                "finish_reason": one.finish,
            }
            for index, one in enumerate(self._gathered)
        ]
        body = _head(self._generation, "chat.completion")
        return {**body, "choices": choices, "usage": usage_body(self._generation.usage)}

    def _chunk(self, choice: int, delta: Json, logprobs: Json | None, finish: FinishReason | None) -> Json:
        body = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._frame([body], None)

    def _frame(self, choices: list[Json], usage: Json | None) -> Json:
        body = {**_head(self._generation, "chat.completion.chunk"), "choices": choices}
        return {**body, "usage": usage} if self._include_usage else body

    def _logprobs(self, piece: Piece) -> Json | None:
        if not piece.logprobs:
            return None
        tokenizer = self._generation.model.tokenizer
        shown = len(piece.tokens) - piece.stop_token
        content = []
        for token, logprobs in zip(piece.tokens[:shown], piece.logprobs, strict=False):
            top = [_chat_token(tokenizer, other, logprob) for other, logprob in logprobs.top]
            content.append({**_chat_token(tokenizer, token, logprobs.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}


class CompletionFormat:
    """text_completion, whole and in chunks."""

    def __init__(self, generation: Generation, include_usage: bool = False) -> None:
        self._generation = generation
        self._include_usage = include_usage
        self._offsets = [0] * generation.choices
        self._gathered = [_Gathered() for _ in range(generation.choices)]

    def chunks(self, choice: int, piece: Piece) -> list[Json]:
        logprobs = self._logprobs(choice, piece)
        if not piece.text and piece.finish is None and logprobs is None:
            return []
        body = {"index": choice, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish}
        return [self._frame([body], None)]

    def usage_chunk(self) -> Json | None:
        return self._frame([], usage_body(self._generation.usage)) if self._include_usage else None

    def gather(self, choice: int, piece: Piece) -> None:
        gathered = self._gathered[choice]
        gathered.texts.append(piece.text)
        logprobs = self._logprobs(choice, piece)
        if logprobs is not None:
            gathered.logprobs.append(logprobs)
        gathered.finish = piece.finish or gathered.finish

    def whole(self) -> Json:
        asked = self._generation.requests[0].params.logprobs is not None
        choices = [
            {
                "index": index,
                "text": "".join(one.texts),
                "logprobs": _joined(one.logprobs) if asked else None,
                "finish_reason": one.finish,
            }
            for index, one in enumerate(self._gathered)
        ]
        body = _head(self._generation, "text_completion")
        return {**body, "choices": choices, "usage": usage_body(self._generation.usage)}

    def _frame(self, choices: list[Json], usage: Json | None) -> Json:
        body = {**_head(self._generation, "text_completion"), "choices": choices}
        return {**body, "usage": usage} if self._include_usage else body

    def _logprobs(self, choice: int, piece: Piece) -> Json | None:
        if not piece.logprobs:
            return None
        tokenizer = self._generation.model.tokenizer
        made = _joined([])
        for token, logprobs in zip(piece.tokens, piece.logprobs, strict=False):
            if piece.stop_token and len(made["tokens"]) == len(piece.tokens) - 1:
                break
            text = tokenizer.token_text(token)
            made["tokens"].append(text)
            made["token_logprobs"].append(logprobs.logprob)
            made["top_logprobs"].append({tokenizer.token_text(other): value for other, value in logprobs.top})
            made["text_offset"].append(self._offsets[choice])
            self._offsets[choice] += len(text)
        return made


Format = ChatFormat | CompletionFormat


def _head(generation: Generation, kind: str) -> Json:
    return {
        "id": generation.id,
        "object": kind,
        "created": generation.created_s,
        "model": generation.model.identity.name,
    }


def _chat_token(tokenizer: Tokenizer, token: int, logprob: float) -> Json:
    return {
        "token": tokenizer.token_text(token),
        "logprob": logprob,
        "bytes": list(tokenizer.token_bytes(token)),
    }


def _joined(parts: list[Json]) -> Json:
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [item for part in parts for item in part[name]] for name in names}

"""Which models are served, and how each turns text into tokens."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from core.ends import End
from core.outcomes import Outcome
from core.request import ModelIdentity
from services.gateway.config import ModelConfig
from services.gateway.parameters import ModelLimits
from services.gateway.refusal import Refusal, bad_field
from services.gateway.structured import Grammars
from text.chat_template import ChatTemplate
from text.conversation import Conversation, TemplateError
from text.tokenizer import Tokenizer, TokenizerError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model's text side; immutable, shared by threads."""

    identity: ModelIdentity
    dtype: str
    limits: ModelLimits
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None: a base model, which cannot chat."""
    grammars: Grammars
    public_prefixes: tuple[tuple[int, ...], ...] = ()
    """Token ids of prompt beginnings whose KV all tenants share."""

    @classmethod
    def open(cls, config: ModelConfig, now: datetime) -> "ServedModel":
        """Raises TokenizerError naming the file, or TemplateError for an unusable template."""
        tokenizer = Tokenizer.open(Path(config.folder))
        template = _template(config)
        limits = ModelLimits(config.max_positions, tokenizer.vocab_size, tokenizer.eos_token_ids)
        identity = ModelIdentity(config.name, config.revision)
        grammars = Grammars(tokenizer)
        model = cls(identity, config.dtype, limits, tokenizer, template, grammars)
        prefixes = tuple(model._public_prefix(text, now) for text in config.public_system_prompts)
        return replace(model, public_prefixes=prefixes)

    def conversation_tokens(self, conversation: Conversation, now: datetime) -> list[int]:
        """Token ids of a chat. Raises Refusal naming the field."""
        if self.template is None:
            raise bad_field("model", f"{self.identity.name} has no chat template")
        try:
            return self.template.encode(self.tokenizer, conversation, now)
        except TemplateError as error:
            raise bad_field(error.field, error.reason) from error
        except TokenizerError as error:
            raise bad_field("messages", str(error)) from error

    def prompt_tokens(self, prompt: str | list[int], field: str) -> list[int]:
        """Token ids of a completion's prompt. Raises Refusal naming the field."""
        if isinstance(prompt, str):
            try:
                return self.tokenizer.encode(prompt, special=True)
            except TokenizerError as error:
                raise bad_field(field, str(error)) from error
        for position, token in enumerate(prompt):
            if not 0 <= token < self.limits.vocabulary:
                raise bad_field(f"{field}[{position}]", f"{token} is not a token id of this model")
        return prompt

    def public_tokens(self, tokens: tuple[int, ...]) -> int:
        """How many of a prompt's first tokens are public; 0: none."""
        begun = [len(prefix) for prefix in self.public_prefixes if tokens[: len(prefix)] == prefix]
        return max(begun, default=0)

    def _public_prefix(self, system_prompt: str, now: datetime) -> tuple[int, ...]:
        """What two conversations with this system prompt and different users begin with."""
        system = {"role": "system", "content": system_prompt}
        both = [
            self.conversation_tokens(Conversation.of([system, {"role": "user", "content": letter}]), now)
            for letter in "ab"
        ]
        same = next((i for i, (a, b) in enumerate(zip(*both, strict=False)) if a != b), 0)
        return tuple(both[0][:same])


def _template(config: ModelConfig) -> ChatTemplate | None:
    try:
        return ChatTemplate.open(Path(config.folder))
    except TemplateError as error:
        if error.field == "model":
            return None
        raise


class Models:
    """All served models, by the names clients use."""

    def __init__(self, models: tuple[ServedModel, ...]) -> None:
        assert models
        self.all = models

    def find(self, name: str | None, revision: str = "") -> ServedModel:
        """None or empty: the first. A name may carry its revision, as name@revision. Raises Refusal."""
        if not name:
            return self.all[0]
        bare, _, at_revision = name.partition("@")
        for model in self.all:
            wanted = revision or at_revision
            names = (name, bare) if at_revision else (name,)
            if model.identity.name in names and wanted in ("", model.identity.revision):
                return model
        raise Refusal(End(Outcome.MODEL_NOT_FOUND, f"the model {name!r} is not served here", "model"))

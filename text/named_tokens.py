"""Which token ids a model's configuration files give a role such as EOS."""

from collections.abc import Callable, Mapping, Sequence

CONFIG_NAMES = ("generation_config.json", "config.json", "tokenizer_config.json")
"""In the order they are searched."""


def named_ids(
    configs: Sequence[Mapping[str, object]], name: str, id_of: Callable[[str, str], int]
) -> tuple[int, ...]:
    """All ids the configs give for `name`_token_id (int or list) or `name`_token, first named first.

    id_of(content, field) answers the id of a token given by its text; what it raises passes through.
    """
    found: list[int] = []
    for config in configs:
        value = config.get(f"{name}_token_id")
        found.extend(
            item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)
        )
        token = config.get(f"{name}_token")
        content = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(content, str):
            found.append(id_of(content, f"{name}_token"))
    return tuple(dict.fromkeys(found))

"""The definition of a tokenizer that knows control tokens by their stand-ins only."""

import json
from collections.abc import Mapping

from text.control_guard import stand_in


def literal_twin(definition: str) -> str:
    """A tokenizer.json equal to `definition` but for the names of its control tokens.

    Each special added token keeps its id and is called `stand_in(id)`, in the added tokens and in the
    model's vocabulary, so that no text but the stand-in becomes the token. Post-processors name tokens by id
    and stay.
    """
    fields = json.loads(definition)
    added = [token for token in fields.get("added_tokens", []) if token.get("special")]
    names = {token["content"]: stand_in(token["id"]) for token in added}
    fields["added_tokens"] = [_renamed_added(token, names) for token in fields.get("added_tokens", [])]
    fields["model"] = _renamed_model(fields["model"], names)
    return json.dumps(fields)


def _renamed_added(token: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
    if not token.get("special"):
        return token
    # Normalizers may drop noncharacters, so the stand-in is looked for before they run.
    return {**token, "content": names[str(token["content"])], "normalized": False}


def _renamed_model(model: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
    renamed = dict(model)
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        renamed["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocabulary.items()}
    elif isinstance(vocabulary, list):  # Unigram: [piece, score] in order of id
        renamed["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    unknown = model.get("unk_token")
    if isinstance(unknown, str):
        renamed["unk_token"] = names.get(unknown, unknown)
    return renamed

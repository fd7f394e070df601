"""JSON schemas of every kind clients send, each a function of its number."""

from random import Random
from typing import Any

WORDS = ("name", "age", "city", "score", "tags", "price", "kind", "active", "note", "size", "parts", "origin")
DEPTH_MAX = 3


def random_schema(number: int) -> dict[str, Any]:
    """An object at the top, as structured answers are; bounded everywhere, so that an answer ends."""
    random = Random(number)
    schema = _object(random, 0)
    if random.random() < 0.15:
        schema["$defs"] = {"shared": _value(random, DEPTH_MAX - 1)}
        schema["properties"]["shared"] = {"$ref": "#/$defs/shared"}
        schema["required"].append("shared")
    return schema


def _value(random: Random, depth: int) -> dict[str, Any]:
    leaves = [_string, _integer, _number, _enum, _literal, _pattern]
    nested = [_object, _array, _either]
    return random.choice(leaves if depth >= DEPTH_MAX else leaves + nested)(random, depth)


def _object(random: Random, depth: int) -> dict[str, Any]:
    names = random.sample(WORDS, random.randint(1, 4))
    required = [name for name in names if random.random() < 0.7]
    properties = {name: _value(random, depth + 1) for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _array(random: Random, depth: int) -> dict[str, Any]:
    least = random.randint(0, 2)
    return {
        "type": "array",
        "items": _value(random, depth + 1),
        "minItems": least,
        "maxItems": least + random.randint(0, 2),
    }


def _either(random: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(random, depth + 1), {"type": "null"}]}


def _string(random: Random, depth: int) -> dict[str, Any]:
    least = random.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + random.randint(1, 16)}


def _integer(random: Random, depth: int) -> dict[str, Any]:
    low = random.randint(-1000, 1000)
    return {"type": "integer", "minimum": low, "maximum": low + random.randint(0, 2000)}


def _number(random: Random, depth: int) -> dict[str, Any]:
    low = round(random.uniform(-100, 100), 2)
    return {"type": "number", "minimum": low, "exclusiveMaximum": low + random.randint(1, 100)}


def _enum(random: Random, depth: int) -> dict[str, Any]:
    return {
        "enum": random.sample(
            ["red", "green", 'say "no"', "naïve ☂", 3, 4.5, True, None], random.randint(1, 4)
        )
    }


def _literal(random: Random, depth: int) -> dict[str, Any]:
    return random.choice(
        [{"type": "boolean"}, {"type": "null"}, {"const": "fixed"}, {"type": ["boolean", "null"]}]
    )


def _pattern(random: Random, depth: int) -> dict[str, Any]:
    return {
        "type": "string",
        "pattern": random.choice(
            [r"^[A-Z]{2}-\d{3}$", r"^(on|off)$", r"^[a-f0-9]{4,8}$", r"^\w{1,6}@\w{1,6}\.org$"]
        ),
    }

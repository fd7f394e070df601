"""Who a key belongs to."""

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import cast

from core.request import TenantClass
from services.gateway.requests import Tenant

DEFAULT_TENANT = Tenant("default", admin=True)
_CLASSES = {tenant_class.name.lower(): tenant_class for tenant_class in TenantClass}
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "key": str,
    "key_sha256": str,
    "weight": (int, float),
    "class": str,
    "concurrency": int,
    "tokens_per_minute": int,
    "admin": bool,
}


class TenantsError(Exception):
    """The tenants file cannot be used; one line that names the entry and the field."""


class Tenants:
    """All tenants by key. Without a file, every key and none is the tenant "default"."""

    def __init__(self, by_key_sha256: Mapping[str, Tenant] | None = None) -> None:
        self._by_key_sha256 = None if by_key_sha256 is None else dict(by_key_sha256)

    @classmethod
    def parse(cls, text: str) -> "Tenants":
        """The content of a tenants file. Raises TenantsError."""
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise TenantsError(f"not TOML: {error}") from error
        for name in found:
            if name != "tenant":
                raise TenantsError(f"{name}: unknown; entries are [[tenant]]")
        entries = found.get("tenant")
        if not isinstance(entries, list) or not entries:
            raise TenantsError("tenant: there is no [[tenant]] entry")
        return cls(_by_key(entries))

    @property
    def configured(self) -> bool:
        """Whether keys are checked at all."""
        return self._by_key_sha256 is not None

    def of_key(self, key: str) -> Tenant | None:
        """None: no tenant has this key."""
        if self._by_key_sha256 is None:
            return DEFAULT_TENANT
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        return self._by_key_sha256.get(digest)


def _by_key(entries: Sequence[object]) -> dict[str, Tenant]:
    found: dict[str, Tenant] = {}
    names: dict[str, int] = {}
    for position, entry in enumerate(entries):
        place = f"tenant[{position}]"
        if not isinstance(entry, Mapping):
            raise TenantsError(f"{place}: must be a table")
        fields = cast(Mapping[str, object], entry)
        _check_types(fields, place)
        tenant = _tenant(fields, place)
        if tenant.name in names:
            raise TenantsError(f"{place}.name: {tenant.name!r} is already tenant[{names[tenant.name]}]")
        names[tenant.name] = position
        digest = _key_sha256(fields, place)
        if digest in found:
            raise TenantsError(f"{place}.key: tenant {found[digest].name!r} has the same key")
        found[digest] = tenant
    return found


def _check_types(entry: Mapping[str, object], place: str) -> None:
    for name, value in entry.items():
        if name not in _FIELDS:
            raise TenantsError(f"{place}.{name}: unknown; known are {', '.join(_FIELDS)}")
        wrong_bool = isinstance(value, bool) and _FIELDS[name] is not bool
        if wrong_bool or not isinstance(value, _FIELDS[name]):
            raise TenantsError(f"{place}.{name}: wrong type, {value!r}")


def _tenant(entry: Mapping[str, object], place: str) -> Tenant:
    name = str(entry.get("name", ""))
    if not name:
        raise TenantsError(f"{place}.name: is missing")
    place = f"{place} ({name})"
    word = str(entry.get("class", "standard"))
    if word not in _CLASSES:
        raise TenantsError(f"{place}.class: {word!r} is none of {', '.join(_CLASSES)}")
    weight = float(cast(float, entry.get("weight", 1.0)))
    if not 0 < weight <= 1e6:
        raise TenantsError(f"{place}.weight: must be above 0 and at most a million, not {weight}")
    limits = {}
    for limit in ("concurrency", "tokens_per_minute"):
        limits[limit] = cast(int, entry.get(limit, 0))
        if limits[limit] < 0:
            raise TenantsError(f"{place}.{limit}: must not be negative; 0 is no limit")
    return Tenant(name, _CLASSES[word], weight, **limits, admin=bool(entry.get("admin", False)))


def _key_sha256(entry: Mapping[str, object], place: str) -> str:
    given = [name for name in ("key", "key_sha256") if entry.get(name)]
    if len(given) != 1:
        raise TenantsError(f"{place}.key: give either key or key_sha256")
    value = str(entry[given[0]])
    if given == ["key"]:
        return hashlib.sha256(value.encode()).hexdigest()
    if len(value) != 64 or any(character not in "0123456789abcdef" for character in value.lower()):
        raise TenantsError(f"{place}.key_sha256: must be 64 hexadecimal digits")
    return value.lower()

"""The tenants file: who a key belongs to, and one clear line for each mistake."""

import hashlib

import pytest

from core.request import TenantClass
from services.gateway.tenants import Tenants, TenantsError

GOOD = f"""
[[tenant]]
name = "a"
key = "key-a"
class = "batch"
weight = 2
concurrency = 3
tokens_per_minute = 1000
[[tenant]]
name = "b"
key_sha256 = "{hashlib.sha256(b"key-b").hexdigest().upper()}"
admin = true
"""


def test_keys() -> None:
    tenants = Tenants.parse(GOOD)
    a, b = tenants.of_key("key-a"), tenants.of_key("key-b")
    assert a is not None and b is not None
    assert (a.name, a.tenant_class, a.weight, a.concurrency) == ("a", TenantClass.BATCH, 2.0, 3)
    assert (a.tokens_per_minute, a.admin) == (1000, False)
    assert (b.name, b.tenant_class, b.weight, b.admin) == ("b", TenantClass.STANDARD, 1.0, True)
    assert tenants.configured
    for wrong in ("", "key-c", "key-a ", hashlib.sha256(b"key-b").hexdigest()):
        assert tenants.of_key(wrong) is None


def test_without_a_file_every_key_is_the_default_tenant() -> None:
    tenants = Tenants()
    found = tenants.of_key("anything")
    assert found is not None and found.name == "default" and found is tenants.of_key("")
    assert not tenants.configured


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x", "not TOML"),
        ("", "tenant: there is no"),
        ("[tenants]", "tenants: unknown"),
        ("tenant = 3", "tenant: there is no"),
        ("tenant = [3]", "tenant[0]: must be a table"),
        ('[[tenant]]\nkey = "k"', "tenant[0].name: is missing"),
        ('[[tenant]]\nname = "a"', "tenant[0].key: give either"),
        ('[[tenant]]\nname = "a"\nkey = "k"\nkey_sha256 = "00"', "tenant[0].key: give either"),
        ('[[tenant]]\nname = "a"\nkey_sha256 = "00"', "tenant[0].key_sha256: must be 64"),
        ('[[tenant]]\nname = "a"\nkey = 3', "tenant[0].key: wrong type, 3"),
        ('[[tenant]]\nname = "a"\nkey = "k"\nweigth = 1', "tenant[0].weigth: unknown"),
        ('[[tenant]]\nname = "a"\nkey = "k"\nweight = 0', "tenant[0] (a).weight: must be above 0"),
        ('[[tenant]]\nname = "a"\nkey = "k"\nweight = nan', "tenant[0] (a).weight: must be above 0"),
        ('[[tenant]]\nname = "a"\nkey = "k"\nweight = true', "tenant[0].weight: wrong type"),
        ('[[tenant]]\nname = "a"\nkey = "k"\nclass = "fast"', "tenant[0] (a).class: 'fast' is none of"),
        ('[[tenant]]\nname = "a"\nkey = "k"\nconcurrency = -1', "tenant[0] (a).concurrency: must not"),
        (
            '[[tenant]]\nname = "a"\nkey = "k"\n[[tenant]]\nname = "a"\nkey = "l"',
            "tenant[1].name: 'a' is already tenant[0]",
        ),
        (
            '[[tenant]]\nname = "a"\nkey = "k"\n[[tenant]]\nname = "b"\nkey = "k"',
            "tenant[1].key: tenant 'a' has the same key",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_it(text: str, line: str) -> None:
    with pytest.raises(TenantsError) as caught:
        Tenants.parse(text)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)

"""Request ids: who owns one, and whose it is."""

import pytest

from services.gateway.request_names import RequestNames, made_id, name_problem, owner_of


@pytest.mark.parametrize("gateway", ["gateway-0", "g", "a.b_c-d-e"])
def test_an_id_names_its_gateway(gateway: str) -> None:
    assert owner_of(made_id("chatcmpl-", gateway, "00ff")) == gateway
    assert owner_of(made_id("cmpl-", gateway, "00ff") + ".3") == gateway


@pytest.mark.parametrize("name", ["", "mine", "chatcmpl-x", "x-gateway-0-00ff"])
def test_a_clients_own_id_names_nobody(name: str) -> None:
    assert owner_of(name) is None


def test_names_are_the_tenants_own() -> None:
    names = RequestNames()
    assert names.claim("a", ("id-1", "mine"), ("r1", "r2")) is None
    assert names.claim("b", ("id-2", "mine"), ("r3",)) is None, "another tenant may use the same"
    assert names.find("a", "mine") == names.find("a", "id-1") == ("r1", "r2")
    assert names.find("b", "id-1") == () and names.find("b", "mine") == ("r3",)


def test_a_taken_name_claims_nothing() -> None:
    names = RequestNames()
    names.claim("a", ("id-1", "mine"), ("r1",))
    assert names.claim("a", ("id-2", "mine"), ("r2",)) == "mine"
    assert names.find("a", "id-2") == (), "all or none"
    names.release("a", ("id-1", "mine"))
    assert names.claim("a", ("id-2", "mine"), ("r2",)) is None and len(names) == 2


def test_what_a_name_may_be() -> None:
    assert name_problem("any printable ASCII: ~!@") is None and name_problem("x" * 128) is None
    assert all(name_problem(name) for name in ("x" * 129, "tab\t", "é"))

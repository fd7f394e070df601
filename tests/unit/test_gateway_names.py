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
    names.claim("a", ("id-1", "mine"), ("r1", "r2"))
    assert names.taken("b", ("id-2", "mine")) is None, "another tenant may use the same"
    names.claim("b", ("id-2", "mine"), ("r3",))
    assert names.find("a", "mine") == names.find("a", "id-1") == ("r1", "r2")
    assert names.find("b", "id-1") == () and names.find("b", "mine") == ("r3",)


def test_a_name_is_taken_until_its_call_ends() -> None:
    names = RequestNames()
    names.claim("a", ("id-1", "mine"), ("r1",))
    assert names.taken("a", ("id-2", "mine")) == "mine"
    names.release("a", ("id-1", "mine"), ("r1",))
    assert names.taken("a", ("id-2", "mine")) is None and len(names) == 0


def test_a_shared_name_means_all_who_have_it() -> None:
    names = RequestNames()
    names.claim("a", ("id-1", "mine"), ("r1",))
    names.claim("a", ("id-2", "mine"), ("r2",))
    assert names.find("a", "mine") == ("r1", "r2")
    for _ in range(2):
        names.release("a", ("id-1", "mine"), ("r1",))
    assert names.find("a", "mine") == ("r2",) and names.find("a", "id-1") == ()
    names.release("a", ("id-2", "mine"), ("r2",))
    assert len(names) == 0


def test_what_a_name_may_be() -> None:
    assert name_problem("any printable ASCII: ~!@") is None and name_problem("x" * 128) is None
    assert all(name_problem(name) for name in ("x" * 129, "tab\t", "é"))

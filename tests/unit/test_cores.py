"""How the command line names the cores that a role may use."""

import argparse

import pytest

from baton.main import _role_cores


def test_one_flag_may_name_several_roles() -> None:
    assert _role_cores("prefill=0") == {"prefill": (0,)}
    assert _role_cores("prefill=0,decode=0-0,0,router=0") == {
        "prefill": (0,),
        "decode": (0, 0),
        "router": (0,),
    }


@pytest.mark.parametrize(
    "text", ["prefill", "0", "prefill=0,cook=0", "prefill=0,=0", "prefill=", "prefill=x"]
)
def test_what_is_wrong_is_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        _role_cores(text)

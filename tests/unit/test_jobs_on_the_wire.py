"""One job is the same at the gateway, at its home and at the prefill worker."""

import pytest

from core.request import AttemptKey, Choice, InstanceKey, Leg, ModelIdentity, Role, TenantClass
from core.sampling import SamplingParams
from decode_worker.actions import AskPrefill
from decode_worker.wire import ask_to_wire
from decode_worker.wire import start_from_wire as start_at_home
from kv_transfer.types import TransferKey
from prefill_worker.wire import start_from_wire as start_at_helper
from proto import decode_pb2
from rpc.errors import FieldError
from services.gateway.actions import Start
from services.gateway.requests import Tenant
from services.gateway.wire import to_worker
from sim.messages import start_request

MODEL = ModelIdentity("m", "r1")
HELPER = InstanceKey("prefill-0", "1", MODEL)
START = Start(
    worker="decode-0",
    key=AttemptKey("r", 2),
    model=MODEL,
    tenant=Tenant("t", TenantClass.BATCH, weight=3.0),
    prompt=(1, 2, 3),
    choices=(Choice(0), Choice(1)),
    params=SamplingParams(temperature=0.5, max_tokens=8),
    seed=9,
    hash_root=b"12345678",
    legs=(Leg(Role.PREFILL, HELPER, "p:1", 7, "float32"),),
    fallback="never",
    deadline_us=2_000,
    router="router-0",
    grammar="root",
)


def test_a_job_survives_both_hand_overs() -> None:
    told = start_at_home(to_worker(START, 1_000).start)
    assert told == start_request(START, 1_000), "the simulator's shortcut says the same"
    assert (told.job.tenant, told.job.tenant_weight) == ("t", 3.0)
    ask = AskPrefill(HELPER, "p:1", TransferKey(5, 6), told.job, True, 900, "router-0", 7)
    assert start_at_helper(ask_to_wire(ask).start).job == told.job


def test_a_weight_from_an_older_or_a_wrong_peer() -> None:
    message: decode_pb2.Start = to_worker(START, 1_000).start
    message.tenant_weight = 0
    assert start_at_home(message).job.tenant_weight == 1.0
    for weight in (-1.0, float("inf"), float("nan")):
        message.tenant_weight = weight
        with pytest.raises(FieldError, match="tenant_weight"):
            start_at_home(message)

"""What makes each recorded object again: class path to factory, for replays."""

from collections.abc import Callable

from core.membership import Membership
from core.recorder import class_path
from decode_worker.decode_worker import DecodeWorker
from decode_worker.decode_worker import build as build_decode_worker
from prefill_worker.prefill_worker import PrefillWorker
from prefill_worker.prefill_worker import build as build_prefill_worker
from router.router import Router
from services.gateway.gateway import Gateway

FACTORIES: dict[str, Callable[..., object]] = {
    class_path(DecodeWorker): build_decode_worker,
    class_path(PrefillWorker): build_prefill_worker,
    class_path(Router): Router,
    class_path(Gateway): Gateway,
    class_path(Membership): Membership,
}
"""Each takes the arguments that `core.recorder.recorded` was given as the object's configuration."""

"""How every recorded object is built again."""

from collections.abc import Callable

from core.recorder import class_path
from decode_worker import decode_worker
from decode_worker.decode_worker import DecodeWorker
from prefill_worker import prefill_worker
from prefill_worker.prefill_worker import PrefillWorker
from router.router import Router
from services.gateway.gateway import Gateway

REGISTRY: dict[str, Callable[..., object]] = {
    class_path(DecodeWorker): decode_worker.build,
    class_path(Gateway): Gateway,
    class_path(PrefillWorker): prefill_worker.build,
    class_path(Router): Router,
}

"""Whether and where this process's decisions are recorded."""

from collections.abc import Callable
from pathlib import Path

from core.recorder import recorded
from core.recording_file import RecordingFile
from rpc.errors import ServiceError
from services.gateway.config import GatewayConfig
from services.gateway.gateway import Gateway


def recorded_gateway(config: GatewayConfig, incarnation: str) -> tuple[Gateway, Callable[[], None]]:
    """(the gateway, what closes its recording). Raises ServiceError where the folder cannot be written."""
    gateway = Gateway(config.policy)
    if not config.record:
        return gateway, lambda: None
    path = Path(config.record) / f"{config.id}-{incarnation}.recording"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = RecordingFile(path)
    except OSError as error:
        raise ServiceError(f"{path}: cannot be written: {error.strerror}") from error
    return recorded(gateway, config.id, file.write, (config.policy,)), file.close

"""How connections between our processes are kept: alive, bounded and quick to come back."""

from dataclasses import dataclass

Options = list[tuple[str, int | str]]

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """One set for both ends of a connection."""

    keepalive_time_ms: int = 20_000
    """An HTTP/2 ping after this long without traffic."""
    keepalive_timeout_ms: int = 10_000
    """A ping unanswered for this long breaks the connection."""
    ping_interval_min_ms: int = 5_000
    """A server answers a faster pinger with GOAWAY; below keepalive_time_ms, or long prefills are cut."""
    message_bytes_max: int = 64 * MEBIBYTE
    """Both ways; a prompt of 128k tokens is below 1 MiB."""
    reconnect_backoff_min_ms: int = 100
    reconnect_backoff_max_ms: int = 2_000
    share_port: bool = False
    """Several server processes listen on one port, and the kernel spreads connections over them."""
    connection_age_max_s: float | None = None
    """Servers of clients behind a balancer set about 600, so that load spreads anew; internal streams
    live long, and None lets them. gRPC itself spreads the ends by a tenth."""
    connection_age_grace_s: float = 60.0
    """How long calls may go on after that."""


def keepalive_options(settings: ConnectionSettings) -> Options:
    return [
        ("grpc.keepalive_time_ms", settings.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_ms),
        # What breaks a connection whose peer is silent: the one above alone leaves it for a minute.
        ("grpc.http2.ping_timeout_ms", settings.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_send_message_length", settings.message_bytes_max),
        ("grpc.max_receive_message_length", settings.message_bytes_max),
    ]


def server_options(settings: ConnectionSettings) -> Options:
    options = [
        *keepalive_options(settings),
        # The name gRPC reads: the one with "min_recv" is ignored in silence, and leaves 5 minutes.
        ("grpc.http2.min_ping_interval_without_data_ms", settings.ping_interval_min_ms),
        # Unasked, a second server on a busy port would start, and take half of its calls.
        ("grpc.so_reuseport", int(settings.share_port)),
    ]
    if settings.connection_age_max_s is not None:
        options.append(("grpc.max_connection_age_ms", int(settings.connection_age_max_s * 1000)))
        options.append(("grpc.max_connection_age_grace_ms", int(settings.connection_age_grace_s * 1000)))
    return options


def channel_options(settings: ConnectionSettings) -> Options:
    return [
        *keepalive_options(settings),
        ("grpc.initial_reconnect_backoff_ms", settings.reconnect_backoff_min_ms),
        ("grpc.min_reconnect_backoff_ms", settings.reconnect_backoff_min_ms),
        ("grpc.max_reconnect_backoff_ms", settings.reconnect_backoff_max_ms),
        # One connection per channel: about 100 streams fit into one before they queue unseen.
        ("grpc.use_local_subchannel_pool", 1),
        # A retry is the gateway's decision, never the transport's.
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]

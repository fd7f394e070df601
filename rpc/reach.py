"""What an operator is warned of about who reaches a process, and who does not."""

from core.addresses import is_loopback, is_out_of_reach
from rpc.logs import Log


def warn_of_loopback(log: Log, address: str, store_url: str) -> None:
    """Of a loopback address announced where other machines may read it; `store_url` may hold a password."""
    if is_out_of_reach(address, store_url):
        reason = "no other machine reaches it, and the store is not on this one: set advertise_host"
        log.warning("loopback_announced", address=address, reason=reason)


def warn_of_open_door(log: Log, host: str) -> None:
    """Of clients' ports beyond loopback where no key is asked for."""
    if not is_loopback(host):
        log.warning("open_to_all", host=host, reason="whoever reaches it is served: set tenants_file")

"""What time it is, to every shell: one reading per event."""

import time


def now_us() -> int:
    """Monotonic microseconds; comparable within one machine's boot only, and never put on the wire."""
    return time.monotonic_ns() // 1000


def wall_us() -> int:
    """Wall-clock microseconds, for announcements and for people."""
    return time.time_ns() // 1000

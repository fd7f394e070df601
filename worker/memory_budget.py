"""How much memory a worker says it will use, before it serves anybody."""

from dataclasses import dataclass
from pathlib import Path
from resource import getpagesize

from engine.footprint import Footprint

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes of one worker process; with its lanes it stays within a tenth more, whatever it is asked."""

    programs: int
    """Interpreter, libraries and the vocabulary for grammars: what was resident before the model."""
    model: Footprint
    lane: int
    """Staging of each lane to a peer: what one receives in, or may have packed to send."""

    @property
    def pools(self) -> int:
        return self.model.kv + self.model.host

    @property
    def total(self) -> int:
        """Without lanes."""
        return self.programs + self.model.weights + self.pools + self.model.workspace

    def shown(self) -> dict[str, float]:
        """For the line that a worker says at its start, in MiB."""
        parts = {
            "programs_mib": self.programs,
            "weights_mib": self.model.weights,
            "kv_pool_mib": self.model.kv,
            "host_pool_mib": self.model.host,
            "workspace_mib": self.model.workspace,
            "total_mib": self.total,
            "each_lane_mib": self.lane,
        }
        return {name: round(size / MIB, 1) for name, size in parts.items()}


def resident_bytes() -> int:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * getpagesize()

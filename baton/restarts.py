"""When a process that died is started again."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RestartConfig:
    first_delay_us: int = 200_000
    """Wait after the first death; doubles with each further one."""
    delay_us_max: int = 10_000_000
    healthy_us: int = 30_000_000
    """A process that lived this long starts with a clean record."""
    crash_loop_deaths: int = 5
    """Deaths in a row that are called a crash loop, said in one line."""


@dataclass(frozen=True, slots=True)
class Restart:
    at_us: int
    deaths: int
    crash_loop: bool
    """True once, at the death that makes it one."""


@dataclass(slots=True)
class RestartPolicy:
    """One supervised process's record of deaths."""

    config: RestartConfig = field(default_factory=RestartConfig)
    _deaths: int = 0
    _started_us: int = 0

    def started(self, now_us: int) -> None:
        self._started_us = now_us

    def died(self, now_us: int) -> Restart:
        if now_us - self._started_us >= self.config.healthy_us:
            self._deaths = 0
        self._deaths += 1
        delay_us = min(self.config.first_delay_us * 2 ** min(self._deaths - 1, 20), self.config.delay_us_max)
        return Restart(now_us + delay_us, self._deaths, self._deaths == self.config.crash_loop_deaths)

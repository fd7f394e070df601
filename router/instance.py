"""How much of one engine instance is spoken for."""

from core.request import InstanceKey
from router.messages import InstanceInfo, LoadReport
from router.policy import RouterPolicy
from router.pool import Pool
from router.reservation import Claim, Reservation, Totals, total


class Instance:
    """One instance's last report and this router's reservations on it, kept summed in its pool's columns.

    While reports come, load = what they count + own reservations they do not count yet. When they
    stop, own reservations alone: a frozen report would herd everyone to whoever looked idle last.
    """

    def __init__(
        self,
        key: InstanceKey,
        address: str,
        info: InstanceInfo,
        pool: Pool,
        slot: int,
        rank: float,
        policy: RouterPolicy,
    ) -> None:
        self.key, self.address, self.info, self.pool, self.slot = key, address, info, pool, slot
        self.reservations: dict[int, Reservation] = {}
        self.report: LoadReport | None = None
        self.report_us = -policy.report_stale_us - 1
        self.connected = True
        self._policy = policy
        self._own, self._unacknowledged = Totals(), Totals()
        pool.add(key, info, slot, rank)
        self._publish()

    @property
    def draining(self) -> bool:
        return self.report is not None and self.report.draining

    @property
    def usable(self) -> bool:
        return self.connected and not self.draining

    def set_connected(self, connected: bool) -> None:
        self.connected = connected
        self._publish()

    def is_news(self, report: LoadReport) -> bool:
        """Whether a report is later than the last one taken."""
        return self.report is None or report.sequence > self.report.sequence

    def take(self, report: LoadReport, acknowledged: list[int], now_us: int) -> None:
        """Counts by this report from now on; `acknowledged` are own numbers it includes."""
        self.report, self.report_us = report, now_us
        newest = max(acknowledged, default=-1)
        for number in acknowledged:
            self._acknowledge(number)
        horizon = now_us - self._policy.acknowledge_lag_us
        for number in list(self.reservations):
            if number <= newest and self.reservations[number].placed_us <= horizon:
                self._acknowledge(number)
        self._publish()

    def add(self, reservation: Reservation) -> None:
        self.reservations[reservation.number] = reservation
        self._own.add(reservation.claim)
        self._unacknowledged.add(reservation.claim)
        self._publish()

    def release(self, number: int) -> None:
        reservation = self.reservations.pop(number)
        self._own.add(reservation.claim, -1)
        if not reservation.acknowledged:
            self._unacknowledged.add(reservation.claim, -1)
        self._publish()

    def change(self, number: int, claim: Claim) -> None:
        """The same reservation, counted for less."""
        reservation = self.reservations[number]
        for totals in (self._own,) if reservation.acknowledged else (self._own, self._unacknowledged):
            totals.add(reservation.claim, -1)
            totals.add(claim)
        reservation.claim = claim
        self._publish()

    def check(self) -> None:
        everything = list(self.reservations.values())
        assert self._own == total([one.claim for one in everything]), "own reservations"
        waiting = [one.claim for one in everything if not one.acknowledged]
        assert self._unacknowledged == total(waiting), "unacknowledged reservations"
        assert all(one.instance == self.key for one in everything)
        for value in (self._own.prefill_us, self._own.short_us, self._own.blocks, self._own.sequences):
            assert value >= 0, "a reservation is counted below zero"

    def _acknowledge(self, number: int) -> None:
        reservation = self.reservations.get(number)
        if reservation is not None and not reservation.acknowledged:
            reservation.acknowledged = True
            self._unacknowledged.add(reservation.claim, -1)

    def _publish(self) -> None:
        own, extra, report = self._own, self._unacknowledged, self.report
        held = report.blocks_held + report.blocks_in_flight if report else 0
        busy = report.running + report.waiting + report.transferring if report else 0
        self.pool.write(
            self.key,
            usable=float(self.usable),
            report_us=float(self.report_us),
            prefill_reported_us=(report.queued_prefill_us if report else 0) + extra.prefill_us,
            prefill_own_us=own.prefill_us,
            short_own_us=own.short_us,
            blocks_reported=held + extra.blocks,
            blocks_own=own.blocks,
            sequences_reported=busy + extra.sequences,
            sequences_own=own.sequences,
        )

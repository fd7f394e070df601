"""Which reservations an attempt's legs hold."""

from collections.abc import Mapping

from core.request import AttemptKey, InstanceKey, Leg
from router.attempt import Attempt
from router.fleet_view import FleetView
from router.placement import Placement, restored_claim
from router.policy import RouterPolicy


class Legs:
    """Reserves for placements, and again for what was placed before this process began.

    Numbers ascend from `first_reservation`; a re-announced leg keeps its own.
    """

    def __init__(self, policy: RouterPolicy, fleet: FleetView, first_reservation: int) -> None:
        self._policy, self._fleet = policy, fleet
        self._next_reservation = first_reservation
        self._turn = 0
        self._unclaimed: dict[InstanceKey, dict[AttemptKey, None]] = {}
        """Re-announced attempts whose worker has not said hello to this process yet."""

    def reserve(self, attempt: Attempt, placement: Placement, now_us: int) -> None:
        """Every leg of it at once: nothing was awaited since the placement was chosen."""
        self._turn += 1
        legs = []
        for assignment in placement.legs:
            number, self._next_reservation = self._next_reservation, self._next_reservation + 1
            instance = self._fleet.instance(assignment.instance)
            assert instance is not None
            self._fleet.reserve(number, attempt.key, assignment.instance, assignment.claim, now_us)
            self._fleet.picked(assignment.instance, self._turn)
            legs.append(
                Leg(assignment.role, assignment.instance, instance.address, number, instance.info.dtype)
            )
        attempt.legs = tuple(legs)

    def restore(self, attempt: Attempt, expected_output: int, now_us: int) -> None:
        """What its legs held, as far as their workers are known; the rest when they are."""
        for leg in attempt.legs:
            self._next_reservation = max(self._next_reservation, leg.reservation + 1)
            self._claim(attempt, leg, expected_output, now_us)

    def waiting_for(self, instance: InstanceKey, live: Mapping[AttemptKey, Attempt]) -> list[Attempt]:
        """Attempts that were re-announced before this instance was there; each to be restored once more."""
        return [live[key] for key in self._unclaimed.pop(instance, {})]

    def first_token(self, attempt: Attempt) -> None:
        """The prefill is over, wherever it ran."""
        for leg in attempt.legs[:-1]:
            self._fleet.release(leg.reservation, attempt.key)
        self._fleet.prefilled(attempt.legs[-1].reservation, attempt.key)

    def release(self, attempt: Attempt) -> None:
        """All of it. Idempotent."""
        for leg in attempt.legs:
            self._fleet.release(leg.reservation, attempt.key)
            waiting = self._unclaimed.get(leg.instance)
            if waiting is not None:
                waiting.pop(attempt.key, None)
                if not waiting:
                    del self._unclaimed[leg.instance]

    def check(self, live: Mapping[AttemptKey, Attempt]) -> None:
        for reservation in self._fleet.reservations():
            numbers = [leg.reservation for leg in live[reservation.key].legs]
            assert reservation.number in numbers, "a reservation of no attempt"
        for waiting in self._unclaimed.values():
            assert waiting and all(key in live for key in waiting)

    def _claim(self, attempt: Attempt, leg: Leg, expected_output: int, now_us: int) -> None:
        instance = self._fleet.instance(leg.instance)
        if instance is None:
            self._unclaimed.setdefault(leg.instance, {})[attempt.key] = None
            return
        is_home = leg is attempt.legs[-1]
        if self._fleet.has(leg.reservation) or (attempt.first_token_seen and not is_home):
            return
        computes = not attempt.first_token_seen and (not is_home or len(attempt.legs) == 1)
        claim = restored_claim(
            attempt.submission, expected_output, leg.role, instance.pool, instance.key,
            computes=computes, policy=self._policy,
        )  # fmt: skip
        self._fleet.reserve(leg.reservation, attempt.key, leg.instance, claim, now_us)

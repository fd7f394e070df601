"""How far one request has come, read from the insides of the objects that hold it; changes nothing."""

from enum import StrEnum

from decode_worker.attempts import Attempt
from decode_worker.attempts import Phase as HomePhase
from kv_transfer.coverage import Coverage
from prefill_worker.prompts import Phase as PrefillPhase
from prefill_worker.prompts import Prompt
from services.gateway.live_request import LiveRequest
from services.gateway.live_request import Phase as GatewayPhase
from sim.clients import Asked
from sim.fleet import Fleet


class Phase(StrEnum):
    """Moments in the life of a request that is handed over."""

    QUEUED = "queued"
    RESERVED = "reserved"
    PREFILLING = "prefilling"
    PREFILLED = "prefilled"
    BOUND = "bound"
    FIRST_CHUNK = "first_chunk"
    MIDDLE_CHUNK = "middle_chunk"
    LAST_CHUNK = "last_chunk"
    TRANSFERRED = "transferred"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    FINISHING = "finishing"


class View:
    """One request, seen from everywhere at once."""

    def __init__(self, fleet: Fleet, asked: Asked) -> None:
        self._fleet, self._asked = fleet, asked

    def live(self) -> LiveRequest | None:
        found: LiveRequest | None = self._fleet.gateway(self._asked.gateway).plain._live.get(
            self._asked.request
        )
        return found

    def home(self) -> tuple[str, Attempt] | None:
        """(decode worker, attempt) of the current attempt, or of the last one."""
        for name in self._fleet.decodes:
            attempts = self._fleet.decode(name).plain._attempts
            for key in reversed(list(attempts)):
                if key.request == self._asked.request:
                    return name, attempts[key]
        return None

    def prompt(self) -> tuple[str, Prompt] | None:
        for name in self._fleet.prefills:
            for prompt in self._fleet.prefill(name).plain._prompts.values():
                if prompt.key.request == self._asked.request:
                    return name, prompt
        return None

    def coverage(self) -> Coverage | None:
        home = self.home()
        if home is None or home[1].transfer is None:
            return None
        record = self._fleet.decode(home[0]).plain._incoming._live.get(home[1].transfer)
        return None if record is None else record.coverage

    def computed(self) -> int:
        """Prompt tokens whose KV the prefill worker has."""
        prompt = self.prompt()
        if prompt is None:
            return 0
        assignment = self._fleet.prefill(prompt[0]).engine._assignments.get(prompt[1].key)
        return 0 if assignment is None else assignment.sequences[0].computed

    def is_in(self, phase: Phase) -> bool:
        live, home = self.live(), self.home()
        if phase is Phase.QUEUED:
            return live is not None and live.phase is GatewayPhase.SUBMITTED and self._is_queued(live)
        if home is None or live is None:
            return False
        attempt, coverage = home[1], self.coverage()
        match phase:
            case Phase.RESERVED:
                return attempt.phase is HomePhase.ASKED
            case Phase.BOUND:
                return attempt.phase is HomePhase.RECEIVING and coverage is not None and not coverage.headers
            case Phase.PREFILLING:
                return 0 < self.computed() < len(self._asked.spec.prompt)
            case Phase.PREFILLED:
                prompt = self.prompt()
                return prompt is not None and prompt[1].phase is PrefillPhase.SHIPPING
            case Phase.FIRST_CHUNK:
                return coverage is not None and len(coverage.states) > 0 and coverage.scattered == 0
            case Phase.MIDDLE_CHUNK:
                return coverage is not None and coverage.scattered == 2
            case Phase.LAST_CHUNK:
                return (
                    coverage is not None
                    and coverage.total is not None
                    and (coverage.scattered == coverage.total - 1)
                )
            case Phase.TRANSFERRED:
                return attempt.committed and attempt.logs[0].next_index == 1
            case Phase.DECODING:
                return attempt.phase is HomePhase.RUNNING and attempt.logs[0].next_index >= 4
            case Phase.PREEMPTED:
                return self._preempted(home[0], attempt)
            case Phase.FINISHING:
                return attempt.end is not None
        return False

    def _is_queued(self, live: LiveRequest) -> bool:
        return any(live.key in self._fleet.nodes[name].plain._attempts.live for name in self._fleet.routers)

    def _preempted(self, name: str, attempt: Attempt) -> bool:
        assignment = self._fleet.decode(name).engine._assignments.get(attempt.key)
        if assignment is None or attempt.logs[0].next_index < 2:
            return False
        return any(sequence.phase == "waiting" for sequence in assignment.sequences)

"""What an engine has taken on for one job."""

from engine.job import Job, Stage
from engine.sequence import Sequence


class Assignment:
    """A job this engine has taken on."""

    __slots__ = ("job", "sequences", "stage")

    def __init__(self, job: Job, stage: Stage, sequence: Sequence) -> None:
        self.job = job
        self.stage = stage
        self.sequences = [sequence]
        """The trunk, or the unfinished choices."""

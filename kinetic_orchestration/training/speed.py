"""How fast a training is: steps a second, and samples or tokens where it is known how many a step takes.

Counted from the end of the first step on, in which programs are compiled, and without what is no training: checkpoints
and validations. Pure: it is told the time.
"""

from __future__ import annotations

LEAST = 0.9  # seconds of training from which a rate is told: a shorter time tells little


class Speed:
    def __init__(self, samples: int = 0, tokens: int = 0) -> None:
        """How many there are in one step, on all hosts together; 0 where that is not known."""
        self.samples = samples
        self.tokens = tokens
        self.rate = 0.0  # steps a second, as told last
        self._since: float | None = None
        self._from = 0
        self._out = 0.0

    def begin(self) -> None:
        """The next step is the first one of this program."""
        self._since = None

    def reached(self, done: int, now: float) -> None:
        if self._since is None or done < self._from:
            self._restart(done, now)

    def leave_out(self, seconds: float) -> None:
        self._out += seconds

    def told(self, done: int, now: float) -> dict[str, float]:
        """What can be said of the time since it was said last, by the names of metrics."""
        if self._since is None or done <= self._from or (lasted := now - self._since - self._out) < LEAST:
            return {}
        self.rate = (done - self._from) / lasted
        self._restart(done, now)
        of_step = {"steps/s": 1, "samples/s": self.samples, "tokens/s": self.tokens}
        return {name: self.rate * many for name, many in of_step.items() if many}

    def _restart(self, done: int, now: float) -> None:
        self._since, self._from, self._out = now, done, 0.0

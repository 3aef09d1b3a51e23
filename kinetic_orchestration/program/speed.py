"""The speed of a training: steps a second, and samples or tokens if their number per step is known; and the uses of its
time.

Counted from the end of the first step on, in which programs are compiled, and without checkpoints and validations.
Pure: the time is passed in.
"""

from __future__ import annotations

LEAST = 0.9  # seconds of training from which a rate is reported: a shorter time is not significant


class Speed:
    """Steps per second, and samples or tokens per second where their number in a step is known."""

    def __init__(self, samples: int = 0, tokens: int = 0) -> None:
        """Start counting.

        Args:
            samples: Samples in one step on all hosts together; 0 if unknown.
            tokens: Tokens in one step on all hosts together; 0 if unknown.
        """
        self.samples = samples
        self.tokens = tokens
        self.rate = 0.0  # steps a second, as reported last
        self._since: float | None = None
        self._from = 0
        self._out = 0.0

    def begin(self) -> None:
        """Mark the next step as the first one of this program."""
        self._since = None

    def reached(self, done: int, now: float) -> None:
        if self._since is None or done < self._from:
            self._restart(done, now)

    def leave_out(self, seconds: float) -> None:
        self._out += seconds

    def metrics(self, done: int, now: float) -> dict[str, float]:
        """Return the metrics of the time since the last report, by name."""
        if self._since is None or done <= self._from or (lasted := now - self._since - self._out) < LEAST:
            return {}
        self.rate = (done - self._from) / lasted
        self._restart(done, now)
        of_step = {"steps/s": 1, "samples/s": self.samples, "tokens/s": self.tokens}
        return {name: self.rate * many for name, many in of_step.items() if many}

    def _restart(self, done: int, now: float) -> None:
        self._since, self._from, self._out = now, done, 0.0


class Spent:
    """Seconds of a training in one program by what they were spent on.

    These are the restoration, with the way to the position in the data; the first step, in which programs are compiled;
    the steps after it; and the waits for checkpoints.
    """

    def __init__(self) -> None:
        self.is_reported = False  # reported in its current state
        self._begun = self._done = 0  # steps
        self._steps = self._compile = self._restore = self._stall = 0.0
        self._since: float | None = None
        self._is_first = True

    def restored(self, done: int, since: float, now: float) -> None:
        """Mark the next step as the first one of this program."""
        self._restore += now - since
        self._begun, self._done, self._since, self._is_first = done, done, now, True

    def reached(self, done: int, now: float) -> None:
        if done <= self._done or self._since is None:  # done again, or without a known start
            self._is_first = self._is_first and self._since is not None  # that one was the first
            self._since = now
            return
        if self._is_first:
            self._compile += now - self._since
        else:
            self._steps += now - self._since
        self._done, self._since, self._is_first, self.is_reported = done, now, False, False

    def leave_out(self, seconds: float, *, stall: bool) -> None:
        """Exclude time between the last step and the next one."""
        if self._since is not None:
            self._since += seconds
        if stall:
            self._stall, self.is_reported = self._stall + seconds, False

    def passed_over(self, seconds: float) -> None:
        """Count time as restoration: data that were trained on before are taken from their iterator."""
        self._restore += seconds
        if self._since is not None:
            self._since += seconds
        self.is_reported = False

    def numbers(self) -> list[float]:
        seconds = (self._steps, self._compile, self._restore, self._stall)
        return [self._begun, self._done, *(round(max(0.0, one), 3) for one in seconds)]

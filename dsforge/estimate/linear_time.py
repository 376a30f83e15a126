"""Seconds as lines in the tokens of a micro batch, so that many batchings are priced from one."""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class LinearTime(NamedTuple):
    """Seconds as a line in the tokens of a micro batch on one rank."""

    fixed_s: float
    token_s: float

    def at(self, tokens: float) -> float:
        """Seconds at so many tokens."""
        return self.fixed_s + tokens * self.token_s

    def towards(self, other: LinearTime, share: float) -> LinearTime:
        """The line between both, a share of the way to the other."""
        return LinearTime(
            self.fixed_s + share * (other.fixed_s - self.fixed_s),
            self.token_s + share * (other.token_s - self.token_s),
        )


class HeadTime(NamedTuple):
    """Seconds of the head: a line, and from some tokens on more for each of them."""

    line: LinearTime
    one_chunk: float = inf  # tokens of a loss that is not cut into chunks
    summed_token_s: float = 0.0  # beyond: chunks add to one gradient of the weight

    def beside(self, token_s: float) -> HeadTime:
        """The same with more seconds for each token."""
        line = self.line._replace(token_s=self.line.token_s + token_s)
        return self._replace(line=line)

    def at(self, tokens: float) -> float:
        """Seconds at so many tokens."""
        summed_s = tokens * self.summed_token_s if tokens > self.one_chunk else 0.0
        return self.line.at(tokens) + summed_s

"""A table of two coins, which is computed at once."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure as Picture

from coterie.papers import Figure
from coterie.papers.seeds import Claim, Entry, Published, Table

computed: list[tuple[str, int]] = []


@dataclass(frozen=True)
class Coin(Table):
    """The share of heads of two coins."""

    trials: int
    scale: str

    def entries(self):
        return [
            Entry("fair", {"coin": "fair"}, Published(50.0, 1.0)),
            Entry("bent", {"coin": "bent"}),
        ]

    def one(self, values, seed, done):
        computed.append((values["coin"], seed))
        share = 0.5 if values["coin"] == "fair" else 0.25 + 0.1 * (seed % 10)
        return {"accuracy": np.array(share), "collapsed": np.array(share > 0.3)}

    def claims(self):
        def more(fair, bent):
            return f"{fair.mean():.2f} and {bent.mean():.2f}", bool(fair.mean() > bent.mean())

        return [Claim("the fair coin has more heads", ("fair", "bent"), more)]

    def draw(self, results):
        return Picture()


FIGURE = Figure("coin", "Two coins", lambda scale, preset: Coin(2, scale))

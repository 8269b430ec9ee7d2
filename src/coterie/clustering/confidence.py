"""How sure a clustering is of itself."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Confidence:
    """How sure it is where each client belongs, and that the groups differ.

    All of it is about losses of examples under models that have not seen them. NaN where it is not known.

    Attributes
    ----------
    second
        The group that is second best for each client; -1 where there is no other.
    margin
        By how much that is worse than the client's own group: the mean loss of an example.
    chance
        How probable so large a margin were if the two were equally good for the client: a p-value, of
        Student's t over its examples. It does not know that the client chose its group by these examples.
    alone_margin, alone_chance
        The same of a model that the client trains by itself.
    merging
        What the clients of each group (row) would lose if they had each group's models (column): the mean
        loss of an example.
    apart
        How sure it is that this is no chance, in standard errors: beyond what choosing between two groups
        that are equally good gives to those who choose.
    """

    second: Int[np.ndarray, " clients"]
    margin: Float[np.ndarray, " clients"]
    chance: Float[np.ndarray, " clients"]
    alone_margin: Float[np.ndarray, " clients"]
    alone_chance: Float[np.ndarray, " clients"]
    merging: Float[np.ndarray, "k k"]
    apart: Float[np.ndarray, "k k"]

    def arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """What it says, by name."""
        return {prefix + field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], prefix: str) -> Confidence | None:
        """The inverse of `arrays`; None where there are none of these names."""
        own = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        return cls(**own) if own else None

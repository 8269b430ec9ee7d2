"""Models that the user gave."""

from __future__ import annotations

from jaxtyping import Array, Key, PyTree

from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.models import stacked


class Given:
    """k models as a stacked pytree or as a (k, d) matrix, the same for every start."""

    def __init__(self, models: PyTree) -> None:
        self.models = models

    def __call__(self, server: Server, key: Key[Array, ""], k: int) -> Exchange[PyTree]:
        models = stacked.given(self.models, server.learner.shapes(server.spec))
        if stacked.count(models) != k:
            raise SettingError(f"k is {k} but {stacked.count(models)} initial models are given.")
        return models
        yield

"""Observers that tests watch runs with."""

import jax
import numpy as np

from coterie.algorithms.observer import Moment, Observer, Place
from coterie.clustering.history import Event


def moment(new, done):
    """A moment for observers that only look at what is new and how many rounds are done."""
    return Moment(states=None, place=Place(done), ids=np.arange(4), spec=None, new=new)


class Between(Observer):
    """Lets things happen between rounds: `happen[t]` is called when t rounds are done."""

    def __init__(self, happen):
        self.happen = happen

    def after(self, moment):
        self.happen.get(moment.place.done, lambda: None)()


class Remember(Observer):
    """Keeps what a run passes through."""

    def __init__(self):
        self.moments = []

    def after(self, moment):
        self.moments.append(moment._replace(states=jax.device_get(moment.states), new=list(moment.new)))

    @property
    def pauses(self):
        """The moments after which an event was told."""
        return [m for m in self.moments if any(isinstance(record, Event) for record in m.new)]


class Continue(Observer):
    """Starts a run from a moment of another, as from a checkpoint."""

    def __init__(self, moment, records):
        self.moment, self.records = moment, records

    def saved(self):
        from coterie.algorithms.observer import Saved
        from coterie.models import stacked

        moment = self.moment
        arrays = {name: np.asarray(a) for name, a in stacked.named(moment.states).items()}
        return Saved(arrays, moment.place, moment.ids, moment.spec, self.records)


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


class Kill(Observer):
    """Ends a run after so many moments: stands behind what writes them down."""

    def __init__(self, moments):
        self.left = moments

    def after(self, moment):
        self.left -= 1
        if self.left == 0:
            raise Killed

"""Who watches a run: each of several observers is told everything, and the first that kept one decides."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from support.observers import Between, Continue, Kill, Killed, Remember

import coterie as ct
from coterie.algorithms.observer import Observer, Place
from coterie.clustering.history import Event, RoundLog
from coterie.errors import CoterieError
from coterie.models import stacked
from coterie.run.config import Experiment
from coterie.run.folder import Recorder, RunFolder

DATA = ct.data.mixed_regression(clients=6, k=2, dim=3, examples=8, seed=1)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=2))
IFCA = ct.IFCA(k=2, rounds=3, n_init=2, participation=0.5)
SRFCA = ct.SRFCA(rounds=2, refines=2, threshold="40%")


class Diary(Remember):
    """Remembers also from where a run went on, and in which order observers were told."""

    def __init__(self, name="", order=None):
        super().__init__()
        self.name, self.order, self.began = name, [] if order is None else order, []

    def resumed(self, moment):
        self.order.append(self.name)
        self.began.append(moment._replace(states=jax.device_get(moment.states), new=list(moment.new)))

    def after(self, moment):
        self.order.append(self.name)
        super().after(moment)


def fit(algorithm, *observers, seed=2):
    return algorithm.fit(DATA.train, LEARNER, seed=seed, observers=observers)


def lines(records):
    """Records without how long they took; as text, since NaN is not equal to itself."""
    return [dataclasses.replace(record, seconds=0.0).to_line() for record in records]


def same_moments(some, others):
    assert [m.place for m in some] == [m.place for m in others]
    assert [lines(m.new) for m in some] == [lines(m.new) for m in others]
    for mine, theirs in zip(some, others, strict=True):
        assert mine.ids.tolist() == theirs.ids.tolist() and mine.spec == theirs.spec
        jax.tree.map(np.testing.assert_array_equal, mine.states, theirs.states)


def same_results(one, other):
    np.testing.assert_array_equal(one.assignment, other.assignment)
    jax.tree.map(np.testing.assert_array_equal, one.models, other.models)
    assert lines(one.history.records) == lines(other.history.records)


@pytest.mark.parametrize("algorithm", [IFCA, SRFCA, ct.Local(rounds=2)])
def test_each_of_several_observers_is_told_everything_in_order(algorithm):
    order = []
    diaries = [Diary(name, order) for name in "abc"]
    found = fit(algorithm, *diaries)
    first, *others = diaries
    assert len(first.moments) > 1 and order == list("abc") * len(first.moments)
    assert first.began == []  # nobody is told that it goes on
    for other in others:
        same_moments(other.moments, first.moments)
    told = [record for moment in first.moments for record in moment.new]
    *all_but_last, last = found.history.records
    asked_at_the_end = isinstance(last, Event) and last.name == "finish"
    assert lines(told) == lines(all_but_last if asked_at_the_end else found.history.records)
    same_results(found, fit(algorithm))  # to be watched changes nothing


def test_the_places_of_a_run_tell_what_is_behind_it_and_how_far_it_goes_on():
    diary = Diary()
    fit(IFCA, diary)
    assert [m.place for m in diary.moments] == [Place(), Place(1, 0, 3), Place(2, 0, 3), Place(3, 0, 3)]
    diary = Diary()
    fit(SRFCA, diary)
    kinds = [(m.place, [r.name if isinstance(r, Event) else r.round for r in m.new]) for m in diary.moments]
    assert kinds == [
        (Place(), []),
        (Place(0, 0, 2), ["one-shot"]),
        (Place(1, 0, 2), [0]),
        (Place(2, 0, 2), [1]),
        (Place(2, 2, 4), ["refine"]),
        (Place(3, 2, 4), [2]),
        (Place(4, 2, 4), [3]),
        (Place(4, 4, 4, ended=True), ["refine"]),
    ]


def from_moment(diary, number):
    """Goes on from a moment of a run that was remembered."""
    return Continue(diary.moments[number], [r for m in diary.moments[: number + 1] for r in m.new])


@pytest.mark.parametrize("algorithm", [IFCA, SRFCA, ct.Local(rounds=2)])
def test_a_run_goes_on_from_any_moment_that_was_remembered(algorithm):
    diary = Diary()
    whole = fit(algorithm, diary)
    for number, moment in enumerate(diary.moments):
        rest = Diary()
        same_results(fit(algorithm, Observer(), from_moment(diary, number), rest), whole)
        same_moments(rest.moments, diary.moments[number + 1 :])
        (began,) = rest.began
        assert began.place == moment.place
        assert lines(began.new) == lines(r for m in diary.moments[: number + 1] for r in m.new)
        jax.tree.map(np.testing.assert_array_equal, began.states, moment.states)


def test_the_first_observer_that_has_kept_a_run_decides_from_where_it_goes_on():
    diary = Diary()
    fit(IFCA, diary)
    for numbers in ((1, 3), (3, 1), (2, 2)):
        kept = [from_moment(diary, number) for number in numbers]
        rest = Diary()
        fit(IFCA, rest, *kept)
        assert rest.began[0].place == diary.moments[numbers[0]].place
        same_moments(rest.moments, diary.moments[numbers[0] + 1 :])


# -- recorders --------------------------------------------------------------------------------------------


def folder_at(path):
    folder = RunFolder(path)
    folder.claim(Experiment.read({}), resume=False, overwrite=False)
    return folder


def rounds_in(folder):
    content = map(json.loads, (folder.path / "rounds.jsonl").read_text().splitlines())
    return [{**line, "seconds": 0} for line in content]


def test_two_folders_may_be_written_at_once_and_either_will_do(tmp_path):
    folders = [folder_at(tmp_path / name) for name in "ab"]
    whole = fit(SRFCA, *[Recorder(folder, every=0.0) for folder in folders])
    assert rounds_in(folders[0]) == rounds_in(folders[1])
    for folder in folders:
        same_results(fit(SRFCA, Recorder(folder)), whole)


def test_a_recorder_of_a_run_that_another_observer_kept_writes_down_all_of_it(tmp_path):
    diary = Diary()
    whole = fit(SRFCA, diary)
    late = folder_at(tmp_path / "late")
    with pytest.raises(Killed):  # it has fewer moments behind it than what is gone on from
        fit(SRFCA, Recorder(late, every=0.0), Kill(2))
    same_results(fit(SRFCA, from_moment(diary, 4), Recorder(late, every=0.0)), whole)
    told = [json.loads(record.to_line()) for moment in diary.moments for record in moment.new]
    assert rounds_in(late) == [{**line, "seconds": 0} for line in told]
    same_results(fit(SRFCA, Recorder(late)), whole)


def test_what_happens_in_one_observer_happens_after_those_before_it_were_told(tmp_path):
    folder = folder_at(tmp_path / "run")

    def stop():
        raise Killed

    with pytest.raises(Killed):
        fit(IFCA, Recorder(folder, every=0.0), Between({2: stop}), behind := Diary())
    assert [line["round"] for line in rounds_in(folder)] == [0, 1]
    assert [m.place.done for m in behind.moments] == [0, 1]
    same_results(fit(IFCA, Recorder(folder)), fit(IFCA))


def test_states_are_those_after_what_is_told():
    diary = Diary()
    found = fit(IFCA, diary)
    logs = [r for m in diary.moments for r in m.new if isinstance(r, RoundLog)]
    assert [log.round for log in logs] == [0, 1, 2]
    last = stacked.take(diary.moments[-1].states.models, found.history.restart)
    jax.tree.map(np.testing.assert_array_equal, last, jax.device_get(found.models))


class Onlooker(Observer):
    """Wants no states, but for the rounds that it names."""

    def __init__(self, wants=()):
        self.told, self.wants, self.rounds = [], wants, 0

    def wants_states(self):
        self.rounds += 1
        return self.rounds in self.wants

    def after(self, moment):
        states = None if moment.states is None else jax.device_get(moment.states)
        self.told.append(moment._replace(states=states, new=list(moment.new)))


def test_rounds_that_go_ahead_of_what_is_told_are_told_all_the_same():
    algorithm = dataclasses.replace(IFCA, rounds=8)
    slow, quick = Remember(), Onlooker(wants=[6])
    same_results(fit(algorithm, slow), fit(algorithm, quick))
    same_results(fit(algorithm), fit(algorithm, Onlooker()))
    assert [lines(m.new) for m in quick.told] == [lines(m.new) for m in slow.moments]
    assert [m.place.done for m in quick.told] == [m.place.done for m in slow.moments]
    # the states that were wanted are those of the round they are told with, and so are all others there are
    known = [i for i, m in enumerate(quick.told) if m.states is not None]
    assert [quick.told[i].place.done for i in known] == [0, 6, 8]
    for i in known:
        jax.tree.map(np.testing.assert_array_equal, quick.told[i].states, slow.moments[i].states)


def test_training_that_diverges_is_noticed_though_rounds_go_ahead():
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=1e30, steps=2))
    with pytest.raises(CoterieError, match="in round 1"):
        ct.Global(rounds=6).fit(DATA.train, learner, seed=0)


def test_rounds_that_are_looked_at_together_took_as_long_as_one_another():
    found = fit(dataclasses.replace(IFCA, rounds=8), Onlooker(wants=[7]))
    seconds = [record.seconds for record in found.history]
    # by round 7 two are waiting beside it, and by the end there is one: the last
    assert seconds[4] == seconds[5] == seconds[6]
    assert len(set(seconds)) == 6

"""The choice of settings: the best value, never at the edge of what was tried unless that is said."""

import numpy as np
import pytest

from coterie.papers.srfca.tuning import GRIDS, MOST, Grid, at_the_edge, choose, search


def best_at(value):
    return lambda tried: abs(np.log(tried / value))


@pytest.mark.parametrize("best", [0.0125, 0.1, 0.8, 3.2])
def test_the_grid_is_extended_until_the_best_value_lies_inside(best):
    chosen, tried = choose(GRIDS["rate"], best_at(best))
    assert chosen == pytest.approx(best)
    assert min(tried) < chosen < max(tried) and tried == sorted(tried)
    assert not at_the_edge("rate", chosen, tried)


def test_a_choice_at_the_edge_is_told():
    chosen, tried = choose(GRIDS["rate"], lambda rate: -rate)  # ever better
    assert len(tried) == len(GRIDS["rate"].values) + MOST
    assert chosen == max(tried) and at_the_edge("rate", chosen, tried)
    assert at_the_edge("rate", 0.05, [0.05, 0.1, 0.2]) and not at_the_edge("rate", 0.1, [0.05, 0.1, 0.2])


def test_where_a_setting_itself_ends_there_is_nothing_beyond():
    chosen, tried = choose(GRIDS["trim"], lambda trim: trim)
    assert chosen == 0 and tried == list(GRIDS["trim"].values) and not at_the_edge("trim", chosen, tried)
    chosen, tried = choose(GRIDS["mu"], lambda mu: mu)  # none at all is best: FedAvg
    assert chosen == 0 and not at_the_edge("mu", chosen, tried)
    chosen, tried = choose(GRIDS["threshold"], lambda share: -share)
    assert chosen == max(tried) == 0.8 and not at_the_edge("threshold", chosen, tried)
    _, tried = choose(GRIDS["threshold"], lambda share: 1.0)  # it makes no difference at all
    assert (min(tried), max(tried)) == (0.00125, 0.8)


def test_of_values_that_are_as_good_the_middle_is_taken():
    grid = Grid((1, 2, 4, 8, 16, 32), 2.0)
    chosen, tried = choose(grid, lambda value: 0.5 if 2 <= value <= 8 else 1.0)
    assert chosen == 4 and tried == list(grid.values)
    # of which some may be at the edge; but where nothing makes a difference, what does lies beyond
    assert choose(grid, lambda value: 0.5 if value <= 4 else 1.0) == (2, list(grid.values))
    chosen, tried = choose(GRIDS["threshold"], lambda share: 0.5 if share == 0.0025 else 1.0)
    assert chosen == 0.0025 and min(tried) < chosen
    # what is nearly as good on the other side of something worse is no neighbour
    assert choose(grid, lambda value: {2: 0.5, 16: 0.5}.get(value, 1.0))[0] == 2


def test_settings_are_chosen_again_when_another_has_changed():
    calls = []

    def loss(settings):
        calls.append((settings["rate"], settings["threshold"]))
        right = abs(np.log(settings["threshold"] / 0.05))
        # the wider clients are parted, the smaller the best step: one pass over the settings is not enough
        return right + abs(np.log(settings["rate"] / (0.1 * 2**right)))

    chosen, tried = search(("rate", "threshold"), loss)
    assert chosen["threshold"] == 0.05 and chosen["rate"] == pytest.approx(0.1)
    assert len(calls) == len(set(calls))  # nothing is computed twice
    assert set(tried) == {"rate", "threshold"} and all(chosen[name] in tried[name] for name in tried)
    assert search((), loss) == ({}, {})  # where there is nothing to choose

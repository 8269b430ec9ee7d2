"""Results of a panel of Figure 2 that nobody computed: what is made of them is known."""

import numpy as np


def planted(panel, best, told_apart=lambda point, t: 1.0, rules=("matched",)):
    """Results in which the best start of trial t at a point is `best(point, t)` away, by some of the rules.

    Its models are `told_apart(point, t)` of the distance of the true ones apart.
    """
    found = {}
    for point in panel.points():
        distance = np.full((panel.trials, panel.starts, len(panel.rates)), np.inf)
        distance[:, 1, 1] = [best(point, t) for t in range(panel.trials)]
        apart = np.ones_like(distance)  # those that are far away are not asked whether they tell apart
        apart[:, 1, 1] = [told_apart(point, t) for t in range(panel.trials)]
        far = np.full_like(distance, np.inf)
        found[point.name] = {
            "told_apart": apart,
            **{rule: distance if rule in rules else far for rule in ("matched", "nearest", "printed")},
        }
    return found

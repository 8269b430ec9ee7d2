"""Results of a table that nobody computed: what is made of them is known."""

import numpy as np


def planted(table, **named):
    """Results in which every seed of an entry has `named[what](entry, trial)`, where that is not None."""
    found = {}
    for point in table.points():
        name, _, trial = point.name.rpartition(" seed ")
        values = {what: give(name, int(trial)) for what, give in named.items()}
        found[point.name] = {
            what.replace("_", " "): np.array(v) for what, v in values.items() if v is not None
        }
    return found


def verdicts(table, results):
    """By the paper's words."""
    return {finding.paper: finding.agrees for finding in table.findings(results)}


def refuted(table, results):
    """The paper's words of the claims that do not hold."""
    return [paper for paper, agrees in verdicts(table, results).items() if agrees is False]

"""Figures of Su, Xu and Yang, "Global Convergence of Federated Learning for Mixed Regression".

Figures 1 to 3: the estimation error against the iteration, with ever more unequal clients (sections V-A to
V-C). The left panels show the two-phase system with several local updates, the right ones other methods. And
an experiment of our own on the same clients: Phase 1 as printed, and with one change at a time. Figures 4 and
5: loss and error on MNIST against the round (section V-D).

There is no released code. What the text leaves open is decided here, and said in the notes: the step size,
how long clients train alone for one-shot clustering, and the constant epsilon.
"""

from coterie.papers.mixed_regression.changes import FIGURES as CHANGES
from coterie.papers.mixed_regression.figures import FIGURES as CURVES
from coterie.papers.mixed_regression.mnist import FIGURES as MNIST
from coterie.papers.mixed_regression.theory import FIGURES as THEORY

FIGURES = (*CURVES, *CHANGES, *MNIST, *THEORY)

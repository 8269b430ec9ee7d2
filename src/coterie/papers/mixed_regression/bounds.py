"""What Theorems 2 and 3 say of rates and errors in the end, beside what is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from coterie.papers.experiment import Arrays, Finding
from coterie.papers.mixed_regression.claims import ALMOST, MUCH, PROPORTIONAL, STRAIGHT
from coterie.papers.mixed_regression.measures import Trials
from coterie.papers.mixed_regression.verdicts import Part, finding

if TYPE_CHECKING:
    from coterie.papers.mixed_regression.theory import Case

FALLEN = 0.2  # of the error at the start: until there the rate is measured, far above where the error stays
HALF = -0.5  # the exponent of 1 / sqrt(M)
TOLERANCE = 0.1  # of an exponent
Measured = Mapping[str, tuple["Case", Arrays]]  # by name


# -- what is measured -------------------------------------------------------------------------------------


def last(result: Arrays) -> Trials:
    """The error after the last round."""
    found: Trials = result["error"][:, -1]
    return found


def rate(result: Arrays) -> Trials:
    """By how much the logarithm of the error falls in a round, while it falls."""
    error, ends = result["error"], _ends(result)
    found: Trials = np.log(error[:, 0] / error[np.arange(len(error)), ends]) / ends
    return found


def straight(result: Arrays) -> Trials:
    """How much of the logarithm of the error a straight line explains until there, R^2."""
    each = zip(result["error"], np.maximum(_ends(result), 2), strict=True)
    return np.array([np.corrcoef(np.arange(end + 1), np.log(e[: end + 1]))[0, 1] ** 2 for e, end in each])


def constant(case: Case, result: Arrays) -> Trials:
    """What c_2 of (8) would be if the bound were exact."""
    found: Trials = rate(result) * result["kappa"] / ((case.steps or 1) * case.rate * result["rho"])
    return found


def exponent(of: Mapping[float, Trials]) -> Trials:
    """The slope of the logarithm of a number of every trial against that of what it depends on."""
    at: np.ndarray = np.log(np.array(list(of)))
    values = np.log(np.stack(list(of.values())))
    at = at - at.mean()
    found: Trials = at @ (values - values.mean(axis=0)) / np.square(at).sum()
    return found


def _ends(result: Arrays) -> np.ndarray:
    """The first round with FALLEN of the error at the start; the last one where there is none."""
    error = result["error"]
    below = error <= FALLEN * error[:, :1]
    ends: np.ndarray = np.where(below.any(axis=1), below.argmax(axis=1), error.shape[1] - 1)
    return ends


# -- what is said -----------------------------------------------------------------------------------------


def findings(measured: Measured, wrong: Mapping[int, np.ndarray]) -> list[Finding]:
    """Every claim, given the results by name, and how many labels are wrong by a client's examples."""
    return [*_rates(measured), *_last_errors(measured), _labels(wrong)]


def _group(measured: Measured, varied: str, known: bool = False) -> Iterator[tuple[float, Case, Arrays]]:
    for case, result in measured.values():
        if (case.varied, case.known) == (varied, known):
            yield case.value, case, result


def _rates(measured: Measured) -> list[Finding]:
    bound = "d(theta_t) <= (1 - c_2 s eta alpha rho / kappa) d(theta_t-1) + ... (8)"
    one, first = measured["s 1"]
    near, far = list(_group(measured, "s")), list(_group(measured, "s far"))
    _, _, even = next(_group(measured, "rho"))

    def over_first(case: Case, result: Arrays) -> Trials:
        ratio: Trials = constant(case, result) / constant(one, first)
        return ratio

    return [
        finding(
            "the model estimation errors decay geometrically starting from any realization that is within a "
            "small neighborhood of theta* (Theorem 2)",
            *(
                Part(f"R^2 of a line through the logarithm, s = {s:g}", straight(r), STRAIGHT)
                for s, _, r in near
            ),
        ),
        finding(
            "kappa ≈ 1 using a relatively small eta (IV-B)",
            *(Part(f"kappa, s = {s:g}, eta = {c.rate:g}", r["kappa"], high=PROPORTIONAL) for s, c, r in near),
        ),
        finding(
            f"{bound}: in proportion to s, where kappa is near 1",
            *(
                Part(
                    f"rate with s = {s:g} over {s:g} times that with s = 1",
                    rate(r) / rate(first) / s,
                    1 / PROPORTIONAL,
                    PROPORTIONAL,
                )
                for s, _, r in near
                if s > 1
            ),
        ),
        finding(
            f"{bound}: with the same c_2 where kappa is larger",
            *(
                Part(
                    f"kappa rate / (s eta rho), s = {s:g}, eta = {c.rate:g} (kappa "
                    f"{np.median(r['kappa']):.2g}), over that with s = 1, eta = {one.rate:g}",
                    over_first(c, r),
                    1 / ALMOST,
                )
                for s, c, r in far
            ),
        ),
        finding(
            f"{bound}: in proportion to rho",
            *(
                Part(
                    f"rate over rho with a cluster of {p:.2g}, over that with even ones",
                    rate(r) / r["rho"] / (rate(even) / even["rho"]),
                    1 / PROPORTIONAL,
                    PROPORTIONAL,
                )
                for p, _, r in _group(measured, "rho")
                if r is not even
            ),
        ),
        finding(
            "to recover the results for FedProx, we only need to set s = 1 (IV-B), with kappa = 1 + gamma",
            *(
                Part(
                    f"kappa rate / (eta rho) of FedProx, eta = {e:g}, over FedAvg's with s = 1",
                    over_first(c, r),
                    1 / ALMOST,
                )
                for e, c, r in _group(measured, "eta")
            ),
        ),
    ]


def _last_errors(measured: Measured) -> list[Finding]:
    _, first = measured["s 1"]
    balanced = next(_group(measured, "chi2"))[2]
    by_clients = {known: {m: last(r) for m, _, r in _group(measured, "M", known)} for known in (False, True)}

    def over_kappa(result: Arrays) -> Trials:
        ratio: Trials = last(result) / last(first) / (result["kappa"] / first["kappa"])
        return ratio

    return [
        finding(
            "the final estimation error ... scales linearly in kappa (IV-C), as a bound, with FedAvg",
            *(
                Part(
                    f"last error, s = {s:g}, eta = {c.rate:g}, over that with s = 1, eta = 0.01, over "
                    "the ratio of the kappas",
                    over_kappa(r),
                    high=ALMOST,
                )
                for s, c, r in _group(measured, "s far")
            ),
        ),
        finding(
            "the same with FedProx",
            *(
                Part(
                    f"last error of FedProx, eta = {e:g}, over FedAvg's with s = 1, over the ratio of the "
                    "kappas",
                    over_kappa(r),
                    high=ALMOST,
                )
                for e, _, r in _group(measured, "eta")
            ),
        ),
        finding(
            "nu ~ sqrt(d k log k / M) (9): the error in the end falls as 1 / sqrt(M), or faster",
            Part("exponent of M", exponent(by_clients[False]), high=HALF + TOLERANCE),
        ),
        finding(
            "if the cluster structure were known exactly, we would get a model estimation error ... scaling "
            "as sqrt(d / N_l) (IV-B)",
            Part(
                "exponent of M, with clusters known",
                exponent(by_clients[True]),
                HALF - TOLERANCE,
                HALF + TOLERANCE,
            ),
        ),
        *(
            finding(
                "the final estimation error is dominated by the clustering error captured by nu (IV-C): "
                f"noise {sigma:g}",
                Part(
                    "last error over that with clusters known",
                    last(result) / last(measured[f"{case.name} known"][1]),
                    MUCH,
                ),
            )
            for sigma, case, result in _group(measured, "sigma")
        ),
        finding(
            "nu ~ sqrt(chi^2(n) + 1) (9): the error in the end grows no faster with the skewness of sizes",
            *(
                Part(
                    f"last error with chi^2 = {v:g} over that with 0, over sqrt(chi^2 + 1)",
                    last(r) / last(balanced) / sqrt(v + 1),
                    high=ALMOST,
                )
                for v, _, r in _group(measured, "chi2")
                if v
            ),
        ),
    ]


def _labels(wrong: Mapping[int, np.ndarray]) -> Finding:
    share = {n: float(np.mean(trials)) for n, trials in wrong.items()}
    fit, falls = 0.0, False
    if min(share.values()) > 0:
        n, logs = np.array(list(share)), np.log(list(share.values()))
        fit, falls = float(np.corrcoef(n, logs)[0, 1] ** 2), bool(logs[-1] < logs[0])
    shown = ", ".join(f"{100 * value:.2g} % (n = {n})" for n, value in share.items())
    return Finding(
        "the clustering error in expectation ... diminishes exponentially in the local data size (IV-B)",
        f"{shown} of the clients choose a wrong one of the true models; of its logarithm a line against n "
        f"explains R^2 = {fit:.3f} [at least {STRAIGHT:g}, falling].",
        fit >= STRAIGHT and falls,
    )

"""What the SR-FCA paper says of its experiments, beside what is found."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from coterie.papers.experiment import Arrays, Finding

METHODS = {
    "srfca": "SR-FCA",
    "srfca-warm": "SR-FCA, warm",
    "srfca-long": "SR-FCA, 3 x steps",
    "local": "Local",
    "global": "Global, FedAvg",
    "fedprox": "Global, FedProx",
    "ifca": "IFCA, one start",
    "ifca-5": "IFCA, best of 5",
    "one-shot-ifca": "ONE_SHOT-IFCA",
    "one-shot-kmeans": "one-shot k-means",
    "cfl": "CFL",
    "fedsoft": "FedSoft",
    "fedsoft-own": "FedSoft, own models",
    "oracle": "oracle",
}


def claims(
    population: str, served: Mapping[str, Float[np.ndarray, " trials"]], ours: Arrays, regression: bool
) -> list[Finding]:
    """The paper's claims for some clients, given how each method serves them and SR-FCA's own results."""
    found = []
    better = -1 if regression else 1
    mean = {m: better * float(values.mean()) for m, values in served.items()}
    trials = len(ours["misclustering"])
    right = int((ours["misclustering"] == 0).sum())
    found.append(
        Finding(
            "SR-FCA ... is able to recover the correct clustering (section 1.1; Table 3: 0.0)",
            f"{population}: the true clusters in {right} of {trials} trials.",
            right == trials,
        )
    )
    rivals = {m: mean[m] for m in ("local", "global", "cfl", "one-shot-kmeans", "ifca")}
    best = max(rivals, key=lambda m: rivals[m])
    longer = ""
    if "srfca-long" in mean:
        longer = f", and {abs(mean['srfca-long']):.4g} with three times the steps"
    found.append(
        Finding(
            "SR-FCA obtains test accuracy no worse than the best baseline (section 1.1)",
            f"{population}: SR-FCA {abs(mean['srfca']):.4g}{longer}; the best of the paper's "
            f"baselines is {METHODS[best]} with {abs(mean[best]):.4g}.",
            mean["srfca"] >= rivals[best] - abs(rivals[best]) * 0.005,
        )
    )
    if "course" in ours and better > 0:
        course = ours["course"].mean(axis=0)
        found.append(
            Finding(
                "accuracy rises with each REFINE (Table 5: 85.55, 91.63, 91.66 for rotated MNIST)",
                f"{population}: " + ", ".join(f"{value:.2%}" for value in course) + ".",
                bool((np.diff(course) >= -0.002).all()),
            )
        )
    wrong = ours["wrong"].mean(axis=0)
    found.append(
        Finding(
            "each REFINE reduces the misclustering error (Theorem 4.8)",
            f"{population}: "
            + ", ".join(f"{value:.1%}" for value in wrong)
            + " after ONE_SHOT and each REFINE.",
            bool((np.diff(wrong) <= 0).all()) if np.ptp(wrong) else None,  # no change decides nothing
        )
    )
    return found

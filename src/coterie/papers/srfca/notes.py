"""What a reader of Tables 1 to 5 has to know about each reading."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.papers.srfca import fair
from coterie.papers.srfca.published import NAMES, REAL
from coterie.papers.srfca.setups import TEXT, Setup

READINGS = {
    "text": (
        "iterations, REFINEs, networks, clients and, for MNIST and CIFAR-10, who takes part are as printed; "
        "step sizes, optimisers, batches, β and who takes part in a round with real clients (10 for each "
        "cluster that IFCA is told of) are the released code's, which chose them on test data.",
        "SR-FCA is told neither k nor λ (threshold 'auto'); with the released λ where it can be converted: "
        "it is in mean losses here, where that code divides a sum of means of batches by a number of "
        "examples. "
        "IFCA is told k: one random start, as in the paper, and beside it the best of 5 after a quarter of "
        "the rounds. CFL is told up to how many clusters to split.",
        "clients train alone in one go, as many steps as another method takes in all; Local, Local-KMeans, "
        "SR-FCA and ONE_SHOT-IFCA go on from the same models.",
        "what is wrong in the released code is not repeated. Its Local-KMeans fills every layer from the "
        "head of one vector, its CFL splits whatever its criteria say, its FedSoft has no proximal term and "
        "takes "
        "positions of examples for counts, its IFCA for CIFAR-10 loses its momentum at every step, and it "
        "measures models before the last RECLUSTER and MERGE.",
    ),
    "authors": (
        "as the released code where that moves a number: inverted MNIST has raw pixels (0 to 255), 10 "
        "clients per cluster take part in a round of MNIST, and all with CIFAR-10, which has one REFINE and, "
        "rotated, 16 clients. The second cluster of CIFAR-10 by labels has the labels 4 and 5 only, as "
        "labels are filtered twice there: 32 clients hold as many images each as the 16 of that code. λ of "
        "the row that is so called is its own, in mean losses; where no two clients are so near, all stay "
        "with the models that they trained alone.",
        "not repeated, since it is printed otherwise: 210 iterations in a REFINE of rotated MNIST.",
        "Local-KMeans as released makes every layer of a cluster's model of the head of one vector: a "
        "mistake, repeated since it explains the published numbers for MNIST. Other mistakes are not.",
    ),
    "fair": fair.NOTES,
}
CIFAR = (
    "CIFAR-10: clients take 48 steps between exchanges, where the released code averages gradients after "
    "each; the text does not say how many. Momentum starts afresh after an exchange. ResNet-9 has group "
    "normalisation in the place of batch normalisation. All images are in both clusters of rotated CIFAR-10; "
    "by labels 32 clients of 4,375 images would hold every image twice, and have 2,187 or 2,188."
)
PEOPLE = (
    "FEMNIST: 50 of the writers that there are in the folder, which need not be all of LEAF's; those of more "
    "than 400 training examples are cut to as many. Shakespeare: roles are cut to their first 4,096 windows, "
    "and as many to test on. SR-FCA's own number is that after one REFINE, as printed; its run goes on for a "
    "second, which Table 5 shows. There the released λ is the "
    "share of all pairs that it had: 25 % for Shakespeare, and 30 % in an earlier setting for FEMNIST, whose "
    "last one (0.54) divides by each client's number of examples and has no value in losses."
)


def notes(preset: str, scale: str, setups: Mapping[str, Setup]) -> list[str]:
    """For these data sets."""
    found = list(READINGS[preset])
    if scale != "paper":
        sizes = [_size(data, setup) for data, setup in setups.items()]
        found.append(f"smaller than in the paper, whose numbers stand beside these: {'; '.join(sizes)}.")
    found += [CIFAR] if any(data.endswith("cifar10") for data in setups) else []
    found += [PEOPLE] if any(data in REAL for data in setups) else []
    short = [NAMES[data] for data, setup in setups.items() if not setup.decides]
    return [*found, *([f"too little training to decide anything: {', '.join(short)}."] if short else [])]


def _size(data: str, setup: Setup) -> str:
    whole = TEXT[data]
    examples = f" of {setup.most} examples at most" if setup.most != whole.most else ""
    return (
        f"{NAMES[data]}, {setup.clients} clients{examples} (there {whole.clients}), {setup.iterations} "
        f"iterations (there {whole.iterations})"
    )

"""Tables and Figure 3 of Vardhan, Ghosh and Mazumdar, "An Improved Federated Clustering Algorithm ...".

All methods on clients with known clusters: accuracy (Table 2), misclustering (Table 3), what they cost
(Table 1), SR-FCA's accuracy step by step (Table 5), and the distances after ONE_SHOT (Figure 3).

`figures` has the experiments and their sizes, `populations` the clients, `methods` and `authors` what is
compared on them, `tuning` how settings are chosen, `costs` what is counted, and `claims` what the paper says.
"""

from coterie.papers.srfca.figures import FIGURES

__all__ = ["FIGURES"]

"""Tables and Figure 3 of Vardhan, Ghosh and Mazumdar, "An Improved Federated Clustering Algorithm ...".

All methods on clients with known clusters: accuracy (Table 2), misclustering (Table 3), what they cost
(Table 1), SR-FCA's accuracy step by step (Table 5), and the distances after ONE_SHOT (Figure 3); and on real
clients (Table 4).

On the paper's own data: `setups` has the clients and how they train, `trial` the methods, `fair` those with
equal budgets, `views` the tables, `published` and `statements` what the paper prints and says, `notes` and
`drawings` the rest. On data that needs no download: `populations` has the clients, `methods` and `authors`
what is compared on them, `comparison` the experiment, `tuning` how settings are chosen, and `claims` what the
paper says. `figures` lists the experiments with their sizes, and `costs` is what is counted.
"""

from coterie.papers.srfca.figures import FIGURES

__all__ = ["FIGURES"]

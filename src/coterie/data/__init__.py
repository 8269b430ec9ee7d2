"""Who holds what: client shards, and data sources that make them."""

from coterie.data.digits import inverted_digits, rotated_digits
from coterie.data.federated import Federated
from coterie.data.files import client_file
from coterie.data.shards import Shards, Spec
from coterie.data.synthetic import mixed_regression

__all__ = [
    "Federated",
    "Shards",
    "Spec",
    "client_file",
    "inverted_digits",
    "mixed_regression",
    "rotated_digits",
]

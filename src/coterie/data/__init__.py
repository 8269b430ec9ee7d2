"""Who holds what: client shards, and data sources that make them."""

from coterie.data.cifar import label_cifar10, rotated_cifar10
from coterie.data.digits import inverted_digits, rotated_digits
from coterie.data.federated import Federated
from coterie.data.femnist import femnist
from coterie.data.files import client_file
from coterie.data.folder import folder
from coterie.data.mnist import inverted_mnist, rotated_mnist
from coterie.data.shakespeare import shakespeare
from coterie.data.shards import Shards, Spec
from coterie.data.synthetic import mixed_regression
from coterie.data.table import table

__all__ = [
    "Federated",
    "Shards",
    "Spec",
    "client_file",
    "femnist",
    "folder",
    "inverted_digits",
    "inverted_mnist",
    "label_cifar10",
    "mixed_regression",
    "rotated_cifar10",
    "rotated_digits",
    "rotated_mnist",
    "shakespeare",
    "table",
]

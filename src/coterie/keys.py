"""Randomness derived from (seed, purpose, round, client id), never from a shared stream.

Two consequences, both tested: the result of a run does not depend on how clients are ordered, batched or
spread over devices, and an interrupted run continues exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from hashlib import blake2b

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, UInt32

Token = np.uint64


def purpose(seed: int, name: str) -> Key[Array, ""]:
    """The key of one purpose (`"init"`, `"rounds"`, ...) of a run."""
    return jax.random.fold_in(jax.random.key(seed), int(token(name) & np.uint64(0x7FFFFFFF)))


def token(identity: object) -> Token:
    """64 bits that stand for a client id (or a purpose) wherever it is needed as a number."""
    return np.uint64(tokens([identity])[0])


def tokens(ids: Iterable[object]) -> np.ndarray:
    """One token per id, shape (clients,)."""
    each = ids.tolist() if isinstance(ids, np.ndarray) else ids
    # joined, and not made a number one by one: there may be a million
    joined = b"".join([blake2b(str(i).encode(), digest_size=8).digest() for i in each])
    return np.frombuffer(joined, "<u8").astype(np.uint64)


def words(of: np.ndarray) -> np.ndarray:
    """Tokens as two 32-bit words each, shape (clients, 2), the form in which they travel to a device."""
    return np.stack([of & np.uint64(0xFFFFFFFF), of >> np.uint64(32)], axis=-1).astype(np.uint32)


def of_client(key: Key[Array, ""], client: UInt32[Array, "2"]) -> Key[Array, ""]:
    """The key of one client, from the key of an ask and the client's token words."""
    return jax.random.fold_in(jax.random.fold_in(key, client[0]), client[1])


@partial(jax.jit, static_argnums=(1, 2))
def grid(key: Key[Array, ""], rows: int, columns: int) -> Key[Array, "rows columns"]:
    """A key for each cell of a table; a cell's key does not depend on the size of the table."""
    cells: Array = jax.vmap(lambda r: numbered(jax.random.fold_in(key, r), columns))(jnp.arange(rows))
    return cells


@partial(jax.jit, static_argnums=1)
def numbered(key: Key[Array, ""], count: int) -> Key[Array, " count"]:
    """Keys number 0, 1, 2, ... of a key."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))


def participants(seed: int, round_: int, clients: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` clients drawn for a round, ascending.

    Every client has a number of its own for each (seed, round); the `count` smallest take part. So who is
    drawn depends on ids alone, not on the order of the clients.
    """
    if count >= len(clients):
        return np.arange(len(clients))
    drawn = lots(f"participants/{seed}/{round_}", clients)
    return np.flatnonzero(drawn <= np.partition(drawn, count - 1)[count - 1])[:count]


def lots(purpose: str, clients: np.ndarray) -> np.ndarray:
    """64 random bits for each client, from its token and the purpose alone; no two draw the same."""
    z = clients ^ token(purpose)
    # the finaliser of splitmix64, a bijection of 64-bit words
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)  # modulo 2**64
    return np.asarray(z ^ (z >> np.uint64(31)))

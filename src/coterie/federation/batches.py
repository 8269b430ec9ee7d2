"""How many clients to compute at once.

On a CPU, as few as keep a core busy with what lies in its own cache; but more where models that all clients
have in common are only applied: 800 examples at once took from 18 to 42 % less time than one client's. On an
accelerator, as many as its memory holds; but one after another where a model has convolutions as JAX has
them, whose gradients are far slower together (those of `coterie.models` are not). All that is known from the
shapes of an ask, without running it. Who wants to know for sure has it measured (`"tune"`). The choice
changes results by rounding, and depends on nothing that changes from run to run on one machine, so that a
resumed run computes exactly the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from coterie.federation import tuning
from coterie.federation.program import Program, Share
from coterie.federation.protocol import bytes_of
from coterie.learn.learner import Learner

Batch = int | Literal["auto", "tune"]
Found = TypeVar("Found")

IN_CACHE = 3 * 2**14  # numbers that a core keeps close to itself: 192 kB in float32
TOGETHER = 800  # examples of several clients that go through models which all have in common
OF_MEMORY = 0.8  # of an accelerator's memory that one batch may take
TUNED_ON_CPU = (1, 4, 8, 32)
TUNED_ON_ACCELERATOR = (1, 16, 128, 1024, 4096)


def at_once(
    batch: Batch,
    program: Program,
    learner: Learner,
    everybody: dict[str, PyTree],
    shares: Sequence[Share],
    devices: int,
    memory: int,
) -> list[int]:
    """For each bucket, how many clients to compute at once, on devices that have so many bytes of memory.

    The bucket with the most examples is looked at; the others get as many examples at once.
    """
    # inside `shard_map` every device has its part of the clients
    counts = [-(-share.clients // devices) for share in shares]
    if isinstance(batch, int):
        return [min(batch, count) for count in counts]
    widths = [share.x.shape[1] for share in shares]
    main = max(range(len(shares)), key=lambda i: counts[i] * widths[i])
    share, count = shares[main], counts[main]
    if batch == "auto":
        best = _modelled(program, learner, everybody, share, count, memory)
    else:
        best = _measured(program, learner, everybody, share, count, devices)
    return [
        max(1, min(count, best * widths[main] // width)) for width, count in zip(widths, counts, strict=True)
    ]


def may_run_out() -> bool:
    """Whether a program that needs too much memory fails, and nothing else does."""
    return jax.default_backend() != "cpu"


def until_it_fits(run: Callable[[], Found], need_less: Callable[[], None]) -> Found:
    """What `run` gives; whenever the device's memory is too small for it, `need_less` comes first."""
    while True:
        try:
            found = run()
            jax.block_until_ready(found)
            return found
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        need_less()


def _modelled(
    program: Program, learner: Learner, everybody: dict[str, PyTree], share: Share, count: int, memory: int
) -> int:
    """By what one client of the bucket needs."""
    equations = partial(_equations_of_some, program, learner, everybody, share)
    if jax.default_backend() == "cpu":
        value = program.shape(learner, everybody, *share.one()).value
        own = bytes_of(value) // 4 * (program.starts or 1)
        best = max(1, IN_CACHE // (math.prod(share.x.shape[1:]) + own))
        in_common = not own and not share.each and share.only is None
        if in_common and not _convolves(equations(1, inside=True)):
            # every batch lays the models out anew for its products
            best = max(best, TOGETHER // share.x.shape[1])
        return best
    made, together = equations(1), 1
    if _convolves(made):
        return 1
    if count > 1 and any(_batches_itself(equation) for equation in made):
        # then it is something else that is made where there are several clients
        made, together = equations(2), 2
    # all that is made on the way; XLA holds less of it at a time
    need = sum(bytes_of([variable.aval for variable in equation.outvars]) for equation in made)
    return max(1, min(count, int(OF_MEMORY * memory) * together // max(need, 1)))


def _equations_of_some(
    program: Program,
    learner: Learner,
    everybody: dict[str, PyTree],
    share: Share,
    clients: int,
    inside: bool = False,
) -> list[Any]:
    """The equations of what the first clients of a bucket do; see `_equations`."""
    some = partial(_some_reply, program, clients=clients)
    return list(_equations(jax.make_jaxpr(some)(learner, everybody, share).jaxpr, inside))


def _convolves(equations: list[Any]) -> bool:
    return any(equation.primitive.name == "conv_general_dilated" for equation in equations)


def _some_reply(
    program: Program, learner: Learner, everybody: dict[str, PyTree], share: Share, clients: int
) -> Any:
    """What the first clients of a bucket reply."""
    client, inputs = partial(program.client, learner, everybody, jax.random.key(0)), share.pick(0, clients)
    if clients == 1:
        return client(*jax.tree.map(lambda a: a[0], inputs))
    return jax.vmap(client)(*inputs)


def _equations(jaxpr: Any, inside: bool) -> Iterator[Any]:
    """The equations of a program, with those of all that it calls.

    `inside` also of what has a way of its own to be computed for several clients.
    """
    for equation in jaxpr.eqns:
        yield equation
        if _batches_itself(equation) and not inside:
            continue
        for inner in jax.tree.leaves(list(equation.params.values())):
            if _is_program(inner):
                yield from _equations(getattr(inner, "jaxpr", inner), inside)


def _batches_itself(equation: Any) -> bool:
    return bool(equation.primitive.name == "custom_vmap_call")


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def _measured(
    program: Program, learner: Learner, everybody: dict[str, PyTree], share: Share, count: int, devices: int
) -> int:
    """The fastest of a few, timed with numbers of our own in the place of the clients' data."""
    candidates: tuple[int, ...] = TUNED_ON_CPU if jax.default_backend() == "cpu" else TUNED_ON_ACCELERATOR
    count = min(count, max(candidates))
    candidates = tuple(sorted({min(c, count) for c in candidates}))
    sample = jax.eval_shape(lambda: _some(share, count))
    inputs = learner, everybody, jax.random.key(0), sample
    shapes = jax.tree.map(lambda a: (jnp.shape(a), str(jnp.result_type(a))), inputs)
    task = f"{program.task} {program.reduce} {program.starts}"
    precision = getattr(jax.config, "jax_default_matmul_precision", None)
    setting = f"{precision}, {devices} x {jax.devices()[0].device_kind}"
    question = f"{task} {shapes} {setting}, jax {jax.__version__}"
    shape = program.shape(learner, everybody, *share.one())

    def timed(batch: int) -> Any:
        def once(learner: Learner, everybody: dict[str, PyTree], key: Any, share: Share) -> Any:
            with jax.default_matmul_precision(precision):
                return program.run(learner, everybody, key, share, batch, program.start(shape))

        return partial(jax.jit(once), *tuning.stand_in(inputs))

    return tuning.fastest(question, candidates, timed)


def _some(share: Share, count: int) -> Share:
    """A share's first clients, as if they were all there is."""
    of_clients = share.x, share.y, share.size, share.token, share.each, share.only, share.gram
    x, y, size, token, each, only, gram = jax.tree.map(lambda a: a[:count], of_clients)
    return Share(share.spec, x, y, size, token, None, jnp.arange(count), each, only, gram=gram)

"""What every client knows by name: all that it can be asked over a network."""

from __future__ import annotations

from coterie.learn import moments, soft, tasks
from coterie.learn.tasks import Task

TASKS: dict[str, Task] = {
    task.__name__: task
    for task in (
        tasks.choose_and_train,
        tasks.choose_and_gradient,
        tasks.weigh_and_train,
        tasks.train,
        tasks.losses,
        tasks.size,
        tasks.evaluate,
        moments.multiply_moment,
        moments.descend_moment,
        soft.count_nearest,
        soft.train_between,
    )
}

"""The tasks that every client knows by name: all that it can be asked over a network."""

from __future__ import annotations

from coterie.learn import compare, halves, inputs, moments, soft, tasks
from coterie.learn.task import Task

TASKS: dict[str, type[Task]] = {
    task.__name__: task
    for task in (
        tasks.ChooseAndTrain,
        tasks.WeighAndTrain,
        tasks.TrainAlone,
        tasks.MeasureLosses,
        tasks.CountExamples,
        tasks.Evaluate,
        moments.MultiplyMoment,
        moments.DescendMoment,
        halves.TrainHalves,
        halves.JudgeAlone,
        halves.JudgeHalves,
        halves.PullHalves,
        soft.CountNearest,
        soft.TrainBetween,
        inputs.DescribeInputs,
        compare.CompareHalves,
    )
}

"""Runs the tasks on a model, in every mode of agentloop and with other libraries, and prints how many of them each solves.

    python -m models [--modes MODE …] [--apis API …] [--tasks TASK …] [--seeds N] [--wordings N] [--limit-minutes M] [--model MODEL]

`make test-models` makes an environment with a model and runs it there. Each result is written when it is there, and another run
goes on where the last one ended. The order is such that at every moment each subject has had the same tasks, but for one.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import inspect
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attrs import asdict, frozen

from models import tasks
from models.results import Key, Result, ResultFile, judge, render_table, summarize
from models.serving import PATHS, Meter, default_model, is_url, name_of, served, spoken_apis
from models.subjects import NAMES, Assignment, Ending, Settings, Subject, subject
from models.tasks import TASKS, Task

SEEDS, WORDINGS = 5, 3
RESULTS = Path("build/models/results.jsonl")


@frozen(kw_only=True)
class Job:
    """One run to do: a subject on an API, with a task in one wording and one seed."""

    subject: Subject
    api: str
    task: Task
    wording: int
    seed: int

    def key(self, setup: str) -> Key:
        """What makes it the same run as an earlier one."""
        return (setup, self.subject.code, self.subject.name, self.api, self.task.name, self.wording, self.seed)


def plan(
    subjects: Sequence[Subject], apis: Sequence[str], chosen: Sequence[Task], wordings: int, seeds: int
) -> Iterator[Job]:
    """Yield the runs to do, with those of all subjects side by side, and one task of each kind after the other."""
    earlier: Counter[str] = Counter()
    places = {}
    for task in chosen:
        places[task.name] = earlier[task.kind]
        earlier[task.kind] += 1
    spread = sorted(chosen, key=lambda task: places[task.name])
    for seed in range(1, seeds + 1):
        for wording in range(wordings):
            for task in spread:
                for api in apis:
                    for each in subjects:
                        if api in each.apis:
                            yield Job(subject=each, api=api, task=task, wording=wording, seed=seed)


def setup_of(model: str, settings: Settings) -> str:
    """Return a digest of what results must share to be compared: the model, the settings and the tasks, but not how long a run may take."""
    same = {name: value for name, value in asdict(settings).items() if name != "seconds"}
    parts = json.dumps([model, same, inspect.getsource(tasks)])
    return hashlib.sha256(parts.encode()).hexdigest()[:12]


def run_job(job: Job, *, url: str, model: str, setup: str, settings: Settings, clock: Callable[[], float]) -> Result:
    """Do one run."""
    begin = clock()
    with Meter(url) as meter:
        given = Assignment(
            task=job.task,
            question=job.task.wordings[job.wording],
            url=meter.url,
            model=model,
            api=job.api,
            seed=job.seed,
            settings=settings,
        )
        ending: Ending = asyncio.run(job.subject.solve(given))
    errors = list(meter.errors)
    if ending.is_protocol_error and not errors:
        errors.append(ending.error)
    return Result(
        setup=setup,
        code=job.subject.code,
        subject=job.subject.name,
        api=job.api,
        task=job.task.name,
        wording=job.wording,
        seed=job.seed,
        requests=meter.requests,
        tokens=meter.tokens,
        seconds=round(clock() - begin, 2),
        protocol_errors=errors,
        **judge(job.task, ending, given.made),
    )


def run_jobs(
    jobs: Sequence[Job],
    file: ResultFile,
    run: Callable[[Job], Result],
    *,
    limit_seconds: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Do the runs that are left, as long as there is time, and say how far it is."""
    begin = clock()
    for number, job in enumerate(jobs, 1):
        if limit_seconds is not None and clock() - begin >= limit_seconds:
            show(f"the time is over: {len(jobs) - number + 1} runs are left for the next time")
            return
        result = run(job)
        file.add(result)
        minutes = (clock() - begin) / number * (len(jobs) - number) / 60
        outcome = "solved" if result.solved else f"not solved ({result.how})"
        show(
            f"[{number}/{len(jobs)}] {job.api} {job.subject.name}, {job.task.name}, wording {job.wording + 1}, seed {job.seed}: {outcome}, "
            f"{result.requests} requests, {result.seconds:.0f} s; {minutes:.0f} minutes left"
        )


def show(line: str) -> None:
    """Write a line about the progress."""
    print(line, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, or end the program with what is wrong with them."""
    known = [task.name for task in TASKS]
    parser = argparse.ArgumentParser("models", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=NAMES, default=NAMES, metavar="MODE", help=", ".join(NAMES))
    parser.add_argument(
        "--apis",
        nargs="+",
        choices=list(PATHS),
        metavar="API",
        help=f"{', '.join(PATHS)}; default: what the server speaks",
    )
    parser.add_argument("--tasks", nargs="+", choices=known, default=known, metavar="TASK", help=", ".join(known))
    parser.add_argument(
        "--seeds", type=int, choices=range(1, 101), default=SEEDS, metavar="N", help="how many seeds (5)"
    )
    parser.add_argument(
        "--wordings", type=int, choices=range(1, WORDINGS + 1), default=WORDINGS, metavar="N", help="of 3 (3)"
    )
    parser.add_argument(
        "--limit-minutes", type=float, metavar="M", help="begin no run after it; 0 prints the table alone"
    )
    parser.add_argument("--model", help="a GGUF file, or the URL of a server; default: the installed model")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help=f"the results ({RESULTS})")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of a server that is started (1)")
    parser.add_argument("--context", type=int, default=8192, metavar="N", help="its context window in tokens (8192)")
    parser.add_argument("--temperature", type=float, default=Settings().temperature, metavar="T", help="sampling (0.3)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left to do, print the table and write it; return 1 if there was a protocol error."""
    options = parse(arguments)
    settings = Settings(temperature=options.temperature)
    model = options.model or default_model()
    file = ResultFile.open(options.results)
    subjects = [subject(name) for name in options.modes]
    chosen = [task for task in TASKS if task.name in options.tasks]
    name = name_of(model) if is_url(model) else Path(model).name
    setup = setup_of(name, settings)

    def plan_for(apis: Sequence[str]) -> list[Job]:
        return list(plan(subjects, apis, chosen, options.wordings, options.seeds))

    if options.limit_minutes != 0:
        log = options.results.with_suffix(".server.log")
        with served(model, context=options.context, threads=options.threads, log=log) as url:
            served_name = name_of(url)
            apis = options.apis or spoken_apis(url, served_name)
            left = [job for job in plan_for(apis) if job.key(setup) not in file.results]
            show(f"{name}, {', '.join(apis)}: {len(left)} runs to do")
            seconds = None if options.limit_minutes is None else options.limit_minutes * 60

            def run(job: Job) -> Result:
                return run_job(job, url=url, model=served_name, setup=setup, settings=settings, clock=time.monotonic)

            try:
                run_jobs(left, file, run, limit_seconds=seconds)
            except KeyboardInterrupt:
                show("interrupted: the next run goes on here")
    return report(file, plan_for(options.apis or list(PATHS)), setup, settings, name)


def report(file: ResultFile, jobs: Sequence[Job], setup: str, settings: Settings, model: str) -> int:
    """Print the table of the results that were asked for, and write it as JSON beside the results."""
    counted = [file.results[key] for job in jobs if (key := job.key(setup)) in file.results]
    cells = summarize(counted)
    print(f"{model}, temperature {settings.temperature}, at most {settings.steps} steps: {len(counted)} runs\n")
    print(render_table(cells))
    if others := len(file.results) - len(counted):
        show(f"{others} results in {file.path} are of other code, settings or choices, and not in the table")
    summary = {"model": model, "setup": setup, "settings": asdict(settings), "runs": len(counted), "cells": cells}
    path = file.path.with_suffix(".json")
    path.write_text(json.dumps(summary, indent=2) + "\n")
    show(f"{path} has these figures")
    return int(any(cell["protocol_errors"] for cell in cells))


if __name__ == "__main__":
    raise SystemExit(main())

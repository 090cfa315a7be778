"""``semistream tune``."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from semistream.cli import console
from semistream.cli.command import Command


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--measure",
        action="store_true",
        help="run the grid's points here, and show measured beside predicted",
    )
    parser.add_argument(
        "--scale-out",
        metavar="P,P,…",
        type=_numbers,
        default=(),
        help="what these numbers of operators would bring, for instance 1,2,4,8",
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise ArgumentTypeError(f"must be whole numbers, separated by commas: {text!r}") from None


def run(arguments: Namespace) -> int:
    from semistream.sizing import known_costs, scale_out
    from semistream.streaming.settings import load_with_settings
    from semistream.tuning import advice
    from semistream.tuning.star import splits
    from semistream.tuning.tuning_input import open_tuning_input

    settings, paths = arguments.settings, arguments.paths
    if settings.job and "memory" not in settings.model_fields_set:
        _, own = load_with_settings(settings.job, paths)
        if "memory" in own:
            memory = type(settings).load({"memory": str(own["memory"])}).memory
            settings = settings.model_copy(update={"memory": memory})
    with (
        console.progress(arguments.progress) as tell,
        open_tuning_input(settings, paths, tell) as sizing,
    ):
        found = advice.advise(sizing, settings, paths, arguments.measure, tell)
        costs = known_costs(paths.home)
        plans = scale_out.scale_out(
            sizing, settings.memory, arguments.scale_out, settings.algorithms, costs
        )
        # a join of files is no load
        budgets = map(int, settings.memory) if settings.job else ()
        roles = splits(sizing, paths, budgets, costs)
    value = found.as_dict() | ({"scale_out": plans} if plans else {})
    several = len(sizing.job.roles) > 1
    does = "of all roles splits M so" if several else "holds R whole in memory"
    if roles:
        value["roles"] = {memory: of.reason for memory, of in roles.items()}
        value["shares"] = {memory: of.shares for memory, of in roles.items()}

    def render(_: object) -> None:
        screen = console.wide_console(150)
        for table in (*found.tables(), *scale_out.tables(plans)):
            console.print_table(screen, table)
        console.print_remarks(
            console.text_console(), roles=[f"a load {does}: {of.reason}" for of in roles.values()]
        )

    console.show(arguments.json, value, render)
    return 0


COMMAND = Command(
    "tune",
    "say which algorithm, with which sizes, suits a stream and its master data, by the cost models",
    run,
    add_arguments,
    settings="semistream.tuning.settings.TuneSettings",
    positional=(("job", "job"),),
    progress=True,
    json=True,
    example="semistream tune --stream flights.csv --master planes.csv --on "
    "tailnum --null-values NA --memory 200KB,1MB.",
)

"""One rank of `dsforge probe`, started by its launcher: `python -m dsforge.probe.rank QUESTION`."""

from __future__ import annotations

import argparse
import sys

from dsforge.error_report import error_report
from dsforge.errors import DsforgeError
from dsforge.probe.messages import Answer, Ended, Question, answer_line


def main() -> int:
    """The exit code of this rank; the first one writes the answers to standard output."""
    parser = argparse.ArgumentParser(prog="dsforge.probe.rank", description=main.__doc__)
    parser.add_argument("question", type=Question.of_word, help="from `dsforge probe`")
    parser.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)  # from launchers
    given = parser.parse_args()
    try:
        measure(given.question)
    except DsforgeError as error:
        sys.stderr.write(error_report(error))
        return error.exit_code
    return 0


def measure(question: Question) -> None:
    """Measure everything that is asked, with every other rank."""
    from dsforge.probe.rank.location import standing_of, world
    from dsforge.train.parallel.ranks import (
        choose_device,
        join,
        leave,
        place_of_process,
        prefer_own_tools,
    )

    place = place_of_process()
    standing = standing_of(place)
    prefer_own_tools()
    join(place)
    choose_device(place)

    from deepspeed.accelerator import get_accelerator

    from dsforge.probe.rank.collectives import timed_collectives
    from dsforge.probe.rank.device_speed import device_rates
    from dsforge.probe.rank.timing import Clock

    def say(answer: Answer | None) -> None:
        if answer is not None and place.is_first:
            sys.stdout.write(answer_line(answer))
            sys.stdout.flush()

    device, clock = get_accelerator(), Clock(question.budget_s)
    name = device.device_name()
    say(world(standing, name if name == "cpu" else device.get_device_name()))
    for answer in timed_collectives(question, standing, clock):
        say(answer)
    for answer in device_rates(question, standing, clock):
        say(answer)
    say(Ended(seconds=clock.elapsed_s))
    leave()


if __name__ == "__main__":
    sys.exit(main())

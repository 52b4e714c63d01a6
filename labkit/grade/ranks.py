"""Run learner code on ranks, and turn every way to fail into one message.

The parent, which holds oracle and verdict, executes no learner code: it carries an object or a text
to fresh processes and reads plain data from them. What remains possible, for instructors:

* Code that knows this course's grader can, inside a rank, look up the frames above it and change
  what the rank returns, or end the ledger's subscription and send unheard. It has to be written for
  that purpose and stands in the answer cell for everybody to read.
* A rank writes its result as a pickle. Learner code that overwrites that file with a hostile one is
  run by the parent when it reads it. Grade notebooks of strangers as you would run them: in a
  container, as a user who owns nothing else.
* The seeds and shapes of the checks can be read in labkit/grade; an answer may be fitted to them.
"""

import re
from collections.abc import Callable
from typing import Any

from labkit.grade.check import CheckFailed
from labkit.grade.inside import MEMORY_BYTES, OUTPUT_BYTES, judged
from labkit.launch import RankError, RankTimeout, run_ranks

SUMMARY = re.compile(r"failed first: (.*?)(?:\n\n|\Z)", re.DOTALL)
LEARNER_FRAME = re.compile(r'File "<(?:cell|answer)[^"]*", line (\d+), in (\S+)\n\s*([^\n]+)')
# How the launcher and the detector name a line of a cell; a learner knows no such file.
PLACES = (
    (re.compile(r'File "<(?:cell|answer)[^"]*", line (\d+), in (\w+)'), r"line \1 of \2"),
    (re.compile(r"<(?:cell|answer)[^>]*>:(\d+)"), r"line \1"),
)
NO_MEMORY = re.compile(r"MemoryError|can't allocate memory|Cannot allocate memory")
ENDED = re.compile(r"ended without a result|left by sys.exit|was killed by|closed its connection")


def run(
    program: Callable, carried: Any, world_size: int, args: tuple[Any, ...], timeout: float
) -> list[Any]:
    """Call program(group, learner's object, *args) on every rank; see check.Learner.run.

    Raises:
        CheckFailed: with one of the common keys.
    """
    try:
        return run_ranks(
            judged,
            world_size,
            program,
            carried,
            args,
            timeout=timeout,
            echo=False,
            device="cpu",
            debug=True,
        )
    except RankTimeout as late:
        waits = "\n".join(str(late).splitlines()[1 : 1 + world_size])
        raise CheckFailed(
            "run.hang", timeout_s=timeout, world_size=world_size, waits=_readable(waits)
        ) from None
    except RankError as error:
        raise _failure(error, world_size) from None


def _failure(error: RankError, world_size: int) -> CheckFailed:
    told = SUMMARY.search(str(error))
    summary = _readable(told[1].strip() if told else str(error))
    where = {"rank": error.rank, "world_size": world_size}
    if refused := re.match(r"Refused: (\w+)\|(.*)", summary, re.DOTALL):
        kind, name = refused.groups()
        limit = OUTPUT_BYTES / 2**20
        return CheckFailed(f"run.{kind}", name=name, got=name, error=name, limit_mb=limit, **where)
    if summary.startswith("NotImplementedError"):
        return CheckFailed("run.not_implemented", error=summary.partition(": ")[2])
    if NO_MEMORY.search(summary):
        return CheckFailed("run.memory", error=summary, limit_gb=MEMORY_BYTES / 2**30, **where)
    if summary.startswith("CollectiveMismatch"):
        return CheckFailed("run.mismatch", error=summary.partition(": ")[2], **where)
    if ENDED.search(summary):
        return CheckFailed("run.died", error=summary, **where)
    frames = LEARNER_FRAME.findall(error.traceback)
    line = "\nline {} of {}: {}".format(*frames[-1]) if frames else ""
    return CheckFailed("run.raised", error=summary, where=line, **where)


def _readable(text: str) -> str:
    for place, words in PLACES:
        text = place.sub(words, text)
    return text

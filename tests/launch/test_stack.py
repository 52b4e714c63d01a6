"""A rank's dump is read while it is being written: half of one is not taken for the whole.

Oracle: faulthandler's own dump of a call below the launcher's file, cut after every byte.
"""

import faulthandler
import tempfile

from labkit.launch.world import stack_is_whole

OURS = "/x/labkit/launch/rank.py"


def dump(depth):
    """What faulthandler writes `depth` calls below a function of our file."""
    space = {"faulthandler": faulthandler, "tempfile": tempfile}
    exec(
        compile(
            """
def go(depth):
    if depth:
        return go(depth - 1)
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=False)
        file.seek(0)
        return file.read()
""",
            "/x/users.py",
            "exec",
        ),
        space,
    )
    exec(compile("def call(depth):\n    return go(depth)", OURS, "exec"), space)
    return space["call"](depth)


def test_a_dump_is_whole_once_every_frame_of_the_users_is_in():
    text = dump(3)
    assert text.count("/x/users.py") == 4
    assert stack_is_whole(text)
    first = next(n for n in range(len(text) + 1) if stack_is_whole(text[:n]))
    assert text[:first].count("/x/users.py") == 4
    assert not stack_is_whole("")
    assert not stack_is_whole(text.splitlines()[0] + "\n")


def test_a_dump_that_is_cut_for_its_depth_is_whole_at_its_dots():
    text = dump(200)
    assert OURS not in text
    assert text.splitlines()[-1] == "  ..."
    assert stack_is_whole(text)
    assert not stack_is_whole(text[:-8])

"""Learner code in ranks: every way to fail has its key, and every limit holds.

Oracle: by construction, answers that fail in one known way.
"""

import re

import pytest

from labkit.grade.answers import choose, whole
from labkit.grade.check import find_exercise
from labkit.grade.judge import judge

TOTAL = find_exercise("lab00.total")
FAILURES = {
    "stub": ("raise NotImplementedError('lab00.total')", "run.not_implemented", "yet: lab00.total"),
    "raises": ("y = 1\n    return y / 0", "run.raised", "line 5 of total: return y / 0"),
    "nobody": ("return dist.send(x, 9)", "run.raised", r"names rank 9; .* 1 ranks"),
    "loop": ("while True: pass", "run.hang", r"rank 0: is at line 4 of total; it made no call"),
    "circle": ("dist.recv(x, dist.get_rank(group))", "run.mismatch", "at line 4 on"),
    "exit": ("os._exit(7)", "run.died", r"exit code 7"),
    "crash": ("os.kill(os.getpid(), 11)", "run.died", "SIGSEGV"),
    "tensor of 10 GB": ("torch.ones(10 * 2**30, dtype=torch.uint8)", "run.memory", "the 4 GB"),
    "bytes of 10 GB": ("bytearray(10 * 2**30)", "run.memory", "the 4 GB"),
    "100 MB printed": ("for _ in range(100): print('x' * 2**20)", "run.output", "the 32 MB"),
    "no tensor": ("return 3", "run.type", "Expected a tensor, got int"),
    "wrong shape": ("return x[:1]", "run.type", r"\[3\] of float64, got \[1\] of float64"),
    "a class": ("return type('A', (), {})()", "run.result", "returned a A"),
}


@pytest.mark.parametrize(("body", "key", "told"), FAILURES.values(), ids=FAILURES)
def test_every_failure_has_its_key(body, key, told):
    text = f"import os\nimport torch, torch.distributed as dist\ndef total(x, group):\n    {body}"
    verdict = judge(TOTAL, choose(whole(text), "total", []))
    assert verdict.key == key, verdict.message
    assert re.search(told, verdict.message), verdict.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def total(x, group)\n    return x", "SyntaxError"),
        ("total = undefined", "NameError: name 'undefined'"),
        ("other = 3", "does not define total"),
    ],
)
def test_a_cell_that_does_not_run_is_told(text, told):
    verdict = judge(TOTAL, choose(whole(text), "total", []))
    assert verdict.key == "run.cell"
    assert told in verdict.message

"""simulate as a user calls it: a report, and one line and exit code 2 for what cannot be."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from labkit.cli import main
from labkit.cost.hardware import DEVICES

MINI = ["--model", "mini", "--sequence", "16"]


def run(*arguments):
    return CliRunner().invoke(main, ["simulate", *(str(a) for a in arguments)])


def test_a_report_of_128_ranks():
    result = run(*MINI, "--dp", 16, "--pp", 4, "--tp", 2, "--zero", 1, "--world-size", 128)
    assert result.exit_code == 0, result.output
    assert "128 ranks: dp 16, pp 4, tp 2, ZeRO 1; 64 sequences of 16 tokens" in result.output
    assert "Stage 3, as rank 6" in result.output
    assert "Not seen:" in result.output


def test_a_batch_becomes_micro_batches():
    result = run(*MINI, "--dp", 2, "--batch-size", 12, "--micro-batch-size", 2)
    assert result.exit_code == 0, result.output
    assert "12 sequences of 16 tokens" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "llama9"], "no model 'llama9'"),
        ([*MINI, "--gpu", "h900"], "'h900'"),
        ([*MINI, "--network", "string"], "'string'"),
        ([*MINI, "--dp", 4, "--world-size", 8], "dp 4 x pp 1 x tp 1 = 4 ranks, --world-size is 8"),
        ([*MINI, "--tp", 3], "8 heads over tp=3"),
        ([*MINI, "--zero", 4], "ZeRO has stages (0, 1, 2, 3), got 4"),
        ([*MINI, "--pp", 9], "8 layers over 9 stages"),
        ([*MINI, "--dp", 4, "--batch-size", 6], "a batch of 6 is not 4 replicas x 1 micro-batches"),
        ([*MINI, "--sequence", 513], "513 tokens, but max_seq_len is 512"),
        ([*MINI, "--gpus-per-node", 0], "0 GPUs a node"),
    ],
)
def test_mistakes_are_one_line_and_code_2(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_layout_that_does_not_fit_reports_and_fails(monkeypatch):
    small = replace(DEVICES["h100"], memory_bytes=10**8)
    monkeypatch.setitem(DEVICES, "h100", small)
    result = run(*MINI)
    assert result.exit_code == 2
    assert "Stage 0, as rank 0" in result.output
    assert "h100 has 0.1 GB: 0.0 GB too much. Largest is optimizer" in result.output

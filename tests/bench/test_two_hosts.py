"""Two namespaces and a cable: made, shaped and gone again; training over it.

Oracles: what ip and tc say; for the bytes of a step, the kernel's counter beside the ledger.
That two ranks reach each other over such a cable is shown in tests/launch/test_two_hosts.py.
"""

import subprocess

import pytest

from labkit.bench.hosts import can_make_hosts, run_on, two_hosts
from labkit.bench.two_hosts import last_line

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and tc"),
]


def said(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=10).stdout


def test_both_ends_are_shaped_and_reach_each_other():
    with two_hosts("100mbit") as hosts:
        for host, other in zip(hosts, reversed(hosts), strict=True):
            assert "rate 100Mbit" in said("tc", "-n", host.name, "qdisc", "show")
            route = said("ip", "-n", host.name, "route", "get", other.address)
            assert f"dev {host.interface}" in route
    assert not {host.name for host in hosts} & set(said("ip", "netns", "list").split())


def test_an_error_takes_the_hosts_along():
    with pytest.raises(ArithmeticError), two_hosts("1gbit") as hosts:
        raise ArithmeticError
    assert not {host.name for host in hosts} & set(said("ip", "netns", "list").split())


def test_what_a_rank_printed_is_in_the_error():
    with two_hosts("1gbit") as hosts:
        with pytest.raises(
            RuntimeError, match=r"(?s)rank 0 failed.*No module named no_such_module"
        ):
            run_on(hosts, "no_such_module", timeout=60.0)


def test_the_axis_that_crosses_is_the_one_that_pays():
    """Four ranks train nano in a short form: stages on two hosts, then partners of tp."""
    with two_hosts("1gbit") as hosts:
        told = run_on(hosts, "labkit.bench.two_hosts", "short", per_host=2, timeout=120.0)
    sent = last_line(told)["bytes"]
    print(sent)
    for each in sent.values():
        again = 50_000 + each["repeated"]  # and what the ranks say to torchrun meanwhile
        assert each["ledger"] <= each["wire"] <= 1.1 * each["ledger"] + again
    assert sent["tp"]["ledger"] > 5 * sent["pp"]["ledger"]

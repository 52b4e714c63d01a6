"""The caller's line: ours where we call, whatever lies between; labkit's for want of another."""

import inspect
import threading

import torch

from labkit.measure import caller
from labkit.measure.caller import find_caller


def here():
    return inspect.currentframe().f_back.f_lineno


def test_the_line_of_a_direct_call():
    told, number = find_caller("all_reduce", depth=1), here()
    assert told == (f"test_caller.py:{number}", False, True)


def test_torch_and_the_standard_library_are_passed_over():
    @torch.no_grad()
    def inner():
        return find_caller("all_reduce", depth=2)  # from the decorator outwards

    told, number = inner(), here()
    assert told.line == f"test_caller.py:{number}"


def test_a_thread_of_torchs_own_has_no_line():
    told = []
    target = torch.no_grad()(lambda: told.append(find_caller("all_reduce", depth=2)))
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    assert told[0].line is None


def test_whose_code_a_file_is():
    assert caller._owner(torch.__file__) == "torch"
    assert caller._owner(threading.__file__) == "machinery"
    assert caller._owner("<frozen importlib._bootstrap>") == "machinery"
    assert caller._owner(caller.__file__) == "machinery"
    assert caller._owner(caller.__file__.replace("measure", "comm")) == "labkit"
    assert caller._owner(__file__) == "user"
    assert caller._owner("<cell 1a2b3c>") == "user"


def test_a_cell_has_no_process_number():
    assert caller._short("/tmp/ipykernel_4711/8128.py") == "cell"
    assert caller._short("/home/me/lab.py") == "lab.py"

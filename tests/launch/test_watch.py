"""What ranks tell their parent, and the wish to stop. Oracle: what was told; signals by hand."""

import os
import signal
import threading

import pytest

from labkit.launch import run_ranks
from labkit.launch.watch import asked_to_stop, listening


def tell_and_wait(group, channel, count):
    if group.rank() == 0:
        for number in range(count):
            channel.tell({"number": number, "text": "ä\n"})
    while not channel.stop_wanted():
        pass
    return group.rank()


def test_every_word_is_heard_in_order_and_the_first_ctrl_c_reaches_all_ranks():
    heard = []

    def hear(word):
        heard.append(word)
        if len(heard) == 100:
            os.kill(os.getpid(), signal.SIGINT)

    with listening(hear) as channel:
        assert run_ranks(tell_and_wait, 2, channel, 100) == [0, 1]
    assert heard == [{"number": number, "text": "ä\n"} for number in range(100)]


def test_the_last_words_are_heard_too():
    heard = []
    with listening(heard.append) as channel:
        channel.tell({"last": True})
    assert heard == [{"last": True}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_is_a_keyboard_interrupt(number):
    before = signal.getsignal(number)
    with asked_to_stop() as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_another_thread_leaves_the_handlers_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with asked_to_stop() as asked:
            seen.append((asked(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]

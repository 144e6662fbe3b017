"""What a cell's output looks like: labels, merging, floods, progress bars."""

import pytest

from dskit.ranks import output


@pytest.fixture
def show(capsys, monkeypatch):
    """Feed one cell's output in pieces (texts by rank so far); returns what was shown."""
    monkeypatch.setattr(output, "_MERGE_SECONDS", 60)

    def run(*pieces, stderr=None):
        printer = output.OutputPrinter(len(pieces[0]))
        for piece in pieces:
            printer.update(piece, stderr or [""] * len(piece))
        printer.finish([])
        return capsys.readouterr()

    return run


def test_equal_lines_are_shown_once_and_others_by_rank(show):
    assert show(["a\nb\n", "a\nc\n"]).out.splitlines() == ["[all ranks] a", "[rank 0] b", "[rank 1] c"]


def test_equal_lines_that_come_apart_in_time_still_merge(show):
    shown = show(["a\n", ""], ["a\nb\n", "a\n"], ["a\nb\n", "a\nb\n"])
    assert shown.out.splitlines() == ["[all ranks] a", "[all ranks] b"]


def test_a_line_that_the_others_never_print_is_shown_after_a_moment(capsys, monkeypatch):
    monkeypatch.setattr(output, "_MERGE_SECONDS", 0)
    printer = output.OutputPrinter(2)
    printer.update(["only me\n", ""], ["", ""])
    assert capsys.readouterr().out == "[rank 0] only me\n"


def test_a_line_without_its_newline_is_not_lost(show):
    assert show(["no newline", "no newline"]).out == "[all ranks] no newline\n"


def test_stderr_stays_stderr(show):
    shown = show(["", ""], stderr=["oops\n", "oops\n"])
    assert shown.err == "[all ranks] oops\n" and shown.out == ""


def test_one_rank_is_not_called_all(show):
    assert show(["alone\n"]).out == "[rank 0] alone\n"


def test_n8_a_flood_keeps_its_head_and_its_tail_and_says_what_was_cut(show):
    count = 200_000
    shown = show(["".join(f"line {i}\n" for i in range(count))]).out.splitlines()
    assert len(shown) == output.HEAD_LINES + 1 + output.TAIL_LINES
    assert shown[0] == "[rank 0] line 0" and shown[-1] == f"[rank 0] line {count - 1}"
    cut = count - output.HEAD_LINES - output.TAIL_LINES
    assert f"{cut:,} lines left out" in shown[output.HEAD_LINES]


def test_a_flood_without_newlines_is_cut_too(show):
    shown = show(["x" * 5_000_000]).out
    assert len(shown) < 3000 and shown.endswith("[... 4,998,009 characters left out]\n")  # label included


def test_a_progress_bar_is_redrawn_in_place(show, monkeypatch):
    monkeypatch.delenv(output.LOG_VARIABLE, raising=False)
    bar = ["\r 10%", "\r 10%\r 50%", "\r 10%\r 50%\r100%\ndone\n"]
    shown = show(*([text, text] for text in bar)).out
    assert shown.startswith("\r[all ranks]  10%\r[all ranks]  50%") and shown.count("\n") == 3
    assert shown.splitlines()[-1] == "[all ranks] done"


def test_a_progress_bar_in_a_log_is_a_line_for_each_change(show, monkeypatch):
    monkeypatch.setenv(output.LOG_VARIABLE, "1")
    bar = ["\r 10%", "\r 10%", "\r 10%\r 50%", "\r 10%\r 50%\r100%\n"]
    shown = show(*([text, text] for text in bar)).out
    assert shown.splitlines() == ["[all ranks]  10%", "[all ranks]  50%", "[all ranks] 100%"]
    assert "\r" not in shown

"""The terminal bot through its pipes: lines again, a kill, a question, the end of the input."""

from __future__ import annotations

import subprocess
from pathlib import Path

from example_run import PATIENCE, LocalApi, finish, local_api, start
from examples.bot_process import BOTS, SCRIPT, refunds, turns

TERMINAL = BOTS / "terminal.py"


def _start(folder: Path, api: LocalApi, *arguments: str, seconds: str = "0.3") -> subprocess.Popen[str]:
    return start(TERMINAL, folder, api, *arguments, SHOP_SECONDS=seconds)


def _type(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_lines_are_answered_in_order_with_what_handlers_say_on_the_way(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api:
        printed = finish(_start(tmp_path, api, seconds="0.6"), "hello\npack A-17\n").splitlines()
    assert printed[0] == "You said: hello"
    assert printed[-1] == "3 pieces packed."
    assert "  · packing lamp (1 of 3)" in printed[1:-1]


def test_a_file_that_was_begun_before_goes_on_where_it_was(tmp_path: Path) -> None:
    lines = "hello\npack A-17\ngood bye\n"
    with local_api(SCRIPT) as api:
        with _start(tmp_path, api, "--resume", seconds="30") as process:
            assert process.stdin is not None
            process.stdin.write(lines)
            process.stdin.flush()
            assert _line(process) == "You said: hello"
            assert _line(process) == "  · packing lamp (1 of 3)"
            process.kill()
        printed = finish(_start(tmp_path, api, "--resume"), lines).splitlines()
        assert [line for line in printed if "·" not in line] == ["3 pieces packed.", "You said: good bye"]
        assert finish(_start(tmp_path, api, "--resume"), lines) == ""
        assert (len(api.sessions()), turns(api)) == (1, 3)


def test_a_question_is_answered_at_the_keyboard(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api, _start(tmp_path, api) as process:
        _type(process, "refund A-18")
        assert _line(process) == '  ? May I run refund(order_id="A-18", cents=9900)?'
        hint = _line(process).split()
        _type(process, "/yes 0000")
        assert _line(process) == "That is not an open question (any more)."
        _type(process, " ".join(hint[:2]))
        assert _line(process) == "refund: approved."
        assert finish(process).splitlines()[-1] == "A-18 refunded"
    assert len(refunds(tmp_path)) == 1


def test_a_question_that_is_open_at_the_end_of_the_input_is_asked_again_by_the_next_start(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api:
        printed = finish(_start(tmp_path, api), "refund A-18\n").splitlines()
        assert printed[-1] == "A question is open. Start me again to answer it."
        with _start(tmp_path, api) as process:
            assert _line(process) == printed[0]
            _type(process, _line(process).split("or")[1].strip())
            assert _line(process) == "refund: rejected."
            assert finish(process) == "The call was not approved.\n"
    assert refunds(tmp_path) == []


def test_conversations_have_names_and_files_of_their_own_and_one_terminal_at_a_time(tmp_path: Path) -> None:
    with local_api(SCRIPT) as api, _start(tmp_path, api, "--name", "ada") as ada:
        _type(ada, "refund A-18")
        assert "May I run" in _line(ada)
        call = _line(ada).split()[1]
        decided = finish(_start(tmp_path, api, "--name", "eve"), f"hello\n/yes {call}\n")
        assert sorted(decided.splitlines()) == ["That is not an open question (any more).", "You said: hello"]
        with _start(tmp_path, api, "--name", "ada") as second:
            _, said = second.communicate(timeout=PATIENCE)
            assert second.returncode == 3
            assert "is locked by" in said
            assert "Traceback" not in said
        finish(ada)
        assert len(api.sessions()) == 2
    assert refunds(tmp_path) == []

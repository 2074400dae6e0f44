"""How commands end."""

import doctest

import pytest

from balancer.bin import command


def test_examples():
    assert doctest.testmod(command).attempted and not doctest.testmod(command).failed


def end(capsys, error, debug=False):
    with pytest.raises(SystemExit) as ended, command.ending("draw", debug):
        raise error
    return ended.value.code, capsys.readouterr().err


def test_a_sentence_and_status_2(capsys):
    assert end(capsys, ValueError("what\nto do")) == (2, "draw: what\nto do\n")
    missing = FileNotFoundError(2, "No such file", "a.yaml")
    assert end(capsys, missing) == (2, "draw: a.yaml: No such file\n")
    status, said = end(capsys, ZeroDivisionError("by 0\nand more"))
    assert status == 2 and said.startswith("draw: ZeroDivisionError: by 0 (--debug")
    assert end(capsys, KeyboardInterrupt()) == (130, "draw: interrupted\n")


def test_a_traceback_when_asked_for():
    for error in (ValueError("what"), KeyboardInterrupt()):
        with pytest.raises(type(error)), command.ending("draw", debug=True):
            raise error


def test_the_option_reaches_every_command(capsys):
    parser = command.argparse.ArgumentParser(prog="python -m balancer.bin.draw")

    def action(options):
        raise ValueError("what to do")

    with pytest.raises(SystemExit):
        command.run_command(parser, action, [])
    assert capsys.readouterr().err == "draw: what to do\n"
    parser = command.argparse.ArgumentParser()
    with pytest.raises(ValueError):
        command.run_command(parser, action, ["--debug"])


def test_an_output_is_checked_before_the_work(tmp_path):
    new, old = tmp_path / "deep" / "a.png", tmp_path / "b.png"
    old.write_text("kept")
    assert command.check_output(new) == new and not new.exists()
    assert command.check_output(old) == old and old.read_text() == "kept"
    with pytest.raises(ValueError, match="is a folder"):
        command.check_output(tmp_path)
    with pytest.raises(OSError):
        command.check_output(old / "c.png")


def test_a_pictures_name(tmp_path):
    assert command.check_picture(tmp_path / "a.SVG") == tmp_path / "a.SVG"
    with pytest.raises(ValueError, match="b is no picture's name: .*.png, .pdf, .svg"):
        command.check_picture(tmp_path / "b")

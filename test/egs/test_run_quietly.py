"""What is shown of a training: its progress, its warnings, and why it failed."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios

from run_sh import EGS

SCRIPT = EGS / "shared" / "run_quietly.py"
LOG = "print('[vm] 2026-12-01 01:05:18,439 (trainer:1) {}', file=sys.stderr)"
# As ESPnet's reporter writes it: without a comma after feat_match_loss.
STATS = "feat_match_loss=0.178mel_loss=9.699, adv_share=0.25, mel_share=7.5e-01"
TRAINING = "import sys, time\nprint('Model structure: ...')\n" + "\n".join(
    LOG.format(line)
    for epoch in (3, 4)
    for line in (
        f"INFO: {epoch}/4epoch started",
        "WARNING: lambda_mel has no effect",
        f"INFO: {epoch}epoch:train:1-5batch: {STATS}",
        f"INFO: {epoch}epoch results: [train] {STATS}, time=1 minute and 2.5 seconds, "
        f"total_count={5 * epoch}, [valid] mel_loss=4.125, time=1 second",
    )
)


def run(folder, code, *options):
    return subprocess.run(
        [sys.executable, SCRIPT, *options, folder / "log", sys.executable, "-c", code],
        capture_output=True,
        text=True,
    )


def test_a_line_an_epoch_and_the_rest_in_the_log(tmp_path):
    result = run(tmp_path, TRAINING)
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("This training goes on after epoch 2 of 4")
    assert lines[1] == "warning: lambda_mel has no effect"
    end = "s  validation mel_loss 4.125  shares: adv 0.25, mel 0.75"
    assert lines[2].startswith("epoch 3/4") and lines[2].endswith(end)
    assert lines[3].startswith("epoch 4/4") and len(lines) == 4
    log = (tmp_path / "log").read_text()
    assert "Model structure" in log and log.count("lambda_mel") == 2
    # A second run adds to the log; on request all is shown.
    result = run(tmp_path, TRAINING, "--verbose", "true")
    assert (tmp_path / "log").read_text() == 2 * log and result.stdout == log


def test_a_terminal_has_a_bar_with_the_shares(tmp_path):
    ours, theirs = pty.openpty()
    size = struct.pack("HHHH", 24, 100, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    command = [sys.executable, SCRIPT, tmp_path / "log", sys.executable, "-c", TRAINING]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, check=True)
    assert select.select([ours], [], [], 60)[0], "nothing was shown"
    shown = os.read(ours, 100_000).decode()
    # The first epoch tells how many steps the second has.
    assert "epoch 3/4" in shown and "0/5" in shown and "mel 0.75" in shown


def test_a_finished_training_says_so(tmp_path):
    finished = LOG.format("INFO: The training was finished at 4 epochs ")
    result = run(tmp_path, f"import sys\n{finished}")
    assert "has its 4 epochs already" in result.stdout and "--tag" in result.stdout
    result = run(tmp_path, f"{TRAINING}\n{finished}")
    assert "already" not in result.stdout


def test_a_failure_shows_the_last_lines(tmp_path):
    code = "import sys\nfor i in range(99): print('line', i)\nsys.exit(7)"
    result = run(tmp_path, code)
    assert result.returncode == 7 and result.stdout == ""
    assert f"The last lines of {tmp_path / 'log'}" in result.stderr
    assert "line 98" in result.stderr and "line 50" not in result.stderr
    assert run(tmp_path, "import os; os.kill(os.getpid(), 9)").returncode == 137

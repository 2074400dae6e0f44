"""What is distributed: a source distribution that is the whole checkout."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(
    not (ROOT / ".git").exists() or not shutil.which("git"),
    reason="a source distribution is made of a git checkout",
)
def test_source_distribution_has_what_git_tracks(tmp_path):
    # A clone, since setuptools writes into the folder.
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", ROOT, checkout], check=True)
    shutil.copy(ROOT / "setup.py", checkout)
    (checkout / "test" / "made.log").write_text("not tracked\n")
    build = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", tmp_path]
    subprocess.run(build, cwd=checkout, check=True)
    (archive,) = tmp_path.glob("espnet_balancer-*.tar.gz")
    with tarfile.open(archive) as tar:
        files = {m.name.partition("/")[2]: m for m in tar.getmembers() if m.isfile()}
    listing = ["git", "ls-files", "-z"]
    tracked = subprocess.run(listing, cwd=checkout, check=True, capture_output=True)
    paths = tracked.stdout.decode().rstrip("\0").split("\0")
    # Checkouts on Windows and zip files have no symbolic links.
    assert not [path for path in paths if (checkout / path).is_symlink()]
    assert set(paths) <= set(files)
    assert "test/made.log" not in files
    assert files["tools/test.sh"].mode & 0o100

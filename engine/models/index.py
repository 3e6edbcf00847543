"""Finds a file of a package index the way pip would, with the user's own pip configuration. Used by `fetch.py` only.

pip itself is not asked to download: the releases in use neither resume a broken download nor report progress to us.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import netrc
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit, urlunsplit

PYPI = "https://pypi.org/simple"
JSON_PAGE = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What of pip's configuration decides where files come from and how they are reached."""

    index_urls: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    proxy: str | None = None
    timeout_s: float = 60.0
    trusted_hosts: frozenset[str] = frozenset()

    @classmethod
    def read(cls) -> PipSettings:
        """Ask `pip config list`, which merges files and environment in pip's own order."""
        command = [sys.executable, "-m", "pip", "config", "list"]
        listing = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no foreign input
        return cls.parse(listing.stdout)

    @classmethod
    def parse(cls, listing: str) -> PipSettings:
        """Read lines such as `global.index-url='https://…'`; later sections (install, download, environment) win."""
        options: dict[str, str] = {}
        for section in ("global", "install", "download", ":env:"):
            for line in listing.splitlines():
                name, equals, value = line.partition("=")
                if equals and name.startswith(f"{section}."):
                    options[name.removeprefix(f"{section}.")] = value.strip().strip("'\"")
        return cls._from_options(options)

    @classmethod
    def _from_options(cls, options: Mapping[str, str]) -> PipSettings:
        def words(name: str) -> list[str]:
            return options.get(name, "").replace("\\n", " ").split()

        indexes = (
            [] if options.get("no-index", "").lower() in {"1", "true", "yes", "on"} else words("index-url") or [PYPI]
        )
        timeout = options.get("default-timeout") or options.get("timeout") or ""
        return cls(
            index_urls=tuple(indexes + words("extra-index-url")) if indexes else (),
            find_links=tuple(words("find-links")),
            cert=options.get("cert"),
            proxy=options.get("proxy"),
            timeout_s=float(timeout) if timeout.isdecimal() else 60.0,
            trusted_hosts=frozenset(words("trusted-host")),
        )


def open_url(url: str, settings: PipSettings, headers: Mapping[str, str] | None = None) -> IO[bytes]:
    """Open an http(s) URL with the user's certificate, proxy and credentials. Raises OSError (URLError, HTTPError)."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    request = urllib.request.Request(  # noqa: S310 - callers pass http(s) only
        urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])),
        headers={"User-Agent": "breakeven", **(headers or {}), **_authorization(parts.username, parts.password, host)},
    )
    context = ssl.create_default_context(cafile=settings.cert)
    if settings.trusted_hosts & {host, parts.netloc.rpartition("@")[2]}:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if settings.proxy:
        handlers.append(urllib.request.ProxyHandler({"http": settings.proxy, "https": settings.proxy}))
    opened: IO[bytes] = urllib.request.build_opener(*handlers).open(request, timeout=settings.timeout_s)
    return opened


def _authorization(user: str | None, password: str | None, host: str) -> dict[str, str]:
    if user is None:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if found := netrc.netrc().authenticators(host):
                user, password = found[0], found[2]
    if not user:
        return {}
    token = base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


def locate(project: str, filename: str, settings: PipSettings) -> tuple[list[str], list[str]]:
    """Return the URLs (http, https or file) under which the indexes and find-links offer the file, and what failed."""
    urls: list[str] = []
    failures: list[str] = []
    for place in settings.find_links:
        path = Path(unquote(urlsplit(place).path if place.startswith("file:") else place)) / filename
        if "://" not in str(place).removeprefix("file://") and path.is_file():
            urls.append(path.absolute().as_uri())
    for index in settings.index_urls:
        page = f"{index.rstrip('/')}/{quote(project)}/"
        try:
            urls += [link for link in _links(page, settings) if unquote(urlsplit(link).path).endswith(f"/{filename}")]
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            failures.append(f"{_without_credentials(page)}: {getattr(error, 'reason', error)}")
    return list(dict.fromkeys(urls)), failures


def _links(page: str, settings: PipSettings) -> list[str]:
    """Return the links of one project page, in HTML or JSON; a file index has an `index.html` or nothing."""
    if page.startswith("file:"):
        path = Path(unquote(urlsplit(page).path)) / "index.html"
        return _html_links(page, path.read_text("utf-8")) if path.is_file() else []
    with open_url(page, settings, {"Accept": f"{JSON_PAGE}, text/html;q=0.5"}) as answer:
        kind = getattr(answer, "headers", {}).get("Content-Type", "")
        text = answer.read().decode("utf-8")
    if "json" in kind:
        return [urljoin(page, file["url"]) for file in json.loads(text)["files"]]
    return _html_links(page, text)


def _html_links(page: str, text: str) -> list[str]:
    found = re.findall(r"<a\s[^>]*?href\s*=\s*[\"']([^\"']+)[\"']", text, re.IGNORECASE)
    return [urldefrag(urljoin(page, html.unescape(link))).url for link in found]


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

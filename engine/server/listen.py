"""Where the engine is reached and by whom; checked before anything heavy is loaded. Free of torch and Litestar."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from engine.config import ConfigError
from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Listen:
    """Address and access. Raises ConfigError where it would be open to a network without a token."""

    host: str = "127.0.0.1"
    port: int = 8100
    """0 takes a free one."""
    token: str | None = None
    """Required from every client where set; must be set off loopback."""

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"refusing to listen on {self.host}: off loopback the engine wants a token; set "
                "BREAKEVEN_ENGINE_TOKEN here and for the gateway"
            )

    @property
    def url_host(self) -> str:
        """The host as a URL writes it."""
        return f"[{self.host.strip('[]')}]" if ":" in self.host else self.host


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bind(listen: Listen) -> socket.socket:
    """Take the port before the model is loaded, so that a conflict shows at once. Raises EngineError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host.strip("[]"), listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise EngineError(f"cannot listen on {listen.host}:{listen.port}: {error.strerror}") from error
    return bound

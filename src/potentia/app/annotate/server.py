"""The page of `potentia annotate`, served to this machine's browser only.

Other web pages and other users of the machine must not reach it: the server listens on the loopback interface, its
address has a random token, requests must name this host (a name that was made to point here does not) and come from
this page, and their sizes are bounded. Requests name images by number, never by path.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ...base import __version__
from ...base.files import new_folder, only_user
from ...base.types import PotentiaError
from .session import MAX_POINTS, MAX_RADIUS, VOID, Session

#: Bytes of a request, at most; seconds that a request may take to arrive, and that an answer may be waited for.
_MAX_BODY, _PATIENCE, _WAIT = 1 << 18, 30.0, 20.0

Answer = tuple[int, str, bytes]


class Server(ThreadingHTTPServer):
    """Serves a session's page at `address` until `shutdown`."""

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0) -> None:
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise PotentiaError(f"port {port} cannot be used: {error.strerror or error}.") from None
        self.session, self.token = session, secrets.token_urlsafe(24)
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.address = f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing where a browser has closed its connection before it was answered."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _RefusedError(Exception):
    """A request that is not answered: the status and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE

    def do_GET(self) -> None:
        self._reply(self._get)

    def do_POST(self) -> None:
        self._reply(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address has the token."""

    def _reply(self, make: Callable[[str], Answer]) -> None:
        self.nonce = secrets.token_urlsafe(12)
        try:
            status, kind, content = make(self._checked_path())
        except _RefusedError as error:
            self.close_connection = True  # its body may not have been read
            status, kind, content = error.status, "text/plain", str(error).encode()
        except PotentiaError as error:
            status, kind, content = _json({"error": str(error)}, 400)
        except OSError as error:
            status, kind, content = _json({"error": f"The request failed: {error.strerror or error}."}, 500)
        self.send_response(status)
        policy = (
            f"default-src 'none'; img-src 'self' data:; connect-src 'self'; style-src 'nonce-{self.nonce}'; "
            f"script-src 'nonce-{self.nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        """The Server header."""
        return "potentia"

    def _checked_path(self) -> str:
        """What comes after the token; refuses requests that another page made."""
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise _RefusedError(403, "The request names another host.")
        foreign = any(origin not in {f"http://{host}" for host in self.server.hosts} for origin in origins)
        if foreign or self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise _RefusedError(403, "The request comes from another page.")
        _, token, *rest = f"{self.path.partition('?')[0]}/".split("/", 2)
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise _RefusedError(404, "There is no such page.")
        return rest[0].removesuffix("/") if rest else ""

    def _get(self, path: str) -> Answer:
        session = self.server.session
        if path == "":
            return 200, "text/html; charset=utf-8", _page(self.nonce).encode()
        if path == "state":
            return _json(session.state())
        for name, make in (("image", session.shown), ("strokes", session.strokes)):
            if found := re.fullmatch(rf"{name}/(\d{{1,9}})", path):
                return 200, "image/png", make(int(found[1]))
        raise _RefusedError(404, "There is no such page.")

    def _post(self, path: str) -> Answer:
        body, session = self._body(), self.server.session
        number = body.get("image")
        if path == "class":
            session.add_class(body.get("name"))
            return _json(session.state())
        if type(number) is not int or not 0 <= number < len(session.files):
            raise PotentiaError("image must be the number of an image.")
        if path == "open":
            return _json(session.open(number))
        if path == "stroke":
            return _json({"version": session.draw(number, *_stroke(body))})
        if path == "undo":
            return _json({"version": session.undo(number)})
        if path == "result":
            after = body.get("after")
            if type(after) is not int:
                raise PotentiaError("after must be the version of strokes.")
            return _json(session.result(number, after, _WAIT))
        if path == "accept":
            return _json(session.accept(number, _WAIT))
        raise _RefusedError(404, "There is no such page.")

    def _body(self) -> dict[str, Any]:
        """The request's JSON object."""
        if self.headers.get_content_type() != "application/json":  # which other pages cannot send unasked
            raise _RefusedError(415, "The request holds no JSON.")
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,9}", length) or "Transfer-Encoding" in self.headers:
            raise _RefusedError(411, "The request does not say how long it is.")
        if int(length) > _MAX_BODY:
            raise _RefusedError(413, "The request is too long.")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise _RefusedError(400, "The request holds no JSON.") from None
        if not isinstance(body, dict):
            raise _RefusedError(400, "The request holds no JSON object.")
        return body


def _stroke(body: dict[str, Any]) -> tuple[str, int, float, np.ndarray]:
    """A part of a stroke: its name, the value to draw, the radius, points (n, 2)."""
    name, value, radius, points = (body.get(key) for key in ("stroke", "value", "radius", "points"))
    if not isinstance(name, str) or len(name) > 40:
        raise PotentiaError("stroke must be a name of up to 40 characters.")
    if type(value) is not int or not 0 <= value <= VOID:
        raise PotentiaError(f"value must be a whole number from 0 to {VOID}.")
    if type(radius) not in (int, float) or not 0.5 <= radius <= MAX_RADIUS:  # type: ignore[operator]
        raise PotentiaError(f"radius must be a number from 0.5 to {MAX_RADIUS:g}.")
    if not isinstance(points, list) or not 1 <= len(points) <= MAX_POINTS:
        raise PotentiaError(f"points must be a list of 1 to {MAX_POINTS} points.")
    try:
        places = np.asarray(points, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        places = np.zeros(0)
    if places.ndim != 2 or places.shape[1] != 2 or not (np.abs(places) < 1e6).all():
        raise PotentiaError("points must be pairs of numbers, x and y in pixels.")
    return name, value, float(radius), places  # type: ignore[arg-type]


def _json(content: dict[str, Any], status: int = 200) -> Answer:
    return status, "application/json", json.dumps(content, allow_nan=False).encode()


def _page(nonce: str) -> str:
    here = files(__package__)
    parts = {name: here.joinpath(f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js", "html")}
    return Template(parts["html"]).substitute(style=parts["css"], script=parts["js"], nonce=nonce, version=__version__)


def serve(
    source: Path, out: Path, palette: Path | None, names: Sequence[str], port: int, begun: Callable[[str], None]
) -> Path | None:
    """Serve a folder's images until Ctrl-C or a signal to end; the saved model, if there is one.

    begun: is told the address of the page.
    """
    with only_user(new_folder(out) / "classes.csv"):
        session = Session(source, out, palette, names)
        try:
            with Server(session, port) as server:
                begun(server.address)
                server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            session.close()
    model = out / "model"
    return model if model.is_file() else None

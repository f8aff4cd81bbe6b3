"""Serves the page on loopback, to this machine alone: GET of a fixed list of files, held in memory."""

import mimetypes
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

PAGE = Path(__file__).parent / "page"
LOOPBACK = "127.0.0.1"
TYPES = {
    ".br": "application/octet-stream",
    ".gz": "application/gzip",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
}
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src 'self' blob: data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def read_page() -> dict[str, bytes]:
    """The files of the page by their paths in it.

    Raises:
        FileNotFoundError: the page was not built.
    """
    files = {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in sorted(PAGE.rglob("*")) if path.is_file()}
    if "index.html" not in files:
        raise FileNotFoundError(f"the page is not in {PAGE}: it comes with a release, and `make web` builds it")
    return files


def serve(files: Mapping[str, bytes], port: int = 0) -> ThreadingHTTPServer:
    """A server that listens and is not yet running: call `serve_forever`, and `server_close` at the end.

    Args:
        files: by their paths in the page; index.html is also at /.
        port: 0 for any that is free.
    """
    answers = {f"/{path}": (type_of(path), content) for path, content in files.items()}
    answers["/"] = answers["/index.html"]

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "torchvars", ""

        def do_GET(self) -> None:
            if self.headers.get("Host", "") not in (address, address.replace(LOOPBACK, "localhost")):
                # A page elsewhere whose name was made to point to this machine.
                self.send_error(403, "This server answers to its own address alone")
                return
            found = answers.get(urlsplit(self.path).path)
            if found is None:
                self.send_error(404)
                return
            kind, content = found
            self.send_response(200)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_) -> None:
            """Requests are not printed."""

    server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    server.daemon_threads = True
    address = f"{LOOPBACK}:{server.server_address[1]}"
    return server


def type_of(path: str) -> str:
    """The media type of a file of the page."""
    kind = TYPES.get(Path(path).suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def run_until(server: ThreadingHTTPServer, ready: Callable[[str], object]) -> None:
    """Serves until Ctrl-C; `ready` is told the address."""
    try:
        ready(f"http://{LOOPBACK}:{server.server_address[1]}/")
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()

"""A package, its lock, and an index that serves it over TLS with a certificate authority of its own."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import ssl
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

from harness import lock
from harness.lock import Lock, Pin

NAME, VERSION = "bitmatrix-probe", "1.0"
FILE = f"bitmatrix_probe-{VERSION}-py3-none-any.whl"


def wheel(folder: Path) -> Path:
    """A wheel with one module, made by hand."""
    info = f"bitmatrix_probe-{VERSION}.dist-info"
    files = {
        "bitmatrix_probe.py": "ANSWER = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        for name, text in files.items():
            # A fixed time: the same bytes, and so the same lock, each time.
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
    return folder / FILE


def locked(path: Path, digest: str) -> Lock:
    """A lock of that one package."""
    pins = [Pin(name=NAME, version=VERSION, hashes=(digest,))]
    lock.write(path, stack="probe", device="cpu", requirements=[f"{NAME}=={VERSION}"], pins=pins)
    return lock.read(path)


def certificates(folder: Path) -> tuple[Path, Path]:
    """A new authority's certificate, and a server's key and certificate in one file, signed by it."""
    folder.mkdir(parents=True, exist_ok=True)

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
            "-subj", "/CN=bitmatrix test authority")  # fmt: skip
    openssl(
        "req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"
    )
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", "server.crt")  # fmt: skip
    (folder / "server.pem").write_text((folder / "server.key").read_text() + (folder / "server.crt").read_text())
    return folder / "ca.pem", folder / "server.pem"


@contextlib.contextmanager
def index(file: Path, server_pem: Path) -> Iterator[str]:
    """A package index with that one file, over TLS; gives its address."""
    pages = {
        f"/simple/{NAME}/": f'<html><body><a href="/files/{FILE}">{FILE}</a></body></html>'.encode(),
        f"/files/{FILE}": file.read_bytes(),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_request(self, code: object = "-", size: object = "-") -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://localhost:{server.server_address[1]}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

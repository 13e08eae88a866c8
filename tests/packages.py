"""A package, its lock, and an index that serves it over TLS with a certificate authority of its own."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import ssl
import stat
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from harness import lock
from harness.files import sha256_file
from harness.lock import Lock, Pin

NAME, VERSION = "bitmatrix-probe", "1.0"
FILE = f"bitmatrix_probe-{VERSION}-py3-none-any.whl"
MODULE = {"bitmatrix_probe.py": "ANSWER = 42\n"}


def wheel(
    folder: Path,
    name: str = NAME,
    version: str = VERSION,
    files: Mapping[str, str] = MappingProxyType(MODULE),
    requires: Sequence[str] = (),
) -> Path:
    """A wheel of some files, made by hand; what lies in a folder `bin` is executable."""
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text)}")
    contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in contents.items():
            # A fixed time: the same bytes, and so the same lock, each time.
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | (0o755 if "/bin/" in path else 0o644)) << 16
            archive.writestr(entry, text)
    return made


def archive(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """A source archive of some files."""
    stem = f"{name.replace('-', '_')}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{stem}.tar.gz", "w:gz") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{stem}/{path}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return folder / f"{stem}.tar.gz"


def lock_of(path: Path, files: Mapping[str, tuple[str, Path]]) -> Lock:
    """A lock of packages by name: their version and file."""
    pins = [Pin(name=name, version=version, hashes=(sha256_file(file),)) for name, (version, file) in files.items()]
    requirements = [f"{pin.name}=={pin.version}" for pin in pins]
    lock.write(path, stack="probe", device="cpu", requirements=requirements, pins=pins)
    return lock.read(path)


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

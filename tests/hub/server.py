"""An in-memory Hub on localhost. It answers the requests of `huggingface_hub` to push, list and load models.

As on huggingface.co, a repository is a history of commits. Each commit is a complete set of files and never changes.
Branches and tags point to commits. All files are parts of the commit's request: SnugBERT is tested, not the client's
protocols for large files. A private repository is invisible without its owner's token.

    with serve(tokens={"hf_secret": "org"}) as hub:
        ...  # a process with HF_ENDPOINT=hub.url and HF_TOKEN=hf_secret pushes to org/model
        hub.repositories["org/model"].files("main")["README.md"]
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Refused(Exception):
    """An error response, with the Hub's code and message."""

    def __init__(self, status: int, code: str | None, message: str, **details: str):
        super().__init__(message)
        self.status, self.content = status, {"error": message, **details}
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})


@dataclass
class Commit:
    """All files of a repository at one commit."""

    message: str
    files: dict[str, bytes]  # path -> content
    parent: str | None = None

    @property
    def sha(self) -> str:
        """40 hexadecimal digits that depend on the files, the message and all history."""
        tree = {path: object_id(content) for path, content in sorted(self.files.items())}
        return hashlib.sha1(json.dumps([self.parent, self.message, tree]).encode()).hexdigest()


def object_id(content: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """A model's history."""

    name: str
    private: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)  # sha -> commit, the oldest first
    branches: dict[str, str] = field(default_factory=dict)  # name -> sha
    tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.commit("main", "initial commit", {})

    def sha(self, revision: str) -> str:
        """The commit of a branch, a tag or a commit id."""
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        if sha not in self.commits:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Path -> content."""
        return self.commits[self.sha(revision)].files

    def commit(self, branch: str, message: str, files: dict[str, bytes]) -> str:
        """Commits `files` to the branch and returns the sha of the new commit."""
        commit = Commit(message, files, parent=self.branches.get(branch))
        self.commits[commit.sha] = commit
        self.branches[branch] = commit.sha
        return commit.sha


class Hub:
    """All repositories, their tokens, and a log of the requests.

    Args:
        tokens: token -> the user or organization whose repositories it opens.
    """

    def __init__(self, tokens: dict[str, str]):
        self.tokens = tokens
        self.url = ""
        self.repositories: dict[str, Repository] = {}  # owner/name -> repository
        self.requests: list[tuple[str, str, int]] = []  # method, path, status
        self.lock = threading.Lock()

    def signed_in(self, token: str | None) -> str:
        """The owner of the token. Raises [`Refused`] without one."""
        if token not in self.tokens:
            raise Refused(401, None, "Invalid username or password.")
        return self.tokens[token]

    def repository(self, name: str, token: str | None) -> Repository:
        """The repository. A private one looks missing to others, so that its name stays private."""
        user, repository = self.tokens.get(token), self.repositories.get(name)
        if repository is None or (repository.private and user != name.split("/")[0]):
            raise Refused(404 if user else 401, "RepoNotFound", "Repository not found")
        return repository


@contextmanager
def serve(tokens: dict[str, str]) -> Iterator[Hub]:
    """Runs a Hub on a free port of 127.0.0.1."""
    hub = Hub(tokens)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection. A method of [`ROUTES`] answers, or raises [`Refused`]."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it delays each answer by 40 ms, because header and content are sent separately

    def respond(self) -> None:
        """Finds the method of the route and sends its answer."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.extra: dict[str, str] = {}  # headers of the answer
        path = urlsplit(self.path).path
        status, content = 200, b""
        try:
            with self.hub.lock:
                answer = self.answer(path)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        except Refused as refused:
            status, content, self.extra = refused.status, json.dumps(refused.content).encode(), refused.headers
        self.hub.requests.append((self.command, unquote(path), status))
        self.send_response(status)
        for name, value in (self.extra | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = respond

    def answer(self, path: str) -> Any:
        for methods, pattern, answer in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and self.command in methods.split():
                return answer(self, *(unquote(part) for part in found.groups(default="")))
        raise Refused(404, None, f"This Hub does not support {self.command} {path}")

    def log_message(self, *_: Any) -> None:
        """Logs nothing. `Hub.requests` records all requests."""

    # Accounts and repositories.

    def whoami(self) -> dict[str, str]:
        return {"type": "user", "name": self.hub.signed_in(self.token)}

    def create_repository(self) -> dict[str, str]:
        asked, user = json.loads(self.body), self.hub.signed_in(self.token)
        owner = asked.get("organization") or user
        name = f"{owner}/{asked['name']}"
        names = {"name": name, "url": f"{self.hub.url}/{name}"}
        if name in self.hub.repositories:
            raise Refused(409, None, "You already created this model repo", **names)
        self.hub.repositories[name] = Repository(name, private=asked.get("visibility") == "private")
        return names

    def describe(self, name: str, revision: str) -> dict[str, Any]:
        repository = self.hub.repository(name, self.token)
        sha = repository.sha(revision or "main")
        siblings = [{"rfilename": path} for path in repository.files(sha)]
        return {"id": name, "sha": sha, "private": repository.private, "tags": [], "siblings": siblings}

    def create_branch(self, name: str, branch: str) -> dict[str, str]:
        repository = self.hub.repository(name, self.token)
        if branch in repository.branches:
            raise Refused(409, None, f"Reference already exists: {branch}")
        repository.branches[branch] = repository.sha(json.loads(self.body).get("startingPoint", "main"))
        return {}

    def create_tag(self, name: str, revision: str) -> dict[str, str]:
        repository, tag = self.hub.repository(name, self.token), json.loads(self.body)["tag"]
        repository.tags[tag] = repository.sha(revision)
        return {}

    # Downloads.

    def list_files(self, name: str, revision: str, folder: str) -> list[dict[str, Any]]:
        repository = self.hub.repository(name, self.token)
        inside = {
            path: content
            for path, content in repository.files(revision).items()
            if not folder or path.startswith(f"{folder}/")
        }
        if folder and not inside:
            raise Refused(404, "EntryNotFound", f"{folder} does not exist on {revision!r}")
        return [
            {"type": "file", "path": path, "size": len(content), "oid": object_id(content)}
            for path, content in inside.items()
        ]

    def send_file(self, name: str, revision: str, path: str) -> bytes:
        repository = self.hub.repository(name, self.token)
        sha = repository.sha(revision)
        content = repository.files(sha).get(path)
        if content is None:
            raise Refused(404, "EntryNotFound", "Entry not found")
        self.extra = {"X-Repo-Commit": sha, "ETag": f'"{object_id(content)}"'}
        return content

    # Uploads: the mode of each file, then a commit with all files.

    def validate_card(self) -> dict[str, list]:
        return {"errors": [], "warnings": []}

    def choose_upload_modes(self, name: str, revision: str) -> dict[str, Any]:
        files = self.hub.repository(name, self.token).files(revision)
        asked = json.loads(self.body)["files"]
        return {
            "files": [
                {
                    "path": path,
                    "uploadMode": "regular",
                    "shouldIgnore": False,
                    "oid": object_id(files[path]) if path in files else None,
                }
                for path in (file["path"] for file in asked)
            ]
        }

    def receive_commit(self, name: str, branch: str) -> dict[str, str]:
        repository = self.hub.repository(name, self.token)
        if branch not in repository.branches:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {branch}")
        files, message = dict(repository.files(branch)), ""
        for line in self.body.splitlines():
            part = json.loads(line)
            key, value = part["key"], part["value"]
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                raise Refused(400, None, f"This Hub does not support {key} in a commit")
        sha = repository.commit(branch, message, files)
        return {"commitUrl": f"{self.hub.url}/{name}/commit/{sha}", "commitOid": sha}


MODEL, REVISION = "([^/]+/[^/]+)", "([^/]+)"  # in URLs, "/" in a branch name is %2F
ROUTES: list[tuple[str, str, Callable[..., Any]]] = [
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("POST", "/api/repos/create", Handler.create_repository),
    ("POST", "/api/validate-yaml", Handler.validate_card),
    ("GET", f"/api/models/{MODEL}(?:/revision/{REVISION})?", Handler.describe),
    ("GET", f"/api/models/{MODEL}/tree/{REVISION}(?:/(.+))?", Handler.list_files),
    ("POST", f"/api/models/{MODEL}/branch/{REVISION}", Handler.create_branch),
    ("POST", f"/api/models/{MODEL}/tag/{REVISION}", Handler.create_tag),
    ("POST", f"/api/models/{MODEL}/preupload/{REVISION}", Handler.choose_upload_modes),
    ("POST", f"/api/models/{MODEL}/commit/{REVISION}", Handler.receive_commit),
    ("GET HEAD", f"/{MODEL}/resolve/{REVISION}/(.+)", Handler.send_file),
]

"""The explorer as Python has it: who is served what, and that the page that ships is whole and ours."""

import gzip
import hashlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
import torch

import torchvars
from torchvars.cli.main import main
from torchvars.evaluation.corruptions import CORRUPTIONS, STRENGTHS
from torchvars.explorer import pack, serve
from torchvars.explorer.pack import common_kind, label_of
from torchvars.explorer.server import PAGE, read_page
from torchvars.maps import find_maps, observe

WEB = Path(__file__).parents[2] / "web"
LARGEST = 15e6  # bytes of the page with its models

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def ask():
    """Asks a server of two files: (method, path, headers) -> status, headers, body."""
    server = serve({"index.html": b"<p>hello", "models/a.onnx.gz": b"\x1f\x8b"})
    Thread(target=server.serve_forever, daemon=True).start()

    def asked(method="GET", path="/", **headers):
        connection = http.client.HTTPConnection(*server.server_address, timeout=10)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), body

    asked.server = server
    yield asked
    server.shutdown()
    server.server_close()


def test_files_are_served_with_their_types_and_a_policy_that_keeps_the_page_to_itself(ask):
    status, headers, body = ask()
    assert (status, body) == (200, b"<p>hello")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(path="/index.html?x=1")[2] == body
    status, headers, body = ask(path="/models/a.onnx.gz")
    assert (status, headers["Content-Type"], body) == (200, "application/gzip", b"\x1f\x8b")
    assert "Content-Encoding" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/other",
        "/models",
        "/models/",
        "/../server.py",
        "/%2e%2e/server.py",
        "//etc/passwd",
        "/models/../index.html",
        "*",
    ],
)
def test_what_is_not_on_the_list_does_not_exist(ask, path):
    assert ask(path=path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_get(ask, method):
    assert ask(method)[0] == 501


def test_only_this_machine_and_by_its_own_address(ask):
    host, port = ask.server.server_address
    assert host == "127.0.0.1"
    assert ask(Host=f"localhost:{port}")[0] == 200
    for other in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
        assert ask(Host=other)[0] == 403
    with socket.socket() as connection:
        connection.settimeout(2)
        assert connection.connect_ex(("127.0.0.2", port)) != 0


# The page that ships


def test_the_page_is_whole_and_below_its_limit():
    files = read_page()
    assert sum(map(len, files.values())) < LARGEST
    page = files["index.html"].decode()
    for place in re.findall(r'(?:src|href)="([^"#]*)"', page):
        if place and not place.startswith("data:"):
            assert place.removeprefix("./") in files, place
    assert {"runtime/ort.wasm.gz", "licences.txt", "samples/README.md"} <= set(files)
    assert gzip.decompress(files["runtime/ort.wasm.gz"])[:4] == b"\0asm"
    assert b"Microsoft" in files["licences.txt"]
    listed = json.loads(files["models.json"])
    assert {model["file"] for model in listed["models"]} == {name for name in files if name.startswith("models/")}
    assert set(listed["shown"]) <= {model["name"] for model in listed["models"]}
    pictures = {Path(name).stem for name in files if name.endswith(".jpg")}
    told = files["samples/README.md"].decode()
    assert pictures
    assert all(picture in told for picture in pictures)


def test_the_page_names_no_other_server_to_load_from():
    page = (PAGE / "index.html").read_text()
    assert not re.search(r'(?:src|href|action)="(?:https?:)?//', page)
    assert "default-src 'self'" in page
    for path in PAGE.glob("assets/*"):
        assert not re.search(r"""(?:fetch|import|importScripts)\(["'`]https?:""", path.read_text()), path


def test_the_page_was_built_from_these_sources():
    built = json.loads((PAGE / "sources.json").read_text())
    names = [
        "index.html",
        "package-lock.json",
        "vite.config.ts",
        *(f"src/{path.name}" for path in (WEB / "src").iterdir()),
    ]
    assert set(built) == set(names)
    for name, digest in built.items():
        assert hashlib.sha256((WEB / name).read_bytes()).hexdigest() == digest, f"{name} changed: make web"
    for path in (WEB / "public" / "samples").iterdir():
        assert path.read_bytes() == (PAGE / "samples" / path.name).read_bytes()


def test_the_lock_file_names_no_registry():
    assert "resolved" not in (WEB / "package-lock.json").read_text()


def test_the_page_has_the_strengths_of_the_package():
    written = json.loads((WEB / "src" / "strengths.json").read_text())
    assert set(written) == set(STRENGTHS)
    for table, corruptions in written.items():
        assert set(corruptions) < set(CORRUPTIONS)
        for name, strengths in corruptions.items():
            assert strengths == json.loads(json.dumps(STRENGTHS[table][name]))


@pytest.mark.parametrize(
    "model", json.loads((PAGE / "models.json").read_text())["models"], ids=lambda model: model["name"]
)
def test_models_of_the_page_are_those_that_ship(model):
    import onnxruntime

    content = gzip.decompress((PAGE / model["file"]).read_bytes())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # as in the browser
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    classifier = torchvars.Classifier.from_pretrained(model["name"])
    pixels = torch.rand(2, 3, *model["size"], generator=torch.Generator().manual_seed(0))
    logits, maps, *_ = session.run(None, {"pixels": pixels.numpy(), "query": torch.tensor([50, 70]).numpy()})
    seen = observe(classifier, pixels)
    torch.testing.assert_close(torch.from_numpy(logits), seen.output, rtol=0, atol=1e-3)
    expected = find_maps(seen, query=(50, 70))
    torch.testing.assert_close(torch.from_numpy(maps[:, -1, -1]), expected, rtol=0, atol=0.02 * expected.max().item())
    assert maps.shape[1:3] == (len(model["maps"]["layers"]), 1 + max(n or 0 for n in model["maps"]["layers"].values()))
    assert model["parameters"] == sum(parameter.numel() for parameter in classifier.parameters())


# Other models


@pytest.fixture
def saved(tmp_path):
    """Folders of two small models: one solves by a solver without a written derivative."""
    settings = {"img_size": 32, "patch_size": 8, "num_classes": 3, "widths": (8,), "heads": (2,), "depths": (1,)}
    for name, attention, solver in (("plain", "softmax", None), ("other", "vars_d", "spa_rsa")):
        model = torchvars.create(f"rvt_micro_{attention}", **settings)
        if solver:
            model.blocks[0].attn.solver = torchvars.sparse.SpaRSA(2)
        torchvars.Classifier(model, classes=("n01440764", "cat", "dog")).save_pretrained(tmp_path / name)
    return tmp_path


def test_models_of_ones_own_have_maps_of_one_kind(saved):
    plain, other = (torchvars.Classifier.from_pretrained(saved / name) for name in ("plain", "other"))
    assert (common_kind([plain]), common_kind([plain, other]), common_kind([other, plain])) == (
        "implicit",
        "energy",
        "energy",
    )
    packed = pack([str(saved / "other")])
    assert packed.kind == "energy"
    (told,) = json.loads(packed.files["models.json"])["models"]
    assert (told["name"], told["label"], told["measured"], told["size"]) == ("other", "other", "", [32, 32])
    assert told["classes"] == ["tench", "cat", "dog"]
    assert (told["maps"]["kind"], told["maps"]["layers"]) == ("energy", {"model.blocks.0.attn": 2})
    assert gzip.decompress(packed.files[told["file"]])


def test_two_models_of_one_name_are_refused(saved):
    with pytest.raises(ValueError, match="two of the models are called plain"):
        pack([str(saved / "plain"), str(saved / "plain")])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("rvt_micro_vars_sd.imagenette", "VARS-SD"),
        ("rvt_micro_softmax.cifar10", "Softmax"),
        ("deit_tiny_vars_p.imagenet", "VARS-P"),
        ("rvt_micro_vars_sd.imagenette_seed1", "VARS-SD"),
        ("timm:resnet50", "timm:resnet50"),
        ("my run", "my run"),
    ],
)
def test_labels_are_short_where_a_name_says_the_attention(name, label):
    assert label_of(name) == label


def test_command_writes_the_page_to_a_folder_and_replaces_nothing(tmp_path, capsys):
    main(["explore", "--output", str(tmp_path / "page")])
    assert "page: " in capsys.readouterr().out
    found = {
        path.relative_to(tmp_path / "page").as_posix(): path.read_bytes() for path in (tmp_path / "page").rglob("*.*")
    }
    assert found == {name: content for name, content in read_page().items()}
    for output, told in (("page", "is not empty"), ("page/index.html", "is a file")):
        with pytest.raises(SystemExit) as stopped:
            main(["explore", "--output", str(tmp_path / output)])
        assert stopped.value.code == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--port", "70000"], "--port must be from 0, any free one, to 65535, got 70000"),
        (["nothing_like_it"], "'nothing_like_it' is no trained model"),
        (["/nowhere/model.pth"], "no file /nowhere/model.pth"),
    ],
)
def test_what_makes_no_sense_is_an_error_of_one_line(more, told, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["explore", *more])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert told in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_named(ask, capsys):
    with pytest.raises(SystemExit):
        main(["explore", "--no-browser", "--port", str(ask.server.server_address[1])])
    assert "cannot be used" in capsys.readouterr().err


def test_a_page_that_was_not_built_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchvars.explorer.server.PAGE", tmp_path)
    with pytest.raises(SystemExit):
        main(["explore"])
    assert "`make web` builds it" in capsys.readouterr().err


def test_command_serves_until_ctrl_c():
    command = [sys.executable, "-u", "-m", "torchvars", "explore", "--no-browser"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where these tests run in the background
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=heard, **pipes) as process:
        try:
            address = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
            connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=20)
            connection.request("GET", "/models.json")
            assert len(json.loads(connection.getresponse().read())["models"]) >= 2
            connection.close()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    assert out.strip() == "stopped"

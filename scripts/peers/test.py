"""Real peers and clients beside the binary: test.py TANDEM PEERS_PYTHON DYNAMO_PYTHON ROUTER [NAME...].

Each test is a function; those named on the command line are run, or all. What a process says is in out/peers.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODELS = ROOT / "models"
COURSE = ROOT / "examples" / "intro-course"
LOGS = ROOT / "out" / "peers"
TANDEM, PYTHON, DYNAMO, ROUTER = sys.argv[1:5]
WAIT = 120
CODER, WRITER = f"code={MODELS}/nano-coder.gguf", f"feedback={MODELS}/nano-writer.gguf"


def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url: str):
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


@contextlib.contextmanager
def process(name: str, command: list, ready: str, **environment):
    """A process that is there when this URL answers, and is gone at the end."""
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{name}.log"
    with open(path, "w") as log:
        running = subprocess.Popen(
            [str(part) for part in command],
            stdout=log,
            stderr=log,
            env=os.environ | {"TANDEM_DATA": str(LOGS / "data")} | environment,
            cwd=ROOT,
        )
    try:
        since = time.time()
        while True:
            assert running.poll() is None, f"{name} ended: {path.read_text()[-600:]}"
            with contextlib.suppress(OSError, ValueError):
                urllib.request.urlopen(ready, timeout=5).close()
                break
            assert time.time() - since < WAIT, f"{name} does not answer: {path.read_text()[-600:]}"
            time.sleep(0.2)
        yield path
    finally:
        running.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(10)
        running.kill()


@contextlib.contextmanager
def llama_server(model: str):
    at = port()
    url = f"http://127.0.0.1:{at}"
    command = [PYTHON, HERE / "llama_server.py", MODELS / f"{model}.gguf", at]
    with process(f"llama-server-{model}", command, f"{url}/health"):
        yield url


@contextlib.contextmanager
def mlx_server(model: str):
    at = port()
    url = f"http://127.0.0.1:{at}"
    folder = LOGS / f"{model}-mlx"
    subprocess.run([PYTHON, HERE / "as_safetensors.py", MODELS / f"{model}.gguf", folder], check=True)
    command = [PYTHON, "-W", "ignore", "-m", "mlx_lm", "server", "--model", folder, "--port", at]
    with process(f"mlx-{model}", command, f"{url}/health"):
        yield url


@contextlib.contextmanager
def fake(kind: str, behind: str):
    at = port()
    url = f"http://127.0.0.1:{at}"
    path = "/api/version" if kind == "ollama" else "/health"
    with process(f"fake-{kind}", [PYTHON, HERE / "fakes.py", kind, at, behind], url + path):
        yield url


@contextlib.contextmanager
def serve(name: str, *arguments):
    at = port()
    command = [TANDEM, "serve", "--listen", f"127.0.0.1:{at}", *arguments]
    with process(name, command, f"http://127.0.0.1:{at}/health"):
        yield f"http://127.0.0.1:{at}"


def tandem(*arguments) -> subprocess.CompletedProcess:
    environment = os.environ | {"TANDEM_DATA": str(LOGS / "data")}
    command = [TANDEM, *[str(part) for part in arguments]]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)


def grade(*arguments, code: int = 3, works: str = "") -> list:
    """Grades the sample course; status and score of each work. Some of it needs a person, hence 3."""
    with tempfile.TemporaryDirectory() as out:
        course = COURSE / "submissions" / works
        done = tandem("grade", *arguments, "--rubric", COURSE / "rubric.yaml", "--out", out, "--replace", course)
        assert done.returncode == code, f"{done.returncode}: {done.stderr[-3000:]}"
        results = json.loads((Path(out) / "results.json").read_text())["submissions"]
        grade.said, grade.results = done.stderr, results
        return [(one["name"], one["status"], one["score"]) for one in results]


def test_one_process_grades_and_answers_the_openai_package():
    alone = grade("--model", CODER, "--model", WRITER)
    assert sum(score is not None for _, _, score in alone) >= 6, alone
    with serve("one", "--model", CODER) as url:
        script = (
            "import sys, openai\n"
            "client = openai.OpenAI(base_url=sys.argv[1] + '/v1', api_key='x')\n"
            "asked = dict(model='code', messages=[{'role': 'user', 'content': 'Hi'}], max_tokens=8)\n"
            "whole = client.chat.completions.create(**asked)\n"
            "assert whole.usage.completion_tokens == 8, whole\n"
            "parts = list(client.chat.completions.create(stream=True, **asked))\n"
            "text = ''.join(p.choices[0].delta.content or '' for p in parts if p.choices)\n"
            "assert text == whole.choices[0].message.content, text\n"
        )
        subprocess.run([PYTHON, "-c", script, url], check=True)


def test_llama_server_and_mlx_grade_without_a_node():
    alone = grade("--model", CODER, "--model", WRITER)
    with llama_server("nano-coder") as coder, mlx_server("nano-writer") as writer:
        servers = ["--server", f"code={coder}", "--server", f"feedback={writer}"]
        assert grade(*servers) == alone
        looked = tandem("doctor", "--json", *servers)
        assert looked.returncode == 0, looked.stdout
        assert "enforced (tried)" in looked.stdout, looked.stdout
        # Beside a pair of nodes.
        ports = [port() for _ in range(2)]
        nodes = [
            [TANDEM, "node", "--role", "both", "--plaintext", "--listen", f"127.0.0.1:{at}", "--model", CODER]
            for at in ports
        ]
        urls = [f"http://127.0.0.1:{at}/node/v1/status" for at in ports]
        config = LOGS / "mixed.toml"
        config.write_text(
            f'[[node]]\nname = "p"\naddress = "127.0.0.1:{ports[0]}"\n'
            f'[[node]]\nname = "d"\naddress = "127.0.0.1:{ports[1]}"\n'
            f'[[server]]\nname = "mac"\nurl = "{writer}"\n'
            '[[model]]\nname = "code"\nprefill = ["p"]\ndecode = ["d"]\n'
            '[[model]]\nname = "feedback"\nservers = ["mac"]\n'
            '[grading.code_analysis]\nmodel = "code"\nmax_tokens = 6000\n'
            '[grading.feedback]\nmodel = "feedback"\nmax_tokens = 400\n'
        )
        with process("node-p", nodes[0], urls[0]), process("node-d", nodes[1], urls[1]):
            assert grade("--plaintext", "--config", config) == alone
        modes = {(job["job"], job["tandem"]["mode"]) for one in grade.results for job in one["jobs"]}
        assert modes == {("code_analysis", "remote"), ("feedback", "server")}, modes


class Pages:
    """The gradebook's pages, as a browser uses them that follows its address, keeps its cookie and fills in forms."""

    def __init__(self, log: Path):
        since = time.time()
        while not (told := re.search(r"^gradebook (\S+)$", log.read_text(), re.MULTILINE)):
            assert time.time() - since < WAIT, "no address comes"
            time.sleep(0.1)
        address = urllib.parse.urlparse(told[1])
        # Of the page's path, the part that is the gradebook's own.
        self.base, self.home = f"{address.scheme}://{address.netloc}", "/" + address.path.split("/")[1]
        self.browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.get(told[1].removeprefix(self.base))

    def get(self, path: str) -> str:
        with self.browser.open(self.at(path), timeout=WAIT) as response:
            return response.read().decode()

    def at(self, path: str) -> str:
        return self.base + self.home + path.removeprefix(self.home)

    def send(self, path: str, **fields) -> str:
        """The path of the page that the form leads to."""
        data = urllib.parse.urlencode(fields).encode()
        with self.browser.open(urllib.request.Request(self.at(path), data, {"origin": self.base})) as response:
            return urllib.parse.urlparse(response.url).path


def rows(file: Path, query: str) -> list:
    with contextlib.closing(sqlite3.connect(file)) as store:
        return store.execute(query).fetchall()


def test_the_gradebook_grades_by_servers_of_others():
    alone = grade("--model", CODER, "--model", WRITER)
    data = LOGS / "gradebook"
    shutil.rmtree(data, ignore_errors=True)
    with llama_server("nano-coder") as coder, mlx_server("nano-writer") as writer:
        at = port()
        command = [TANDEM, "grade", "--web", "--course", "Peers", "--listen", f"127.0.0.1:{at}"]
        command += ["--server", f"code={coder}", "--server", f"feedback={writer}"]
        command += ["--rubric", COURSE / "rubric.yaml", COURSE / "submissions"]
        health = f"http://127.0.0.1:{at}/health"
        with process("gradebook", command, health, TANDEM_DATA=str(data)) as log:
            pages, file = Pages(log), data / "gradebook.sqlite"
            # One that is watched while both write, its answers held against those of the command.
            code = (COURSE / "submissions" / "s02-off-by-one.py").read_text()
            fields = {"text": code, "name": "s02-off-by-one.py", "assignment": 2}
            watched = pages.send("/try", analysis="code", feedback="feedback", mode="after", **fields)
            last = pages.get(f"{watched}/events").strip().split("\n\n")[-1]
            (LOGS / "gradebook-live.txt").write_text(last)
            score = next(score for name, _, score in alone if name == "s02-off-by-one")
            assert f"{score:g} of 10" in last, last[-2000:]
            # A run of the course.
            run = pages.send("/a/2/run", what="all", analysis="code", feedback="feedback", mode="after")
            pages.get(f"{run}/events")
            made = rows(file, "SELECT name, status, score FROM result JOIN submission s ON s.id = submission WHERE run = 2")
            made = [(name, status, None if score is None else score / 1000) for name, status, score in made]
            assert sorted(made) == sorted(alone), (made, alone)
            asked = rows(file, "SELECT DISTINCT job, model FROM model_call WHERE run = 2 AND is_answered = 1")
            assert {("code_analysis", "code"), ("feedback", "feedback")} <= set(asked), asked
            # What needs no person is approved.
            done = rows(file, "SELECT s.id FROM result JOIN submission s ON s.id = submission WHERE run = 2 AND status IN ('graded', 'needs_review') AND score IS NOT NULL")
            for (work,) in done:
                seen = re.search(r'name="version" value="([^"]+)"', pages.get(f"/w/{work}"))
                pages.send(f"/w/{work}", do="approve", version=seen[1], confirmed="yes")
            approved = rows(file, "SELECT count(*) FROM review WHERE decision = 'approved'")
            assert approved == [(len(done),)], approved


def test_ollama_as_its_own_package_knows_it():
    with llama_server("nano-coder") as coder, fake("ollama", coder) as url:
        script = (
            "import sys, ollama\n"
            "client = ollama.Client(host=sys.argv[1])\n"
            "assert [m.model for m in client.list().models] == ['nano-coder:latest']\n"
            "assert client.show('nano-coder').modelinfo['qwen3.context_length'] == 8192\n"
            "asked = dict(model='nano-coder', messages=[{'role': 'user', 'content': 'Hi'}], options={'num_predict': 9, 'temperature': 0})\n"
            "whole = client.chat(**asked)\n"
            "assert whole.eval_count == 9 and whole.done_reason == 'length', whole\n"
            "parts = list(client.chat(stream=True, **asked))\n"
            "assert ''.join(p.message.content for p in parts) == whole.message.content\n"
            "try:\n    client.chat(model='none', messages=[])\n    assert False\n"
            "except ollama.ResponseError as e:\n    assert e.status_code == 404\n"
        )
        subprocess.run([PYTHON, "-c", script, url], check=True)
        alone = grade("--model", CODER, "--model", WRITER)
        assert grade("--server", f"code={url}", "--model", WRITER) == alone
        asked = [job["tandem"]["server"] for one in grade.results for job in one["jobs"] if job["model"] == "code"]
        assert all(server["dialect"] == "ollama" and server["verified"] for server in asked), asked


def test_a_small_server_around_mlx():
    with llama_server("nano-writer") as writer, fake("generate", writer) as url:
        config = LOGS / "generate.toml"
        config.write_text(
            f'[[server]]\nname = "mac"\nurl = "{url}"\ntemplate = "{MODELS}/nano-writer.gguf"\n'
            f'[[server]]\nname = "coder"\nurl = "http://127.0.0.1:1"\n'
            '[[model]]\nname = "feedback"\nservers = ["mac"]\n'
        )
        looked = tandem("doctor", "--config", config)
        assert "generate" in looked.stdout and "cannot" in looked.stdout, looked.stdout
        with serve("generate", "--config", config) as served:
            alone = grade("--model", CODER, "--model", WRITER)
            assert grade("--model", CODER, "--server", f"feedback={served}") == alone
        # The small writer may not find an end, which is said; all else is a text.
        lacking = [one["reasons"] for one in grade.results if one["score"] is not None and not one.get("feedback")]
        assert all("answer was cut" in str(reasons) for reasons in lacking), lacking
        assert len(lacking) < 3, lacking


@contextlib.contextmanager
def dynamo():
    at, bootstrap = port(), port()
    url = f"http://127.0.0.1:{at}"
    folder, state = LOGS / "nano-coder-hf", LOGS / "dynamo"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    subprocess.run([PYTHON, HERE / "as_safetensors.py", MODELS / "nano-coder.gguf", folder], check=True)
    common = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    own = {"DYN_FILE_KV": str(state), "HOME": str(state), "PYTHONUNBUFFERED": "1"}
    mocker = [DYNAMO, "-m", "dynamo.mocker", "--model-path", folder, "--model-name", "mock"]
    frontend = [DYNAMO, "-m", "dynamo.frontend", "--http-port", at, *common]
    prefill = [*mocker, "--disaggregation-mode", "prefill", "--bootstrap-ports", bootstrap, *common]
    decode = [*mocker, "--disaggregation-mode", "decode", *common]
    models = f"{url}/v1/models"
    with (
        process("dynamo-frontend", frontend, models, **own),
        process("dynamo-prefill", prefill, models, **own) as p,
        process("dynamo-decode", decode, models, **own) as d,
    ):
        since = time.time()
        while not get(models)["data"]:
            assert time.time() - since < WAIT, "no model comes"
            time.sleep(0.5)
        # The model is listed before the pair is there.
        time.sleep(3)
        yield url, p, d


def ids(log: Path) -> set:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text())
    return set(re.findall(r'request_id="?([\w-]{12,})', plain))


def test_dynamo_prefills_and_decodes_behind_one_address():
    with dynamo() as (url, prefill, decode), serve("front", "--server", f"code={url}") as served:
        body = {"model": "code", "messages": [{"role": "user", "content": "word " * 300}], "max_tokens": 20}
        data = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{served}/v1/chat/completions", data, headers)
        with urllib.request.urlopen(request) as response:
            lines = [line.decode().strip() for line in response]
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        usage = [event["usage"] for event in events if event.get("usage")]
        assert usage and usage[0]["completion_tokens"] == 20 and usage[0]["prompt_tokens"] > 300, events[-1]
        assert sum("content" in (e["choices"] or [{}])[0].get("delta", {}) for e in events if e["choices"]) > 5
        assert ids(prefill) & ids(decode), (ids(prefill), ids(decode))
        # One that is cut: the server sees it go.
        data = json.dumps(body | {"stream": True, "max_tokens": 4000}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{served}/v1/chat/completions", data, headers)) as response:
            response.readline()
            response.readline()
        since = time.time()
        while get(f"{served}/v1/nodes")["servers"][0]["requests"]:
            assert time.time() - since < 10, "still answering"
            time.sleep(0.1)
        # Its text is random: no score, one message, and a status that says so.
        config = LOGS / "dynamo.toml"
        config.write_text(
            f'[[server]]\nname = "dynamo"\nurl = "{url}"\n[[model]]\nname = "code"\nservers = ["dynamo"]\n'
            '[grading.code_analysis]\nmodel = "code"\nmax_tokens = 200\n'
            '[grading.feedback]\nmodel = "code"\nmax_tokens = 50\n'
        )
        graded = grade("--config", config, code=4)
        assert all(score is None for _, _, score in graded), graded
        causes = [line for line in grade.said.splitlines() if line.startswith("tandem: ") and " failed: " in line]
        assert len(causes) == 1, grade.said[-2000:]


def test_a_router_in_front_of_two():
    alone = grade("--model", CODER, "--model", WRITER)
    both = ["--model", CODER, "--model", WRITER]
    with serve("worker-1", *both) as first, serve("worker-2", *both) as second:
        at = port()
        url = f"http://127.0.0.1:{at}"
        command = [ROUTER, "--worker-urls", first, second, "--host", "127.0.0.1", "--port", at]
        command += ["--policy", "round_robin", "--prometheus-port", port()]
        with process("router", command, f"{url}/v1/models"):
            assert grade("--server", f"code={url}", "--server", f"feedback={url}") == alone
        for worker in ("worker-1", "worker-2"):
            assert "answered" in (LOGS / f"{worker}.log").read_text(), f"{worker} had nothing to do"


if __name__ == "__main__":
    tests = {name[5:]: value for name, value in list(globals().items()) if name.startswith("test_")}
    wanted = sys.argv[5:] or list(tests)
    failed = []
    for name in wanted:
        start = time.time()
        try:
            tests[name]()
            print(f"ok     {name} ({time.time() - start:.0f} s)", flush=True)
        except Exception as error:  # noqa: BLE001
            failed.append(name)
            print(f"FAILED {name}: {error!r}", flush=True)
    sys.exit(bool(failed))

"""Servers that cannot be installed here, made from their documented APIs: fakes.py ollama|generate PORT LLAMA_SERVER_URL.

The answers are those of a real model behind them. `ollama` cuts prompts that are longer than `num_ctx`, as Ollama does;
`generate` is a small server around MLX: a prompt as it is, one answer at a time, no reason for its end.
"""

import hashlib
import http.server
import json
import sys
import threading
import time
import urllib.request

MODEL = "nano-coder:latest"
DIGEST = hashlib.sha256(b"nano-coder").hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behind = ""
    lock = threading.Lock()

    def log_message(self, *_):
        pass

    def body(self):
        length = int(self.headers.get("content-length") or 0)
        return json.loads(self.rfile.read(length) or b"{}")

    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json; charset=utf-8")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def ask(self, path, body):
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.behind + path, data, headers)
        with urllib.request.urlopen(request) as response:
            return json.load(response)


class Ollama(Handler):
    def do_GET(self):
        entry = {
            "name": MODEL,
            "model": MODEL,
            "modified_at": "2026-11-01T00:00:00Z",
            "size": 1,
            "digest": DIGEST,
            "details": {"format": "gguf", "family": "qwen3", "quantization_level": "Q8_0"},
        }
        answers = {"/api/version": {"version": "0.30.0"}, "/api/tags": {"models": [entry]}, "/api/ps": {"models": []}}
        found = answers.get(self.path)
        self.answer(200 if found else 404, found or {"error": "page not found"})

    def do_POST(self):
        body = self.body()
        if body.get("model") not in (MODEL, "nano-coder"):
            return self.answer(404, {"error": f"model '{body.get('model')}' not found"})
        if self.path == "/api/show":
            info = {"general.architecture": "qwen3", "qwen3.context_length": 8192}
            return self.answer(200, {"model_info": info, "capabilities": ["completion"], "details": {}})
        if self.path != "/api/chat":
            return self.answer(404, {"error": "page not found"})
        options = body.get("options") or {}
        context = options.get("num_ctx", 4096)
        messages = body["messages"]
        # What does not fit is cut without a word.
        while self.tokens(messages) > context:
            if body.get("truncate") is False:
                return self.answer(400, {"error": "the input length exceeds the context length"})
            messages[0]["content"] = messages[0]["content"][len(messages[0]["content"]) // 2 :]
        asked = {"messages": messages, "max_tokens": options.get("num_predict", -1)}
        for name in ("temperature", "seed", "top_p", "top_k", "min_p", "stop"):
            if name in options:
                asked[name] = options[name]
        if body.get("format") == "json":
            asked["response_format"] = {"type": "json_object"}
        elif body.get("format"):
            schema = {"name": "x", "schema": body["format"], "strict": True}
            asked["response_format"] = {"type": "json_schema", "json_schema": schema}
        whole = self.ask("/v1/chat/completions", asked)
        self.stream(body, whole)

    def tokens(self, messages):
        prompt = self.ask("/apply-template", {"messages": messages})["prompt"]
        return len(self.ask("/tokenize", {"content": prompt})["tokens"])

    def stream(self, body, whole):
        choice = whole["choices"][0]
        text = choice["message"].get("content") or ""
        usage = whole["usage"]
        common = {"model": body["model"], "created_at": "2026-11-01T00:00:00Z"}
        last = common | {
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": choice["finish_reason"],
            "total_duration": 3,
            "load_duration": 1,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": 1,
            "eval_count": usage["completion_tokens"],
            "eval_duration": 1,
        }
        if body.get("stream") is False:
            last["message"]["content"] = text
            return self.answer(200, last)
        parts = [text[i : i + 7] for i in range(0, len(text), 7)]
        lines = [common | {"message": {"role": "assistant", "content": part}, "done": False} for part in parts]
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for line in lines + [last]:
            data = json.dumps(line).encode() + b"\n"
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")


class Generate(Handler):
    def do_GET(self):
        if self.path in ("/health", "/status"):
            return self.answer(200, {"status": "healthy", "model": "org/nano-writer", "loaded": True})
        self.answer(404, {"error": "not found"})

    def do_POST(self):
        body = self.body()
        if self.path != "/generate":
            return self.answer(404, {"error": "not found"})
        if not body.get("prompt"):
            return self.answer(400, {"error": "No prompt provided"})
        if not self.lock.acquire(blocking=False):
            return self.answer(500, {"error": "two at once"})
        try:
            start = time.time()
            asked = {"prompt": body["prompt"], "n_predict": max(50, body.get("max_tokens", 2400)), "temperature": 0}
            text = self.ask("/completion", asked)["content"]
        finally:
            self.lock.release()
        taken = time.time() - start
        self.answer(200, {"response": text, "generation_time": taken, "tokens": len(text.split()), "model": "org/nano-writer"})


if __name__ == "__main__":
    kind, port, Handler.behind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    handler = {"ollama": Ollama, "generate": Generate}[kind]
    http.server.ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()

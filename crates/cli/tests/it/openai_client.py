"""Talks to the coordinator at argv[1] with the official client; model argv[2]. Prints `ok` at the end."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)
model = sys.argv[2]
messages = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "What is a list?"},
]
request = dict(model=model, messages=messages, max_tokens=24, temperature=0)
# The two answers below are equal in each bit only if the first has left the cache when the second begins.
request["extra_body"] = {"tandem": {"keep": False}}

assert [m.id for m in client.models.list()] == [model]
assert client.models.retrieve(model).id == model
try:
    client.models.retrieve("unheard-of")
    raise SystemExit("an unknown model was found")
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error

if sys.argv[1].startswith("https"):
    # Over TLS a server is known under any name that its certificate has.
    named = client.with_options(default_headers={"Host": "tandem.school.example"})
    assert [m.id for m in named.models.list()] == [model]

whole = client.chat.completions.create(**request)
choice = whole.choices[0]
assert choice.finish_reason in ("stop", "length"), choice
assert choice.message.role == "assistant"
assert whole.usage.completion_tokens >= 1
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert whole.model_extra["tandem"]["mode"] == "remote", whole.model_extra

text, finish, usage = "", None, None
for chunk in client.chat.completions.create(
    **request, stream=True, stream_options={"include_usage": True}
):
    for choice_part in chunk.choices:
        text += choice_part.delta.content or ""
        finish = choice_part.finish_reason or finish
    usage = chunk.usage or usage
assert text == choice.message.content, (text, choice.message.content)
assert finish == choice.finish_reason
counts = ("prompt_tokens", "completion_tokens", "total_tokens")
for count in counts:
    assert getattr(usage, count) == getattr(whole.usage, count), (usage, whole.usage)

completion = client.completions.create(model=model, prompt="def f(", max_tokens=8, temperature=0)
assert completion.choices[0].finish_reason in ("stop", "length")

try:
    client.chat.completions.create(**{**request, "model": "unheard-of"})
    raise SystemExit("an unknown model was accepted")
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error

try:
    client.chat.completions.create(**{**request, "temperature": -1})
    raise SystemExit("a negative temperature was accepted")
except openai.BadRequestError as error:
    assert error.param == "temperature", error

try:
    long = [{"role": "user", "content": "x" * 20000}]
    client.chat.completions.create(**{**request, "messages": long})
    raise SystemExit("a prompt longer than the context was accepted")
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded", error

print("ok")

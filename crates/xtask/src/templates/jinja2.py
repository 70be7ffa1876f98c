"""Renders conversations with Jinja2, set up as Hugging Face's apply_chat_template sets it up.

Reads one JSON object on standard input: {"date", "bos", "eos", "templates": [text], "talks": [{"messages", "tools"}]}.
Writes a list for each template, with {"text"} or {"error"} for each talk.
"""

import json
import sys
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment(date):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.fromisoformat(date).strftime(form)
    return made


def main():
    asked = json.load(sys.stdin)
    made = environment(asked["date"])
    answers = []
    for source in asked["templates"]:
        texts = []
        for talk in asked["talks"]:
            try:
                text = made.from_string(source).render(
                    messages=talk["messages"],
                    tools=talk["tools"],
                    documents=None,
                    add_generation_prompt=True,
                    bos_token=asked["bos"],
                    eos_token=asked["eos"],
                )
                texts.append({"text": text})
            except Exception as error:
                texts.append({"error": f"{type(error).__name__}: {error}"})
        answers.append(texts)
    json.dump(answers, sys.stdout)


main()

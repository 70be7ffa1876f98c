"""The corpus as tokens: groups of submissions behind one shared prefix.

The pieces are tokenised one by one, as the engine does: what people wrote apart from the template.
"""

import json

from tokenizers import Tokenizer

GROUP = 8


class Encoder:
    """Text to tokens, the control tokens by name."""

    def __init__(self, path):
        self.tokenizer = Tokenizer.from_file(path)
        # The text of a control token that a person wrote stays text.
        self.tokenizer.encode_special_tokens = True
        self.start = self.tokenizer.token_to_id("<|im_start|>")
        self.end = self.tokenizer.token_to_id("<|im_end|>")
        self.pad = self.tokenizer.token_to_id("<|endoftext|>")

    def text(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prefix(self, part):
        """ChatML up to where the submission begins."""
        newline = self.text("\n")
        system = [self.start, *self.text("system\n"), *self.text(part["system"]), self.end, *newline]
        return [*system, self.start, *self.text("user\n"), *self.text(part["shared"])]

    def suffix(self, part):
        """Submission and answer, and how many tokens of them are the answer."""
        opening = [self.end, *self.text("\n"), self.start, *self.text("assistant\n")]
        answer = [*self.text(part["answer"]), self.end]
        return [*self.text(part["submission"]), *opening, *answer], len(answer)


def groups(path, encoder, job):
    """Pairs of a prefix and its suffixes."""
    out = []
    current = None
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            example = json.loads(line)
            part = example[job]
            if example["group"] != current:
                current = example["group"]
                out.append((encoder.prefix(part), []))
            out[-1][1].append(encoder.suffix(part))
    return out

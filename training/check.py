"""Compares an exported model, run by llama.cpp, with the training framework on held-out text.

`cargo xtask nano-eval --logits FILE` writes what llama.cpp makes of prompts and reference answers. Here
the same text goes through the tokenizer and the model of the training; tokens must be equal, and the
figures tell how far the logits differ. With `--draft` also how often a smaller model's likeliest token is that
of the model, which is what speculation lives on.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from data import Encoder
from model import load


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--logits", required=True, help="FILE of FILE.jsonl and FILE.f32")
    parser.add_argument("--draft", help="checkpoint of a smaller model with the same tokenizer")
    args = parser.parse_args()
    torch.set_num_threads(2)
    model, encoder = load(args.checkpoint), Encoder(args.tokenizer)
    draft, drafted = load(args.draft) if args.draft else None, []
    size = model.config.vocabulary
    stored = np.memmap(args.logits + ".f32", dtype="<f4", mode="r").reshape(-1, size)
    row = 0
    same = {"prompt": [], "answer": []}
    divergence = {"prompt": [], "answer": []}
    for line in Path(args.logits + ".jsonl").read_text(encoding="utf-8").splitlines():
        example = json.loads(line)
        part = example[example["job"]]
        tokens = encoder.prefix(part) + encoder.suffix(part)[0]
        if tokens != example["tokens"]:
            raise SystemExit(f"task {example['task']}: the tokenizers differ")
        with torch.no_grad():
            ours = model.logits(model(torch.tensor([tokens]))[0])[0].double()
        theirs = torch.from_numpy(np.array(stored[row : row + len(tokens)])).double()
        row += len(tokens)
        p, q = ours.log_softmax(-1), theirs.log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1)
        top = ours.argmax(-1) == theirs.argmax(-1)
        # Position t predicts token t + 1.
        cut = example["prompt_tokens"] - 1
        if draft:
            with torch.no_grad():
                guess = draft.logits(draft(torch.tensor([tokens]))[0])[0].argmax(-1)
            drafted += (guess == ours.argmax(-1))[cut:].tolist()
        for name, part in (("prompt", slice(0, cut)), ("answer", slice(cut, None))):
            same[name] += top[part].tolist()
            divergence[name] += kl[part].tolist()
    for name in same:
        print(
            f"{name}: {len(same[name])} positions, top-1 agreement {100 * np.mean(same[name]):.3f} %,"
            f" mean KL {np.mean(divergence[name]):.2e}, largest {np.max(divergence[name]):.2e} nats"
        )
    if drafted:
        print(f"draft: the same likeliest token at {100 * np.mean(drafted):.2f} % of {len(drafted)} positions of answers")


if __name__ == "__main__":
    main()

"""Trains the byte-level BPE tokenizer of all nano models on the corpus.

The pre-tokenizer is llama.cpp's `qwen2`: the same regular expression here, so both split alike
(`check.py` compares them token by token). All 256 bytes are in the vocabulary, so any bytes go
through and come back.
"""

import argparse
import json

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# llama.cpp, LLAMA_VOCAB_PRE_TYPE_QWEN2.
QWEN2 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts(path, limit):
    """Prompts and answers of the first `limit` examples."""
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number >= limit:
                return
            example = json.loads(line)
            for job in ("code_analysis", "feedback"):
                part = example[job]
                # Once per group is enough for what the group shares.
                if number % 8 == 0:
                    yield part["system"]
                    yield part["shared"]
                yield part["submission"]
                yield part["answer"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--examples", type=int, default=6000)
    args = parser.parse_args()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=args.size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(args.corpus, args.examples), trainer)
    tokenizer.save(args.out)
    print(f"{tokenizer.get_vocab_size()} entries")


if __name__ == "__main__":
    main()

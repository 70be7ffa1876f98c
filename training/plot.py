"""The loss curves of all models from their logs."""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

MODELS = ("nano-coder", "nano-writer", "nano-draft")


def rows(folder, model):
    """The rows of all stages of a model, steps counted through."""
    out, offset = [], 0
    for path in sorted(folder.glob(f"{model}-*.jsonl")):
        stage = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        out += [dict(row, step=row["step"] + offset) for row in stage]
        offset = out[-1]["step"]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    figure, axes = pyplot.subplots(1, len(MODELS), figsize=(12, 3.6), sharey=True)
    for axis, model in zip(axes, MODELS):
        data = rows(args.logs, model)
        held = [r for r in data if "heldout_loss" in r]
        axis.semilogy([r["step"] for r in data], [r["loss"] for r in data], label="training, smoothed")
        axis.semilogy([r["step"] for r in held], [r["heldout_loss"] for r in held], "o-", label="held-out tasks")
        axis.set_title(model)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("loss per answer token (nats)")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()

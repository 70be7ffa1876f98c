"""Trains one nano model.

A step takes `--groups` groups. The prefix that a group shares is computed once and its submissions
continue from its keys and values, which is what the product does at run time; gradients flow through.
The loss is on the answers, and with a small weight on some tokens of the prefix and the submissions.

With `--gap`, in a quarter of the groups the submission's positions lie further from the prefix than its
tokens do, by up to that many (PoSE, arXiv 2309.10400): the angles of long prompts are met without their cost.

Matrices are trained by Muon (momentum, orthogonalised by five Newton-Schulz steps), the rest by Adam.
The learning rate is constant and then falls to 0 in a straight line, by steps or by minutes, whichever
is further.
"""

import argparse
import json
import random
import time

import torch
import torch.nn.functional as F

from data import Encoder, groups
from model import CONFIGS, Config, Nano, save

PROMPT_SHARE = 0.15
PROMPT_WEIGHT = 0.15
GAP_SHARE = 0.25


class Muon(torch.optim.Optimizer):
    """Keller Jordan's Muon: the momentum's nearest (semi-)orthogonal matrix is the update."""

    def __init__(self, parameters, lr, momentum=0.95, decay=0.01):
        super().__init__(parameters, dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                m = state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(m, group["momentum"]))
                scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-group["lr"] * scale)


def orthogonal(g):
    """Five quintic Newton-Schulz steps; coefficients of the published optimizer."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


def batch(suffixes, pad, dice, sample_prompt):
    """Tokens `[batch, longest]`, targets and weights for each position."""
    longest = max(len(s) for s, _ in suffixes)
    tokens = torch.full((len(suffixes), longest), pad)
    weights = torch.zeros(len(suffixes), longest)
    for i, (suffix, answer) in enumerate(suffixes):
        count = len(suffix)
        tokens[i, :count] = torch.tensor(suffix)
        if sample_prompt:
            for at in range(0, count - answer - 1):
                if dice.random() < PROMPT_SHARE:
                    weights[i, at] = PROMPT_WEIGHT
        # Position t predicts token t + 1.
        weights[i, count - answer - 1 : count - 1] = 1.0
    return tokens, weights


def loss_of(model, prefix, suffixes, pad, dice, train, gap=0):
    """Sum of weighted losses, sum of weights, and the loss and hits of answer tokens alone."""
    tokens, weights = batch(suffixes, pad, dice, train)
    shift = dice.randrange(gap) if gap and dice.random() < GAP_SHARE else 0
    known = torch.tensor([prefix])
    before, past = model(known)
    hidden, _ = model(tokens, past, shift)
    rows, columns = weights.nonzero(as_tuple=True)
    logits = model.logits(hidden[rows, columns]).float()
    losses = F.cross_entropy(logits, tokens[rows, columns + 1], reduction="none")
    weight = weights[rows, columns]
    answers = weight == 1.0
    hits = (logits.argmax(-1) == tokens[rows, columns + 1])[answers].sum()
    total, share = (losses * weight).sum(), weight.sum()
    if train:
        at = torch.tensor([i for i in range(len(prefix) - 1) if dice.random() < PROMPT_SHARE])
        logits = model.logits(before[0, at]).float()
        # As much as if each submission had its own prefix, as it has at run time.
        total = total + F.cross_entropy(logits, known[0, at + 1], reduction="sum") * PROMPT_WEIGHT * len(suffixes)
        share = share + PROMPT_WEIGHT * len(suffixes) * len(at)
    return total, share, losses[answers].sum().detach(), hits, answers.sum()


@torch.no_grad()
def held_out(model, data, pad):
    """Mean loss and share of right tokens over the answers of held-out tasks."""
    model.eval()
    total, hits, count = 0.0, 0, 0
    for prefix, suffixes in data:
        with torch.autocast("cpu", torch.bfloat16):
            _, _, loss, hit, n = loss_of(model, prefix, suffixes, pad, random.Random(0), False)
        total, hits, count = total + loss.item(), hits + hit.item(), count + n.item()
    model.train()
    return total / count, hits / count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CONFIGS, required=True)
    parser.add_argument("--job", choices=["code_analysis", "feedback"], required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--heldout", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--begin", help="checkpoint to go on from")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--fall", type=float, default=0.5, help="share of the run in which the rate falls")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--gap", type=int, default=0, help="largest gap between the positions of prefix and submission")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    dice = random.Random(args.seed)
    encoder = Encoder(args.tokenizer)
    size = encoder.tokenizer.get_vocab_size()
    model = Nano(Config(vocabulary=size, **CONFIGS[args.model]))
    if args.begin:
        model.load_state_dict(torch.load(args.begin, weights_only=True)["weights"])
    print(f"{args.model}: {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    data = groups(args.train, encoder, args.job)
    checks = groups(args.heldout, encoder, args.job)[:12]
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embedding" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embedding" in n]
    optimizers = [
        (Muon(matrices, args.lr), args.lr),
        (torch.optim.Adam(others, args.adam_lr, betas=(0.9, 0.98)), args.adam_lr),
    ]
    log = open(args.log, "w", encoding="utf-8")
    order, seen, seen_answers, began, running = [], 0, 0, time.time(), None
    for step in range(args.steps):
        progress = max(step / args.steps, (time.time() - began) / 60 / args.minutes)
        if progress >= 1:
            break
        factor = min(1.0, (step + 1) / 20, (1 - progress) / args.fall if args.fall else 1.0)
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.zero_grad()
        answer_loss = answer_count = 0
        for _ in range(args.groups):
            if not order:
                order = list(range(len(data)))
                dice.shuffle(order)
            prefix, suffixes = data[order.pop()]
            with torch.autocast("cpu", torch.bfloat16):
                total, weight, loss, _, count = loss_of(model, prefix, suffixes, encoder.pad, dice, True, args.gap)
            (total / weight / args.groups).backward()
            seen += len(prefix) + sum(len(s) for s, _ in suffixes)
            seen_answers += count.item()
            answer_loss, answer_count = answer_loss + loss.item(), answer_count + count.item()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
        mean = answer_loss / answer_count
        running = mean if running is None else 0.95 * running + 0.05 * mean
        last = step + 1 == args.steps
        if step % 10 == 9 or last:
            row = dict(step=step + 1, seconds=round(time.time() - began, 1), tokens=seen, loss=round(running, 4))
            if (step + 1) % args.save_every == 0 or last:
                save(model, args.out, step=step + 1, tokens=seen, answer_tokens=seen_answers)
                row["heldout_loss"], row["heldout_top1"] = (round(v, 4) for v in held_out(model, checks, encoder.pad))
            print(json.dumps(row), file=log, flush=True)
            print(row, flush=True)
    save(model, args.out, step=step + 1, tokens=seen, answer_tokens=seen_answers)
    loss, top1 = held_out(model, checks, encoder.pad)
    row = dict(step=step + 1, seconds=round(time.time() - began, 1), cpu_seconds=round(time.process_time(), 1),
               tokens=seen, answer_tokens=seen_answers, loss=round(running, 4), heldout_loss=round(loss, 4),
               heldout_top1=round(top1, 4), done=True)
    print(json.dumps(row), file=log, flush=True)
    print(row, flush=True)


if __name__ == "__main__":
    main()

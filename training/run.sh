#!/usr/bin/env bash
# Corpus, tokenizer, training, export and check of the three nano models; see README.md beside this file.
# Writes to $OUT (default out/training) and, at the end, to models/ and training/log/. A stage that has been trained to
# its end is not trained again while its checkpoint lies in $OUT. FIRST, STEPS and LONG are the steps of the three
# stages, DRAFT those of nano-draft's second; with 2 for each the whole path takes minutes and the models are noise.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-out/training}
python=${PYTHON:-python3}
mkdir -p "$out" models training/log

cargo xtask corpus --split train --seed 1 --count 24000 --out "$out/train-1.jsonl"
cargo xtask corpus --split train --seed 2 --count 16000 --varied 60 --out "$out/train-2.jsonl"
cargo xtask corpus --split train --seed 3 --count 16000 --varied 60 --notes 200 --out "$out/train-3.jsonl"
cargo xtask corpus --split heldout --seed 1 --count 1600 --out "$out/heldout.jsonl"
"$python" training/tokenizer.py --corpus "$out/train-1.jsonl" --out "$out/tokenizer.json"

# train MODEL JOB STAGE CORPUS FURTHER-OPTIONS
train() {
    local model=$1 job=$2 stage=$3 corpus=$4
    shift 4
    if [ -e "$out/$model-$stage.pt" ] && grep -q '"done": true' "training/log/$model-$stage.jsonl"; then
        return
    fi
    "$python" -W ignore training/train.py --model "$model" --job "$job" --seed "$stage" \
        --train "$out/$corpus" --heldout "$out/heldout.jsonl" --tokenizer "$out/tokenizer.json" \
        --out "$out/$model-$stage.pt" --log "training/log/$model-$stage.jsonl" "$@"
}

# Two processes of one thread each make better use of two cores than two threads; nano-draft waits for the writer, which
# is done before the coder.
(
    train nano-coder code_analysis 1 train-1.jsonl --threads 1 --steps "${FIRST:-300}" --fall 0
    train nano-coder code_analysis 2 train-2.jsonl --threads 1 --steps "${STEPS:-600}" --gap 7000 --begin "$out/nano-coder-1.pt"
    train nano-coder code_analysis 3 train-3.jsonl --threads 1 --steps "${LONG:-250}" --gap 4000 --begin "$out/nano-coder-2.pt"
) &
coder=$!
(
    train nano-writer feedback 1 train-1.jsonl --threads 1 --steps "${FIRST:-350}" --fall 0
    train nano-writer feedback 2 train-2.jsonl --threads 1 --steps "${STEPS:-600}" --gap 7000 --begin "$out/nano-writer-1.pt"
    train nano-writer feedback 3 train-3.jsonl --threads 1 --steps "${LONG:-150}" --gap 4000 --begin "$out/nano-writer-2.pt"
    train nano-draft code_analysis 2 train-2.jsonl --threads 1 --steps "${DRAFT:-400}" --gap 7000
    train nano-draft code_analysis 3 train-3.jsonl --threads 1 --steps "${LONG:-120}" --gap 4000 --begin "$out/nano-draft-2.pt"
) &
writer=$!
wait "$coder"
wait "$writer"

for model in nano-coder nano-writer nano-draft; do
    feedback=()
    [ "$model" = nano-writer ] && feedback=(--feedback)
    for type in f16 q8_0; do
        "$python" training/export.py --checkpoint "$out/$model-3.pt" --tokenizer "$out/tokenizer.json" \
            --name "$model" --type "$type" --out "$out/$model-$type.gguf"
        cargo xtask nano-eval --logits "$out/logits" --count 12 --model "$out/$model-$type.gguf" "${feedback[@]}"
        echo "$model $type"
        "$python" training/check.py --checkpoint "$out/$model-3.pt" --tokenizer "$out/tokenizer.json" \
            --logits "$out/logits"
    done
    cp "$out/$model-q8_0.gguf" "models/$model.gguf"
done
"$python" training/plot.py --logs training/log --out training/loss.png
cargo xtask nano-eval

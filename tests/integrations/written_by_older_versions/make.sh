#!/bin/bash
# Writes VERSION.tar.xz for test_upgrades.py with the code of that version, on a CPU:
#
#   git worktree add --detach ../older v0.1.0
#   PYTHONPATH=$PWD/../older bash tests/integrations/written_by_older_versions/make.sh 0.1.0
#
# 4702e458 is a commit from before version 0.1.0. test_upgrades.py repeats the commands below.
set -euo pipefail
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 TQDM_DISABLE=1
archive=$(realpath "$(dirname "$0")")/$1.tar.xz
python=$(realpath -s .venv/bin/python)
snugbert() { "$python" -W ignore -m snugbert "$@"; }
rm -rf /tmp/written && mkdir /tmp/written && cd /tmp/written
export HF_HOME=/tmp/written/cache

"$python" - <<'CODE'
import csv, random
rng = random.Random(0)
filler = "a the film plot story actor scene music long short old new it was and with".split()
words = {"cheerful": ["good", "fine", "great"], "gloomy": ["bad", "dull", "poor"]}

def sentence(label):
    chosen = rng.choices(filler, k=rng.randint(3, 9))
    chosen.insert(rng.randrange(len(chosen)), rng.choice(words[label]))
    return " ".join(chosen)

with open("text.txt", "w") as file:
    for _ in range(40):
        file.writelines(f"{sentence(rng.choice([*words]))}.\n" for _ in range(rng.randint(3, 6)))
        file.write("\n")
for name, rows in (("train", 32), ("dev", 16)):
    with open(f"{name}.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("sentence", "label"))
        writer.writerows((sentence(label), label) for _ in range(rows // 2) for label in words)
CODE

snugbert vocabulary --train_file text.txt --vocab_size 80 --output_dir tokenizer
snugbert prepare --train_file text.txt --tokenizer_name tokenizer --output_dir corpus
small=num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=32,max_position_embeddings=32
small+=,initializer_range=0.2
snugbert pretrain --corpus corpus --tokenizer_name tokenizer --config_name tiny \
    --config_overrides "$small" --max_seq_length 32 --per_device_train_batch_size 8 --learning_rate 1e-2 \
    --max_steps 6 --save_steps 3 --logging_steps 1 --validation_file text.txt --max_eval_samples 16 --use_cpu \
    --output_dir pretrained
model="--model_name_or_path pretrained --train_file train.csv --validation_file dev.csv --per_device_train_batch_size 8 \
    --learning_rate 1e-2 --use_cpu"
snugbert glue $model --max_steps 24 --logging_steps 4 --save_strategy steps --save_steps 12 \
    --eval_strategy no --output_dir finetuned
snugbert glue $model --max_steps 8 --eval_strategy no --seeds 2 --output_dir sweep

# A prediction that was interrupted after its first window.
"$python" - <<'CODE'
import random
rng = random.Random(1)
with open("rows.csv", "w") as file:
    file.write("sentence\n")
    file.writelines(f"{rng.choice(['good', 'bad'])} film\n" for _ in range(40_000))
CODE
snugbert predict --model_name_or_path finetuned --input_file rows.csv --output_file rows.jsonl --use_cpu &
until [ -s rows.jsonl.partial.json ]; do kill -0 $!; sleep 0.01; done
kill -9 $(pgrep -P $!) $!

# Outputs of the model.
"$python" -W ignore - <<'CODE'
import json, torch, snugbert
from transformers import AutoModelForPreTraining, AutoTokenizer
text = "the old film was good and the story dull."
tokenizer, model = AutoTokenizer.from_pretrained("pretrained"), AutoModelForPreTraining.from_pretrained("pretrained")
with torch.no_grad():
    output = model.eval()(**tokenizer(text, return_tensors="pt"))
tokens, pair = output.prediction_logits.tolist(), output.seq_relationship_logits.tolist()
json.dump({"text": text, "prediction_logits": tokens, "seq_relationship_logits": pair}, open("logits.json", "w"))
CODE

rm -rf cache rows.csv rows.jsonl.partial pretrained/checkpoint-6 finetuned/checkpoint-24
find . -name '*.png' -delete
find . -name '*lock' -delete
XZ_OPT=-9e tar --create --xz --sort=name --owner=0 --group=0 --numeric-owner --file "$archive" .
ls -l "$archive"

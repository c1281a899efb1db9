"""`snugbert pretrain`, stage by stage and as a whole."""

import gzip
import json

import numpy as np
import pytest
import torch
from datasets import Dataset

import snugbert
from snugbert.cli import main as snugbert_command
from snugbert.trainers.command_line import InputError
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPreTraining
from snugbert.trainers.pretraining.command import unigram_baseline
from snugbert.trainers.pretraining.documents import Corpus, find_files, read_documents, read_lines, tokenize_corpus
from snugbert.trainers.pretraining.masking import mask_tokens
from snugbert.trainers.pretraining.sentence_pairs import SentencePairDataset, make_sentence_pairs

DOCUMENTS = [["A line. And more of it.", "Another line."], ["Zwei Zeilen, ja."], ["ein Café", "€ 5"]]


@pytest.fixture(scope="module")
def corpus(data_dir) -> Corpus:
    tokenizer = snugbert.SnugBertTokenizer(vocab=str(data_dir / "vocab/bert-base-uncased-vocab.txt"))
    return tokenize_corpus(read_documents([data_dir / "wiki_en/validation.txt.gz"]), tokenizer, "en", False)


# --- documents --------------------------------------------------------------------------------------------------


def write_documents(folder, suffix):
    file = folder / f"text{suffix}"
    if suffix == ".parquet":
        Dataset.from_dict({"text": ["\n".join(lines) for lines in DOCUMENTS]}).to_parquet(file)
    elif ".jsonl" in suffix:
        content = "".join(json.dumps({"text": "\n".join(lines)}) + "\n" for lines in DOCUMENTS).encode()
    else:
        content = "\ufeff".encode() + "\n\n".join("\n".join(lines) for lines in DOCUMENTS).encode()
    if suffix != ".parquet":
        file.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    return file


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet"])
def test_every_kind_of_file_holds_the_same_documents(tmp_path, suffix):
    file = write_documents(tmp_path, suffix)
    assert list(read_documents([file])) == DOCUMENTS
    assert list(read_lines([file])) == [line for document in DOCUMENTS for line in document]


def test_files_are_found_by_pattern_once_each(tmp_path):
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text("x")
    found = find_files([str(tmp_path / "*.txt"), str(tmp_path / "a.txt"), str(tmp_path / "c.jsonl")])
    assert [file.name for file in found] == ["a.txt", "b.txt", "c.jsonl"]


def test_sentences_and_documents_are_where_they_should_be():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "sleep", "run", "."]
    tokenizer = snugbert.SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)})
    documents = [["Cats sleep. Sleep run run.", "cats"], [" "], ["Run."]]
    corpus = tokenize_corpus(iter(documents), tokenizer, "en", show_progress=False)
    assert corpus.tokens.tolist() == [5, 6, 8, 6, 7, 7, 8, 5, 7, 8]
    assert corpus.sentences.tolist() == [0, 3, 7, 8, 10]
    assert corpus.documents.tolist() == [0, 3, 4]
    corpus = tokenize_corpus(iter(documents), tokenizer, None, show_progress=False)
    assert corpus.sentences.tolist() == [0, 7, 8, 10]
    assert corpus.tokens.dtype == np.uint16
    special = tokenize_corpus([["[MASK] run"]], tokenizer, None, show_progress=False)
    assert special.tokens.tolist() == [1, 1, 1, 7]  # unknown characters, no special token


# --- pairs and masks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_seq_length", [128, 32, 5])
def test_pairs_follow_the_recipe(corpus, max_seq_length):
    pairs = make_sentence_pairs(corpus, max_seq_length, short_seq_prob=0.0, seed=1)
    document_starts = corpus.sentences[corpus.documents]
    documents = np.searchsorted(document_starts, pairs.spans, side="right") - 1
    documents[:, [1, 3]] = np.searchsorted(document_starts, pairs.spans[:, [1, 3]] - 1, side="right") - 1
    first, second = pairs.spans[:, 1] - pairs.spans[:, 0], pairs.spans[:, 3] - pairs.spans[:, 2]
    is_next = pairs.labels == 0

    assert first.min() >= 1 and second.min() >= 1
    assert (first + second).max() == max_seq_length - 3
    assert (documents[:, 0] == documents[:, 1]).all() and (documents[:, 2] == documents[:, 3]).all()
    assert (documents[is_next, 0] == documents[is_next, 2]).all()
    assert (documents[~is_next, 0] != documents[~is_next, 2]).all()
    assert (pairs.spans[is_next, 2] >= pairs.spans[is_next, 1]).all()
    # Where nothing was cut off, the second half begins where the first ends.
    uncut = is_next & (first + second < max_seq_length - 3)
    assert (pairs.spans[uncut, 1] == pairs.spans[uncut, 2]).all()
    if max_seq_length == 128:  # short targets cut nothing off
        short = make_sentence_pairs(corpus, max_seq_length, short_seq_prob=1.0, seed=1).spans
        assert (short[:, 3] - short[:, 2] + short[:, 1] - short[:, 0]).mean() < 100
        assert (
            np.isin(short[:, 0], corpus.sentences).mean() > np.isin(pairs.spans[:, 0], corpus.sentences).mean() + 0.1
        )
        assert abs(is_next.mean() - 0.5) < 0.02
        assert (first + second).mean() > 0.9 * 125


def test_pairs_use_the_text_once(corpus):
    """First halves and real second halves cover the corpus without overlap, up to what truncation drops."""
    pairs = make_sentence_pairs(corpus, 128)
    used = np.zeros(len(corpus.tokens), dtype=int)
    for (first_start, first_end, second_start, second_end), label in zip(pairs.spans, pairs.labels, strict=True):
        used[first_start:first_end] += 1
        if label == 0:
            used[second_start:second_end] += 1
    assert used.max() == 1
    assert used.mean() > 0.85


def test_pairs_are_a_function_of_seed_and_epoch(corpus):
    def spans(seed, epoch):
        return make_sentence_pairs(corpus, 128, seed=seed, epoch=epoch).spans.tolist()

    assert spans(1, 0) == spans(1, 0)
    assert spans(1, 0) != spans(1, 1)
    assert spans(1, 0) != spans(2, 0)


def test_examples_do_not_depend_on_what_was_asked_for_before(corpus):
    def dataset():
        return SentencePairDataset(corpus, 101, 102, seed=7, num_examples=20_000)

    straight, jumping = dataset(), dataset()
    last = len(straight) - 1
    assert last > 2 * straight.epoch_length
    for index in (last, 0, straight.epoch_length, 5, last):
        expected, example = straight[index], jumping[index]
        assert example["input_ids"].tolist() == expected["input_ids"].tolist()
        assert example["mask_seed"] == expected["mask_seed"]
    seen = {tuple(straight[index]["input_ids"]) for index in range(straight.epoch_length)}
    assert len(seen) > 0.99 * straight.epoch_length
    example = straight[3]
    ids, types = example["input_ids"], example["token_type_ids"]
    assert ids[0] == 101 and ids[-1] == 102 and (ids == 102).sum() == 2
    assert types.tolist() == [0] * (list(ids).index(102) + 1) + [1] * (len(ids) - list(ids).index(102) - 1)


def test_masks_are_15_percent_and_80_10_10():
    rng = np.random.default_rng(0)
    replacements = np.arange(1000, 2000)
    chosen = masked = kept = replaced = 0
    for length in range(1, 400):
        ids = rng.integers(2000, 30000, size=length)
        candidates = rng.random(length) < 0.9
        candidates[0] = True
        hidden, labels = mask_tokens(ids, candidates, 103, replacements, rng)
        number = int((labels != -100).sum())
        assert number == max(1, round(candidates.sum() * 0.15))
        assert candidates[labels != -100].all()
        assert (labels[labels != -100] == ids[labels != -100]).all()
        assert (hidden[labels == -100] == ids[labels == -100]).all()
        chosen += number
        masked += (hidden == 103).sum()
        kept += ((hidden == ids) & (labels != -100)).sum()
        replaced += (hidden < 2000).sum() - (hidden == 103).sum()
    assert masked + kept + replaced == chosen
    # Five standard deviations of a binomial.
    for count, share in ((masked, 0.8), (kept, 0.1), (replaced, 0.1)):
        assert abs(count - share * chosen) < 5 * (chosen * share * (1 - share)) ** 0.5


def test_a_batch_is_a_function_of_its_examples(corpus, data_dir):
    tokenizer = snugbert.SnugBertTokenizer(vocab=str(data_dir / "vocab/bert-base-uncased-vocab.txt"))
    dataset = SentencePairDataset(corpus, tokenizer.cls_token_id, tokenizer.sep_token_id)
    collate = SnugBertDataCollatorForPreTraining(tokenizer)
    batch = collate([dataset[index] for index in range(16)])
    alone = collate([dataset[7]])
    lengths = [len(dataset[index]["input_ids"]) for index in range(16)]
    assert batch["cu_seq_lens_q"].diff().tolist() == lengths and batch["max_length_q"] == max(lengths)
    assert batch["next_sentence_label"].tolist() == [dataset[index]["next_sentence_label"] for index in range(16)]
    start, end = batch["cu_seq_lens_q"][7:9]
    for name in ("input_ids", "token_type_ids", "position_ids", "labels"):
        assert torch.equal(batch[name][:, start:end], alone[name]), name
        assert batch[name].shape == (1, sum(lengths))
    assert alone["position_ids"].tolist() == [list(range(lengths[7]))]
    # With its labels put back, a row is the example again.
    labels, ids = alone["labels"][0], alone["input_ids"][0]
    assert torch.where(labels == -100, ids, labels).tolist() == dataset[7]["input_ids"].tolist()
    special = torch.isin(batch["labels"], torch.tensor([101, 102]))
    assert not special.any()


def test_unigram_baseline_by_hand():
    def corpus_of(tokens):
        return Corpus(np.array(tokens), np.array([0, len(tokens)]), np.array([0, 1]))

    baseline = unigram_baseline(corpus_of([3, 3, 3, 1]), corpus_of([3, 1]), vocab_size=4)
    # Counts plus one: 1, 2, 1, 4 of 8.
    assert baseline["mlm_loss"] == pytest.approx(-(np.log(4 / 8) + np.log(2 / 8)) / 2)
    assert baseline["mlm_accuracy"] == 0.5


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """Documents of a few words each, a tokenizer of them, and the arguments of a run of seconds."""
    folder = tmp_path_factory.mktemp("pretraining")
    rng = np.random.default_rng(0)
    topics = [[f"w{topic}{word}" for word in "abcd"] for topic in range(3)]
    lines = []
    for _ in range(120):
        topic = topics[rng.integers(3)]
        lines += [" ".join(rng.choice(topic, size=rng.integers(4, 9))) + " ." for _ in range(6)] + [""]
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "validation.txt").write_text("\n".join(lines[:140]))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *(word for topic in topics for word in topic)]
    snugbert.SnugBertTokenizer({word: index for index, word in enumerate(words)}).save_pretrained(folder / "tok")
    return {
        "tokenizer_name": folder / "tok",
        "config_name": "tiny",
        "train_file": folder / "text.txt",
        "validation_file": folder / "validation.txt",
        "lines_are_sentences": "true",
        "max_seq_length": 40,
        "per_device_train_batch_size": 16,
        "max_steps": 8,
        "logging_steps": 2,
        "use_cpu": "true",
        "disable_tqdm": "true",
    }


def run(arguments: dict, **more) -> int:
    arguments = {name: value for name, value in (arguments | more).items() if value is not None}
    return snugbert_command(["pretrain", *(text for name, x in arguments.items() for text in (f"--{name}", str(x)))])


def test_a_run_learns_and_leaves_a_model(small_run, tmp_path, capsys):
    more = {"max_steps": 60, "learning_rate": 2e-3, "eval_strategy": "steps", "eval_steps": 30}
    assert run(small_run | more, output_dir=tmp_path) == 0
    printed = capsys.readouterr().out
    assert "masked token accuracy" in printed and "without context" in printed
    results = json.loads((tmp_path / "eval_results.json").read_text())
    assert results["eval_mlm_loss"] < results["eval_unigram_mlm_loss"] - 0.5
    assert results["eval_mlm_accuracy"] > 1.2 * results["eval_unigram_mlm_accuracy"]
    assert results["eval_loss"] == pytest.approx(results["eval_mlm_loss"] + results["eval_nsp_loss"])
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    for line in history:
        if "loss" in line:
            assert line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"], abs=2e-3)
            assert line["tokens_per_second"] > 0 and 0 <= line["mlm_accuracy"] <= 1 and 0 <= line["nsp_accuracy"] <= 1
    assert history[-1]["epoch"] > 3  # passes over the corpus, not over the dataset of all steps
    assert type(snugbert.SnugBertForMaskedLM.from_pretrained(tmp_path)).__name__ == "SnugBertForMaskedLM"


def test_evaluation_is_the_mean_over_all_labels(small_run, tmp_path):
    """Against the model on one pair after the other, as ordinary batches of one."""
    run(small_run, output_dir=tmp_path, per_device_eval_batch_size=3, save_strategy="no")
    results = json.loads((tmp_path / "eval_results.json").read_text())
    tokenizer = snugbert.SnugBertTokenizer.from_pretrained(tmp_path)
    corpus = tokenize_corpus(read_documents([small_run["validation_file"]]), tokenizer, None, False)
    dataset = SentencePairDataset(corpus, tokenizer.cls_token_id, tokenizer.sep_token_id, 40, seed=0)
    assert len(dataset) % 3  # the last batch is smaller than the others
    collate = SnugBertDataCollatorForPreTraining(tokenizer)
    model = snugbert.SnugBertForPreTraining.from_pretrained(tmp_path).eval()
    of_tokens, of_pairs = [], []
    for index in range(len(dataset)):
        batch = collate([dataset[index]])
        del batch["cu_seq_lens_q"], batch["max_length_q"]
        output = model(**batch)
        labels = batch["labels"][0]
        of_tokens += [
            (-scores.log_softmax(-1)[label].item(), (scores.argmax() == label).item())
            for scores, label in zip(output.prediction_logits[0], labels, strict=True)
            if label != -100
        ]
        (scores,), (label,) = output.seq_relationship_logits, batch["next_sentence_label"]
        of_pairs.append((-scores.log_softmax(-1)[label].item(), (scores.argmax() == label).item()))
    for name, figures in (("mlm", of_tokens), ("nsp", of_pairs)):
        loss, accuracy = np.mean(figures, axis=0)
        assert results[f"eval_{name}_loss"] == pytest.approx(loss, rel=1e-5)
        assert results[f"eval_{name}_accuracy"] == pytest.approx(accuracy, rel=1e-5)


def test_do_eval_alone_does_not_train_and_holds_out_documents(small_run, tmp_path, capsys):
    run(small_run, output_dir=tmp_path / "model", save_strategy="no")
    before = (tmp_path / "model/model.safetensors").read_bytes()
    more = {"config_name": None, "model_name_or_path": tmp_path / "model", "validation_file": None}
    assert run(small_run, **more, do_eval="true", output_dir=tmp_path / "evaluated") == 0
    assert "eval_mlm_loss" in json.loads((tmp_path / "evaluated/eval_results.json").read_text())
    assert not (tmp_path / "evaluated/model.safetensors").exists()
    assert (tmp_path / "model/model.safetensors").read_bytes() == before


def test_evaluation_needs_no_training_text(small_run, tmp_path, capsys):
    run(small_run, output_dir=tmp_path, save_strategy="no")
    trained = json.loads((tmp_path / "eval_results.json").read_text())
    capsys.readouterr()
    more = {"config_name": None, "model_name_or_path": tmp_path, "train_file": None, "do_eval": "true"}
    assert run(small_run | more, output_dir=tmp_path / "evaluated") == 0
    evaluated = json.loads((tmp_path / "evaluated/eval_results.json").read_text())
    assert evaluated["eval_mlm_loss"] == pytest.approx(trained["eval_mlm_loss"])
    assert "masked token loss" in capsys.readouterr().out


def test_an_output_folder_with_a_run_is_kept(small_run, tmp_path, capsys):
    run(small_run, output_dir=tmp_path, save_steps=4)
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert run(small_run, output_dir=tmp_path, seed=1) == 2
    assert "already holds a run" in capsys.readouterr().err
    # Even --overwrite_output_dir removes nothing before the new run is about to train.
    assert run(small_run, output_dir=tmp_path, train_file="typo.txt", overwrite_output_dir="true") == 2
    assert (tmp_path / "checkpoint-4/optimizer.pt").exists() and (tmp_path / "eval_results.json").exists()
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    assert run(small_run, output_dir=tmp_path, seed=1, save_strategy="no", overwrite_output_dir="true") == 0
    assert (tmp_path / "model.safetensors").read_bytes() != weights
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_run_goes_on_from_its_newest_whole_checkpoint(small_run, tmp_path, caplog):
    run(small_run, output_dir=tmp_path, save_steps=4)
    (tmp_path / "checkpoint-8/trainer_state.json").unlink()  # as if the disk had been full
    more = {"resume_from_checkpoint": "true", "max_steps": 10}
    assert run(small_run, output_dir=tmp_path, **more) == 0
    assert "checkpoint-8 is not a whole checkpoint" in caplog.text
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    assert state["global_step"] == 10
    assert [line["step"] for line in state["log_history"] if "loss" in line] == [2, 4, 6, 8, 10]


def test_epochs_are_passes_over_the_corpus(small_run, tmp_path):
    strategies = {f"{what}_strategy": "epoch" for what in ("save", "eval", "logging")}
    more = {"max_steps": None, "num_train_epochs": 2, "per_device_train_batch_size": 64}
    assert run(small_run | more, output_dir=tmp_path, **strategies) == 0
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    assert [round(line["epoch"]) for line in history if "loss" in line] == [1, 2]
    assert [round(line["epoch"]) for line in history if "eval_loss" in line] == [1, 2]
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2


def test_arguments_from_a_yaml_file_yield_to_the_command_line(small_run, tmp_path):
    rows = [{"body": text.replace("\n", " \n")} for text in small_run["train_file"].read_text().split("\n\n")]
    Dataset.from_list(rows).to_parquet(tmp_path / "data/train.parquet")
    lines = [f"{name}: {value}" for name, value in small_run.items() if name != "train_file"]
    lines += ["warmup_ratio: 0.1", "save_strategy: no", "seed: null", f"dataset_name: {tmp_path / 'data'}"]
    lines += [
        "text_column_name: body",
        "lr_scheduler_type: cosine_with_min_lr",
        "lr_scheduler_kwargs: {min_lr: 0.00001}",
    ]
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    more = ["--config", str(tmp_path / "run.yaml"), "--max_steps", "3", "--output_dir", str(tmp_path / "out")]
    assert snugbert_command(["pretrain", *more]) == 0
    assert json.loads((tmp_path / "out/trainer_state.json").read_text())["global_step"] == 3
    assert not list((tmp_path / "out").glob("checkpoint-*"))


BAD = [
    ({"train_file": "nowhere.txt"}, "there is no file nowhere.txt"),
    ({"train_file": None}, "there is no text; name it with --train_file"),
    ({"dataset_name": "x"}, "either with --train_file or with --dataset_name"),
    ({"train_file": None, "dataset_name": "nowhere"}, "the dataset 'nowhere' with split 'train' cannot be loaded"),
    ({"train_file": "long_sentences.txt"}, "the training text gives no pair of next sentences"),
    ({"validation_file": None, "do_eval": "true", "train_file": "two.txt"}, "held-out text (5 % of the documents"),
    ({"train_file": "empty.txt"}, "the training text is empty"),
    ({"train_file": "one_document.txt"}, "a single document of 3 sentences"),
    ({"train_file": "one_sentence_each.txt"}, "every document of the training text is a single sentence"),
    ({"train_file": "latin1.txt"}, "latin1.txt, line 2: not UTF-8"),
    ({"train_file": "latin1.txt.gz"}, "latin1.txt.gz, line 2: not UTF-8"),
    ({"train_file": "cut.txt.gz"}, "not a whole gzip file"),
    ({"train_file": "broken.jsonl"}, "broken.jsonl, row 2: not JSON"),
    ({"train_file": "other.jsonl"}, "other.jsonl, row 1: there is no column 'text', only body"),
    ({"train_file": "table.csv"}, "table.csv is not a .txt"),
    ({"config_name": "huge"}, "neither a size (tiny, mini, small, medium, base, large) nor"),
    ({"config_overrides": "hidden_dropout_prob=2"}, "`hidden_dropout_prob` must be at least 0 and below 1"),
    ({"config_overrides": "hidden_dropuot_prob=0"}, "hidden_dropuot_prob"),
    ({"model_name_or_path": "x", "config_name": None}, "the configuration x cannot be used"),
    ({"model_name_or_path": "./x"}, "there is no folder ./x"),
    ({"config_name": None}, "which model?"),
    ({"tokenizer_name": "no_special"}, "lacks [MASK]"),
    ({"tokenizer_name": None}, "--config_name alone says nothing of the vocabulary"),
    ({"tokenizer_name": "nowhere"}, "the tokenizer of nowhere cannot be used"),
    ({"max_seq_length": 513}, "--max_seq_length 513 must be at least 5 and at most the model's"),
    ({"config_overrides": "num_attention_heads=3"}, "is not a multiple of `num_attention_heads` 3"),
    ({"attn_implementation": "nope"}, "the model tiny cannot be opened"),
    ({"label_smoothing_factor": 0.1}, "--label_smoothing_factor is not for pretraining"),
    ({"tokenizer_name": "latin1_vocab"}, "vocab.txt, line 6: not UTF-8"),
    ({"report_to": "tensorboardx"}, "tensorboardx"),
    ({"learning_rate": -1}, "--learning_rate -1.0 must not be negative"),
    ({"mlm_probability": 2}, "--mlm_probability 2.0 must be between 0 and 1"),
    ({"resume_from_checkpoint": "true"}, "holds no whole checkpoint"),
    ({"learning_rat": 1}, "unknown arguments: --learning_rat 1"),
    ({"learning_rate": "fast"}, "invalid float value: 'fast'"),
    ({"config": "nowhere.yaml"}, "there is no file nowhere.yaml"),
]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    (folder / "empty.txt").write_text("\n\n")
    (folder / "one_document.txt").write_text("a .\nb .\nc .\n")
    (folder / "one_sentence_each.txt").write_text("a .\n\nb .\n\nc .\n")
    (folder / "two.txt").write_text("a .\nb .\n\nc .\nd .\n")
    (folder / "long_sentences.txt").write_text("\n\n".join(f"{'w0a ' * 50}\n{'w0b ' * 50}" for _ in range(5)))
    (folder / "latin1.txt").write_bytes(b"fine\ncaf\xe9\n")
    (folder / "latin1.txt.gz").write_bytes(gzip.compress(b"fine\ncaf\xe9\n"))
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"some text " * 1000)[:40])
    (folder / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (folder / "other.jsonl").write_text('{"body": "a"}\n')
    (folder / "table.csv").write_text("text\na\n")
    (folder / "no_special").mkdir()
    (folder / "no_special/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    (folder / "latin1_vocab").mkdir()
    (folder / "latin1_vocab/vocab.txt").write_bytes(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncaf\xe9\n")
    return folder


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_is_one_sentence(small_run, bad_files, tmp_path, monkeypatch, capsys, change, message):
    monkeypatch.chdir(bad_files)
    assert run(small_run | change, output_dir=tmp_path) == 2
    error = capsys.readouterr().err.rpartition("snugbert pretrain: error: ")[2]  # behind the progress bar
    assert len(error.splitlines()) == 1
    assert message in error
    assert not list(tmp_path.iterdir())


def test_unknown_commands_name_the_known_ones(capsys):
    assert snugbert_command(["pretend"]) == 2
    assert "the commands are vocabulary, pretrain, glue" in capsys.readouterr().err
    assert issubclass(InputError, ValueError)

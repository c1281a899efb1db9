"""The model cards of pushed models, for every way to push. Uploads are intercepted just before the network."""

import html
import json
import os
import random
import re
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from finetuning_examples import write_card
from huggingface_hub import HfApi, ModelCard, constants, repocard
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from markdown_it import MarkdownIt
from parity import CONFIG, HEADS

import snugbert
from snugbert.card_snugbert import OWN_CARD, TASKS, TEMPLATE, TRAINERS_CARD
from snugbert.data.sources import DataSource
from snugbert.reports.cards import Head, show_use
from snugbert.reports.pretrained_card import write_pretraining_card
from snugbert.reports.results import write_results
from snugbert_cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

SECRET = "hf_secret_token_of_the_owner"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(CONFIG["vocab_size"] - 5))]
TRAINED = {
    "name": "tagger",
    "task": "SST-2",
    "pipeline_tag": "text-classification",
    "base_model": "google-bert/bert-base-uncased",
    "labels": ["bad", "good"],
    "data": {
        name: [DataSource("GLUE SST-2", split, number, "nyu-mll/glue", "sst2")._asdict()]
        for name, split, number in (("train", "train", 67349), ("eval", "validation", 872))
    },
    "settings": {"learning_rate": 3e-5},
    "perfect_score": 1,
    "metrics": {"eval": {"accuracy": 0.93}},
    "baselines": {},
}


@pytest.fixture(scope="module")
def tokenizer():
    return snugbert.SnugBertTokenizer({piece: index for index, piece in enumerate(PIECES)})


@pytest.fixture
def hub(monkeypatch):
    """A fake Hub: repositories that pushes write to, and whose cards can be read."""
    monkeypatch.setenv("HF_TOKEN", "")  # commands set it; restored after the test
    repositories: dict[str, dict[str, bytes]] = {}

    def create_commit(self, repo_id, operations, **_):
        files = {operation.path_in_repo: Path(operation.path_or_fileobj).read_bytes() for operation in operations}
        repositories.setdefault(repo_id, {}).update(files)

    def upload_folder(self, repo_id, folder_path, ignore_patterns=(), commit_message="", **_):
        files = {str(file.relative_to(folder_path)): file for file in Path(folder_path).rglob("*") if file.is_file()}
        uploaded = filter_repo_objects(files, ignore_patterns=ignore_patterns)
        repositories[f"{repo_id}: {commit_message}"] = {name: files[name].read_bytes() for name in uploaded}
        done: Future = Future()
        done.set_result(None)
        return done

    def download(repo_id, filename, **_):
        if filename not in repositories.get(repo_id, {}):
            raise EntryNotFoundError(filename)
        file = Path(constants.HF_HUB_CACHE) / f"{repo_id.replace('/', '-')}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(repositories[repo_id][filename])
        return file

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: SimpleNamespace(repo_id=repo_id))
    monkeypatch.setattr(HfApi, "whoami", lambda self, *_, **__: {"name": "me"})
    monkeypatch.setattr(HfApi, "create_commit", create_commit)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(repocard, "hf_hub_download", download)
    return repositories


def card_of(files: dict[str, bytes]) -> ModelCard:
    return ModelCard(files["README.md"].decode("utf-8"))


def new_model(head: str, **fields):
    torch.manual_seed(0)
    config = {name: value for name, value in CONFIG.items() if name != "num_labels"}
    return getattr(snugbert, f"SnugBert{head}")(snugbert.SnugBertConfig(**config | fields))


def test_the_card_of_a_model_with_relative_positions(hub):
    new_model("ForMaskedLM", position_embedding_type="relative", position_buckets=8).push_to_hub("me/model")
    assert "In each direction, distances beyond 40 tokens have the same effect." in card_of(hub["me/model"]).text


@pytest.mark.parametrize("head", [*HEADS, "ForReplacedTokenDetection", "regression"])
def test_the_card_of_a_pushed_model(head, hub, tokenizer, tmp_path):
    labels = {"num_labels": 1} if head == "regression" else {"num_labels": 2}
    if head == "ForTokenClassification":
        labels = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}}
    model = new_model("ForSequenceClassification" if head == "regression" else head, **labels)
    model.add_model_tags(["mine"])
    model.push_to_hub("me/model", tags=["yours"])
    card = card_of(hub["me/model"])
    task = TASKS["ForSequenceClassification" if head == "regression" else head]
    assert card.data.pipeline_tag == task and card.data.library_name == "transformers"
    assert card.data.tags == ["snugbert", "bert", "mine", "yours"]
    assert card.data.base_model is None and card.data.eval_results is None
    assert OWN_CARD in card.text and TEMPLATE not in card.text and card.text.count("# me/model\n") == 1
    assert f"{model.num_parameters():,} parameters" in card.text and "were not recorded" in card.text
    assert ("3 labels: `O`, `B-PER`, `I-PER`" in card.text) == (head == "ForTokenClassification")
    assert "The maximum input length is 40 tokens." in card.text.partition("## Limitations")[2]
    assert "card_snugbert.py" in hub["me/model"]  # so that pushing it again writes a card, too

    for name, content in hub["me/model"].items():
        (tmp_path / name).write_bytes(content)
    model.config.name_or_path = str(tmp_path)
    model.push_to_hub("me/copy")
    assert card_of(hub["me/copy"]).text == card.text.replace("me/model", "me/copy")

    # Its code runs on the pushed files, with and without the package.
    tokenizer.save_pretrained(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    assert ['"me/model", trust_remote_code=True' in snippet for snippet in snippets] == [True, False]
    assert ["import snugbert" in snippet for snippet in snippets] == [False, True]
    for snippet in snippets:
        exec(snippet.replace("me/model", str(tmp_path)), names := {})
        assert type(names["model"]) is type(model) and names["tokenizer"].vocab_size == len(PIECES)


@pytest.mark.parametrize("head", TASKS)
def test_example_texts_are_english_or_dots(head, tokenizer, tmp_path, capsys):
    """English if no language is given, or English is among the languages. Code with dots runs, too."""
    new_model(head).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    codes = (None, [], "en_US", ["de", "en-GB"], "yo")
    english, *others, yoruba = (show_use(str(tmp_path), Head(head), code) for code in codes)
    assert "..." not in english and others == [english] * 3
    code = yoruba.rpartition("```python\n")[2].removesuffix("```")
    exec(code, {})
    assert code.count("# Replace the dots with") == 1 and capsys.readouterr().out
    assert not re.search('"[A-Z][^"]* ', code)


@pytest.mark.parametrize("is_regression", [True, False])
@pytest.mark.parametrize("text_pairs", [True, False])
def test_the_example_has_as_many_texts_as_in_training(text_pairs, is_regression, tokenizer, tmp_path, capsys):
    number = 1 if is_regression else 2
    new_model("ForSequenceClassification", num_labels=number).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    section = show_use(str(tmp_path), Head("ForSequenceClassification", is_regression, text_pairs))
    for code in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(code, {})
        assert capsys.readouterr().out.count("'score'") == number
        assert (code.count('"A text."'), code.count("text_pair")) == (not text_pairs, text_pairs)


@pytest.fixture
def trained(tmp_path, tokenizer):
    """The folder of a fine-tuned model with its card."""
    folder = tmp_path / "secret" / "tagger"
    new_model("ForSequenceClassification", id2label={0: "bad", 1: "good"}).save_pretrained(folder)
    (folder / "learning_curve.png").write_bytes(b"a plot")
    write_card(folder, **TRAINED)
    card: Any = ModelCard.load(folder / "README.md")
    card.data.language = "en"  # a user may edit the card
    card.save(folder / "README.md")
    return folder


def test_a_card_with_metrics_is_pushed_with_its_weights(hub, trained, tmp_path):
    before = ModelCard.load(trained / "README.md")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(trained)
    model.push_to_hub("me/sst2", tags=["mine"])
    card = card_of(hub["me/sst2"])
    assert card.data.eval_results == before.data.eval_results and card.data.eval_results[0].metric_value == 0.93
    assert card.data.model_name == "me/sst2" and card.data.tags == ["snugbert", "bert", "mine"]
    without_plot = before.text.replace("![Loss and score over the steps of training](learning_curve.png)\n\n", "")
    assert card.text == without_plot.replace("# tagger", "# me/sst2").replace('"tagger"', '"me/sst2"')
    assert "learning_curve.png" not in hub["me/sst2"]

    # After further training, the metrics are no longer valid.
    with torch.no_grad():
        model.classifier.bias[0] += 1e-6
    hub.clear()
    model.save_pretrained(tmp_path / "other", push_to_hub=True, repo_id="me/sst2")
    card = card_of(hub["me/sst2"])
    assert card.data.eval_results is None and "0.93" not in card.text and "learning_curve" not in card.text
    assert "Training started from the weights of tagger. The training data and the scores were not" in card.text
    assert card.data.base_model == "google-bert/bert-base-uncased" and card.data.language == "en"
    assert "2 labels: `bad`, `good`" in card.text and "secret" not in card.content


HOSTILE = [
    "![x](https://evil.example/x.png)",
    "` ![x](https://evil.example/x.png) `",
    "``",
    "a\n\n# Heading\n\n![x](https://evil.example/x.png)",
    "a\r\rb | c | <img src=x> <!-- -->",
    "[x](https://evil.example) **b** __b__ ~~s~~ &lt; $x$ a_b_c",
    "\\`![x](y.png)`\\",
]


def rendered(text: str) -> tuple[list[str], str]:
    """Returns the HTML tags and the text of Markdown without code blocks, from an independent renderer."""
    text = re.sub(r"```python\n.*?\n```\n", "", text, flags=re.DOTALL)
    page = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    tags = re.findall(r"<(\w+)", page)
    return tags, " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


@pytest.mark.parametrize("hostile", HOSTILE)
def test_labels_and_names_are_escaped(hostile, hub, tmp_path):
    def harmless(text: str, expected: int) -> bool:
        tags, words = rendered(text)
        return (
            {"img", "a", "strong", "s"}.isdisjoint(tags) and tags.count("h1") == 1 and words.count(plain) == expected
        )

    plain = " ".join(hostile.split())
    model = new_model("ForSequenceClassification", id2label={0: hostile, 1: "good"})
    model.config.name_or_path = "a folder/" + hostile.replace("/", ":")  # a card contains only the last part
    model.push_to_hub("me/model")
    assert harmless(card_of(hub["me/model"]).text, expected=1 if "/" in hostile else 2)

    data = {name: [DataSource(hostile, name, 1)._asdict()] for name in ("train", "eval")}
    words = {"name": hostile, "data": data, "labels": [hostile], "settings": {"text": hostile}}
    results = {"metrics": {"eval": {"accuracy": 0.5}}, "baselines": {"eval": {"answer": hostile, "accuracy": 0.5}}}
    write_card(tmp_path, **TRAINED | words | results)
    # In the title, four times as the data, as a label, as a setting and as the baseline.
    assert harmless(ModelCard.load(tmp_path / "README.md").text, expected=8)
    results = {"task": hostile, "data": data, "metrics": {}, "baselines": {}, "perfect_score": 1}
    write_results(tmp_path, results)
    assert harmless((tmp_path / "results.md").read_text(encoding="utf-8"), expected=3)
    (tmp_path / "README.md").unlink()
    table = {"text": hostile}
    write_pretraining_card(tmp_path, name=hostile, language=None, data=table, settings=table, base_model=None)
    assert harmless(ModelCard.load(tmp_path / "README.md").text, expected=3)


@pytest.mark.parametrize(
    "text, stays",
    [
        ("# My words\n\nMy metrics.", True),
        (f"{TRAINERS_CARD} the Trainer had access to. -->\n\n# run\n\n- Accuracy: 0.93", True),
        (f"{OWN_CARD}\n\n# me/model\n\nOf another model.", False),
    ],
    ids=["user's", "Trainer's", "ours"],
)
def test_only_our_own_card_is_replaced(text, stays, hub):
    hub["me/model"] = {"README.md": f"---\nlicense: mit\ntags:\n- old\n---\n{text}\n".encode()}
    new_model("ForMaskedLM").push_to_hub("me/model", tags=["mine"])
    card = card_of(hub["me/model"])
    assert (text in card.text) == stays and ("## How to load it" in card.text) != stays
    assert [tag for tag in card.data.tags if tag not in ("snugbert", "bert")] == ["old", "mine"]


def test_the_card_names_the_base_model(hub):
    """A BERT checkpoint in the cache, as after a download. Its card has a license and a language."""
    torch.manual_seed(0)
    snapshot = Path(constants.HF_HUB_CACHE) / "models--org--base" / "snapshots" / ("0" * 40)
    transformers.BertForMaskedLM(transformers.BertConfig(**CONFIG)).save_pretrained(snapshot)
    (snapshot / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: de\n---\nWords on the base.\n")
    (snapshot.parents[1] / "refs").mkdir(exist_ok=True)
    (snapshot.parents[1] / "refs" / "main").write_text(snapshot.name)
    model = snugbert.SnugBertForMaskedLM.from_pretrained("org/base")
    for repository, changed in (("me/copy", False), ("me/model", True), ("org/base", True)):
        if changed:
            with torch.no_grad():
                model.bert.embeddings.LayerNorm.bias += 1
        model.push_to_hub(repository)
        card = card_of(hub[repository])
        assert card.data.base_model == (None if repository == "org/base" else "org/base")
        assert (card.data.license, card.data.language) == ("apache-2.0", "de") and "Words on" not in card.text
        assert ("The weights are an unchanged copy of org/base." in card.text) != changed
        assert ("Training started from the weights of org/base." in card.text) == changed


# --- commands ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts(tmp_path_factory, tokenizer):
    """A tokenizer, documents and labeled texts with words of its vocabulary."""
    folder = tmp_path_factory.mktemp("texts")
    tokenizer.save_pretrained(folder)
    choose = random.Random(0)
    sentences = [" ".join(choose.choices(PIECES[5:], k=6)) + " ." for _ in range(240)]
    documents = ["\n".join(sentences[start : start + 4]) for start in range(0, 240, 4)]
    (folder / "books.txt").write_text("\n\n".join(documents))
    rows = [f"{sentence},{'good' if index % 3 else 'bad'}" for index, sentence in enumerate(sentences[:32])]
    (folder / "reviews.csv").write_text("\n".join(["sentence,label", *rows]))
    return folder


def pushes(hub, command: str, folder: Path, texts: Path, **arguments) -> dict[str, dict[str, bytes]]:
    arguments = {
        "tokenizer_name": texts,
        "config_name": "tiny",
        "per_device_train_batch_size": 16,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
        "logging_steps": 1,
        "max_steps": 4,
        "use_cpu": True,
        "disable_tqdm": True,
        "push_to_hub": True,
        "hub_model_id": "me/model",
        "hub_strategy": "checkpoint",
        "hub_always_push": True,
        "hub_token": SECRET,
        "token": SECRET,
        "output_dir": folder,
    } | arguments
    assert main([command, *(str(text) for name, value in arguments.items() for text in (f"--{name}", value))]) == 0
    assert os.environ["HF_TOKEN"] == SECRET
    steps = ["Training in progress, step 2", "Training in progress, step 4"]
    checkpoints = [f"me/model: {step}, checkpoint" for step in steps]
    assert set(hub) == {*(f"me/model: {step}" for step in (*steps, "End of training")), *checkpoints}
    written = [(str(file), file.read_bytes()) for file in folder.rglob("*") if file.is_file()]
    uploaded = [item for files in hub.values() for item in files.items()]
    for name, content in written + uploaded:
        assert SECRET.encode() not in content and "training_args" not in name
    for name, content in uploaded:
        assert str(folder).encode() not in content and str(texts).encode() not in content, name
    assert all({"optimizer.pt", "model.safetensors"} <= hub.pop(name).keys() for name in checkpoints)
    return dict(zip((2, 4, "end"), hub.values(), strict=True))


def check_parts(card: ModelCard, step, auto_class: str) -> None:
    assert card.text.count("# me/model\n") == 1 and TRAINERS_CARD not in card.text
    for part in ("## How to load it", "## Results", "## Limitations", "## Versions"):
        assert card.text.count(part) == 1, (step, part)
    assert card.text.count(f'{auto_class}.from_pretrained("me/model", trust_remote_code=True)') == 1
    assert card.text.count(f'{auto_class}.from_pretrained("me/model")') == 1
    assert ("2 of 4" in card.text) == (step == 2)
    assert card.data.model_name == "me/model" and card.data.library_name == "transformers"


def test_every_push_of_a_pretraining_run_has_card_and_code(hub, texts, tmp_path):
    run = {"train_file": texts / "books.txt", "validation_file": texts / "books.txt", "lines_are_sentences": True}
    log = tmp_path / "metrics.jsonl"
    for step, files in pushes(hub, "pretrain", tmp_path, texts, max_seq_length=32, **run).items():
        assert {"config.json", "model.safetensors", "modeling_snugbert.py", "tokenizer.json"} <= files.keys()
        card = card_of(files)
        check_parts(card, step, "AutoModelForPreTraining")
        assert "books.txt: 60 documents" in card.text and "from random weights" in card.text
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        last = 4 if step == "end" else step
        metrics = next(line for line in lines if "eval_mlm_loss" in line and line["step"] == last)
        results = {(result.task_type, result.metric_type): result for result in card.data.eval_results}
        assert {kind: result.metric_value for kind, result in results.items()} == {
            ("fill-mask", "accuracy"): pytest.approx(metrics["eval_mlm_accuracy"], rel=1e-5),
            ("fill-mask", "loss"): pytest.approx(metrics["eval_mlm_loss"], rel=1e-5),
            ("text-classification", "accuracy"): pytest.approx(metrics["eval_nsp_accuracy"], rel=1e-5),
        }
        assert results["fill-mask", "loss"].dataset_type == "books-txt"


def test_every_push_of_an_electra_has_its_generator(hub, texts, tmp_path):
    run = {"train_file": texts / "books.txt", "lines_are_sentences": True, "eval_strategy": "no"}
    for step, files in pushes(hub, "pretrain", tmp_path, texts, objective="electra", max_seq_length=32, **run).items():
        assert {"generator/config.json", "generator/modeling_snugbert.py", "generator/tokenizer.json"} <= files.keys()
        checkpoint = tmp_path / f"checkpoint-{4 if step == 'end' else step}"
        for name in ("model.safetensors", "generator/model.safetensors"):
            assert files[name] == (checkpoint / name).read_bytes()


def test_every_push_of_a_fine_tuning_run_has_card_and_code(hub, texts, tmp_path):
    run = {"train_file": texts / "reviews.csv", "validation_file": texts / "reviews.csv"}
    run |= {"load_best_model_at_end": True}  # its path must not be published
    for step, files in pushes(hub, "glue", tmp_path, texts, **run).items():
        assert {"config.json", "model.safetensors", "modeling_snugbert.py", "tokenizer.json"} <= files.keys()
        card = card_of(files)
        check_parts(card, step, "AutoModelForSequenceClassification")
        assert "with SnugBERT, starting from random weights." in card.text and "`bad`, `good`" in card.text
        (result,) = [result for result in card.data.eval_results if result.metric_type == "accuracy"]
        history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
        last = [line["eval_accuracy"] for line in history if "eval_accuracy" in line and line["step"] == step]
        last = last or [json.loads((tmp_path / "results.json").read_text())["metrics"]["eval"]["accuracy"]]
        assert result.metric_value == last[0] and result.dataset_split == "validation"
        assert "fine-tuned on reviews.csv (32 examples)" in card.text and result.dataset_args == {"num_examples": 32}


def test_the_stock_trainer_writes_its_own_card(hub, tokenizer, tmp_path):
    args = transformers.TrainingArguments(
        str(tmp_path), push_to_hub=True, hub_model_id="me/model", use_cpu=True, max_steps=1, disable_tqdm=True
    )
    examples = [{**tokenizer("w1 w2 w3"), "labels": 0}, {**tokenizer("w4 w5"), "labels": 1}]
    model = new_model("ForSequenceClassification")
    collator = transformers.DataCollatorWithPadding(tokenizer)
    trainer = transformers.Trainer(model, args, collator, examples, processing_class=tokenizer)
    trainer.train()
    trainer.push_to_hub()
    assert TRAINERS_CARD in card_of(hub["me/model: End of training"]).text

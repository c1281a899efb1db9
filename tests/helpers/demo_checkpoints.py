"""Trains tiny checkpoints of every head on a few texts, for the tests of the demo page."""

from itertools import permutations
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import BertConfig

import snugbert

MOST_STEPS = 400
SIZE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 72,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}
STORIES = [("the cat drinks milk.", "then she sleeps."), ("the dog eats meat.", "then he barks.")]
REVIEWS = {"a good film": (1, 0), "a bad film": (0, 0), "a good play": (1, 1), "a bad play": (0, 1)}  # good? a play?
TAGGED = [
    ("Ada Byron met Bob in London.", "B-PER I-PER O B-PER O B-LOC O"),
    ("In Paris Bob met Ada Byron.", "O B-LOC B-PER O B-PER I-PER O"),
    ("London met Paris.", "B-LOC O B-LOC O"),
]
TAGS = ["O", "B-LOC", "B-PER", "I-PER"]
FACTS = ["Ada Byron wrote it.", "Bob met the dog in Paris.", "The cat drinks milk."]
QUESTIONS = {"Who wrote it?": "Ada Byron", "Where is Bob?": "Paris", "What drinks the cat?": "milk", "Who sleeps?": ""}
ENDINGS = {"the cat": "drinks milk", "the dog": "eats meat"}
TEXTS = [*sum(STORIES, ()), *REVIEWS, *(text for text, _ in TAGGED), *FACTS, *QUESTIONS, *ENDINGS.values()]
WORDS = sorted({word for text in TEXTS for word in text.lower().replace(".", " .").replace("?", " ?").split()})
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def train_checkpoints(root: Path, tokenizer: snugbert.SnugBertTokenizer) -> dict[str, Path]:
    """Trains models until they fit the texts above, and saves them in `root`. Some are stock BERT models."""

    def learn(name: str, model_class: type, batch: dict[str, Any], **config: Any) -> None:
        torch.manual_seed(0)
        stock = model_class.__module__.startswith("transformers")
        config_class = BertConfig if stock else snugbert.SnugBertConfig
        model = model_class(config_class(vocab_size=len(VOCABULARY), **SIZE | config)).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(MOST_STEPS):
            loss = model(**batch).loss
            if loss < 0.02:
                break
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert loss < 0.02, name
        save(model, name)

    def save(model: transformers.PreTrainedModel, name: str) -> None:
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)

    def encoded(*texts: list[str]) -> dict[str, torch.Tensor]:
        return dict(tokenizer(*texts, padding=True, return_tensors="pt"))

    learn("pretrained", snugbert.SnugBertForPreTraining, masked_pairs(tokenizer))
    for name, head in (
        ("mask", snugbert.SnugBertForMaskedLM),
        ("next", snugbert.SnugBertForNextSentencePrediction),
    ):
        save(head.from_pretrained(root / "pretrained"), name)

    torch.manual_seed(1)
    save(
        transformers.BertModel(BertConfig(vocab_size=len(VOCABULARY), **(SIZE | {"initializer_range": 0.3}))),
        "encoder",
    )

    reviews, pairs = list(REVIEWS), list(permutations(REVIEWS, 2))
    learn(
        "labels",
        snugbert.SnugBertForSequenceClassification,
        encoded(reviews + [one for one, _ in pairs], [""] * len(reviews) + [other for _, other in pairs])
        | {
            "labels": torch.tensor(
                [REVIEWS[text][0] for text in reviews] + [2 + REVIEWS[other][1] for _, other in pairs]
            )
        },
        id2label=dict(enumerate(["negative", "positive", "then a film", "then a play"])),
    )
    judged = torch.tensor(list(REVIEWS.values()), dtype=torch.float)
    learn(
        "several",
        transformers.BertForSequenceClassification,
        encoded(reviews) | {"labels": judged},
        id2label={0: "good", 1: "play"},
        problem_type="multi_label_classification",
    )
    learn(
        "number",
        snugbert.SnugBertForSequenceClassification,
        encoded(reviews) | {"labels": judged @ torch.tensor([5.0, -1.0])},
        num_labels=1,
    )

    encoding = tokenizer([text for text, _ in TAGGED], padding=True, return_tensors="pt")
    tags = torch.full_like(encoding["input_ids"], -100)
    for row, (_, text_tags) in enumerate(TAGGED):
        tags[row, 1 : 1 + len(text_tags.split())] = torch.tensor([TAGS.index(tag) for tag in text_tags.split()])
    learn(
        "tags",
        transformers.BertForTokenClassification,
        dict(encoding) | {"labels": tags},
        id2label=dict(enumerate(TAGS)),
    )
    learn("answers", transformers.BertForQuestionAnswering, questions_on_facts(tokenizer))
    choices = encoded([text for text in ENDINGS for _ in ENDINGS], [*ENDINGS.values()] * len(ENDINGS))
    learn(
        "choices",
        snugbert.SnugBertForMultipleChoice,
        {name: ids.view(len(ENDINGS), len(ENDINGS), -1) for name, ids in choices.items()}
        | {"labels": torch.arange(len(ENDINGS))},
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    return {folder.name: folder for folder in root.iterdir()}


def masked_pairs(tokenizer: snugbert.SnugBertTokenizer) -> dict[str, torch.Tensor]:
    """Each story with its own ending, with the other ending and without one, with each word masked in turn."""
    firsts, seconds = zip(*STORIES, strict=True)
    rows = [(*story, 0) for story in STORIES] + [(firsts[0], seconds[1], 1), (firsts[1], seconds[0], 1)]
    rows += [(first, "", 0) for first in firsts]
    batch: dict[str, list] = {"input_ids": [], "token_type_ids": [], "labels": [], "next_sentence_label": []}
    for first, second, is_random in rows:
        encoding = tokenizer(first, second)
        for position, token in enumerate(encoding["input_ids"]):
            if token in tokenizer.all_special_ids:
                continue
            ids, labels = encoding["input_ids"].copy(), [-100] * len(encoding["input_ids"])
            ids[position], labels[position] = tokenizer.mask_token_id, token
            for name, values in (
                ("input_ids", ids),
                ("token_type_ids", encoding["token_type_ids"]),
                ("labels", labels),
            ):
                batch[name].append(torch.tensor(values))
            batch["next_sentence_label"].append(torch.tensor(is_random))
    pad = torch.nn.utils.rnn.pad_sequence
    inputs = {
        "input_ids": pad(batch["input_ids"], batch_first=True),
        "token_type_ids": pad(batch["token_type_ids"], batch_first=True),
        "labels": pad(batch["labels"], batch_first=True, padding_value=-100),
        "next_sentence_label": torch.stack(batch["next_sentence_label"]),
    }
    return inputs | {"attention_mask": (inputs["input_ids"] != tokenizer.pad_token_id).long()}


def questions_on_facts(tokenizer: snugbert.SnugBertTokenizer) -> dict[str, torch.Tensor]:
    """Asks all questions about every permutation of one to three facts. The answer is [CLS] if there is none."""
    contexts = [" ".join(facts) for number in (1, 2, 3) for facts in permutations(FACTS, number)]
    rows = [(question, context, found) for context in contexts for question, found in QUESTIONS.items()]
    batch = tokenizer([row[0] for row in rows], [row[1] for row in rows], padding=True, return_tensors="pt")
    spans = []
    for row, (_, context, found) in enumerate(rows):
        start = context.find(found) if found else -1
        end = start + len(found) - 1
        spans.append([0, 0] if start < 0 else [batch.char_to_token(row, char, 1) for char in (start, end)])
    starts, ends = torch.tensor(spans).T
    return dict(batch) | {"start_positions": starts, "end_positions": ends}

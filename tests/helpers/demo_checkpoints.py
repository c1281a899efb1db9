"""Tiny checkpoints of every head, for the tests of the demo page. Some are trained on a few texts."""

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
REVIEWS = ["a good film", "a bad film", "a good play", "a bad play"]
TAGGED = [
    ("Ada Byron met Bob in London.", "B-PER I-PER O B-PER O B-LOC O"),
    ("In Paris Bob met Ada Byron.", "O B-LOC B-PER O B-PER I-PER O"),
    ("London met Paris.", "B-LOC O B-LOC O"),
]
TAGS = ["O", "B-LOC", "B-PER", "I-PER"]
FACTS = ["Ada Byron wrote it.", "Bob met the dog in Paris.", "The cat drinks milk."]
QUESTIONS = {"Who wrote it?": "Ada Byron", "Where is Bob?": "Paris", "What drinks the cat?": "milk", "Who sleeps?": ""}
TEXTS = [*sum(STORIES, ()), *REVIEWS, *(text for text, _ in TAGGED), *FACTS, *QUESTIONS]
WORDS = sorted({word for text in TEXTS for word in text.lower().replace(".", " .").replace("?", " ?").split()})
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def train_checkpoints(root: Path, tokenizer: snugbert.SnugBertTokenizer) -> dict[str, Path]:
    """Saves a model of every head in `root`, some of them stock BERT.

    Models for masks, next sentences, tags and answers are trained until they fit the texts above.
    """

    def new(model_class: type, **config: Any) -> Any:
        torch.manual_seed(0)
        stock = model_class.__module__.startswith("transformers")
        config_class = BertConfig if stock else snugbert.SnugBertConfig
        return model_class(config_class(vocab_size=len(VOCABULARY), **SIZE | config))

    def save(name: str, model: transformers.PreTrainedModel) -> None:
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)

    def learn(name: str, model: Any, batch: dict[str, Any]) -> None:
        optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3)
        for _ in range(MOST_STEPS):
            loss = model(**batch).loss
            if loss < 0.02:
                break
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert loss < 0.02, name
        save(name, model)

    learn("pretrained", new(snugbert.SnugBertForPreTraining), masked_pairs(tokenizer))
    save("mask", snugbert.SnugBertForMaskedLM.from_pretrained(root / "pretrained"))
    save("next", snugbert.SnugBertForNextSentencePrediction.from_pretrained(root / "pretrained"))
    tags = dict(enumerate(TAGS))
    learn("tags", new(transformers.BertForTokenClassification, id2label=tags), tagged_texts(tokenizer))
    learn("answers", new(transformers.BertForQuestionAnswering), questions_on_facts(tokenizer))

    random: dict[str, Any] = {"initializer_range": 0.3}
    save("encoder", new(transformers.BertModel, **random))
    save("labels", new(snugbert.SnugBertForSequenceClassification, id2label=dict(enumerate("abcd")), **random))
    several = {"id2label": {0: "good", 1: "play"}, "problem_type": "multi_label_classification"}
    save("several", new(transformers.BertForSequenceClassification, **several, **random))
    save("number", new(snugbert.SnugBertForSequenceClassification, num_labels=1, **random))
    save("choices", new(snugbert.SnugBertForMultipleChoice, **random))
    return {folder.name: folder for folder in root.iterdir()}


def tagged_texts(tokenizer: snugbert.SnugBertTokenizer) -> dict[str, torch.Tensor]:
    """The texts of `TAGGED` with a label for each word."""
    encoding = tokenizer([text for text, _ in TAGGED], padding=True, return_tensors="pt")
    labels = torch.full_like(encoding["input_ids"], -100)
    for row, (_, tags) in enumerate(TAGGED):
        labels[row, 1 : 1 + len(tags.split())] = torch.tensor([TAGS.index(tag) for tag in tags.split()])
    return {**encoding, "labels": labels}


def masked_pairs(tokenizer: snugbert.SnugBertTokenizer) -> dict[str, torch.Tensor]:
    """Each story with its own ending, with the other ending and without one, with each word masked in turn."""
    firsts, seconds = zip(*STORIES, strict=True)
    rows = [(*story, 0) for story in STORIES] + [(firsts[0], seconds[1], 1), (firsts[1], seconds[0], 1)]
    rows += [(first, "", 0) for first in firsts]
    batch: dict[str, list] = {"input_ids": [], "token_type_ids": [], "labels": []}
    judgements = []
    for first, second, is_random in rows:
        encoding = tokenizer(first, second)
        for position, token in enumerate(encoding["input_ids"]):
            if token in tokenizer.all_special_ids:
                continue
            ids, labels = encoding["input_ids"].copy(), [-100] * len(encoding["input_ids"])
            ids[position], labels[position] = tokenizer.mask_token_id, token
            for name, values in zip(batch, (ids, encoding["token_type_ids"], labels), strict=True):
                batch[name].append(torch.tensor(values))
            judgements.append(is_random)
    padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": 0, "labels": -100}
    inputs = {
        name: torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding[name])
        for name, rows in batch.items()
    }
    inputs["next_sentence_label"] = torch.tensor(judgements)
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

"""Padded and packed inputs: accepted forms, and error messages for bad inputs."""

import pytest
import torch
import transformers
from parity import ours_and_stock, ragged_batch

ROWS = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
PACKED = {"input_ids": torch.ones(1, 6, dtype=torch.long), "cu_seq_lens_q": torch.tensor([0, 2, 6])}
LABELS = torch.tensor([[-100, 3, -100, -100, 4, -100]])


def boundaries(*starts):
    return {"cu_seq_lens_q": torch.tensor(starts)}


# Padded inputs and packed inputs, in place of `ROWS` or `PACKED` -> words of the message.
BAD_ROWS = [
    ({"input_ids": torch.tensor([[3, 211]])}, "`input_ids` contains 211. The allowed range is 0 to 210"),
    ({"input_ids": torch.tensor([[3, -1]])}, "`input_ids` contains -1"),
    ({"input_ids": torch.ones(1, 41, dtype=torch.long)}, "A sequence has 41 tokens. The model's limit is 40"),
    ({"input_ids": torch.ones(2, 3, 4, dtype=torch.long)}, r"not \[2, 3, 4\]"),
    ({"input_ids": torch.ones(2, 0, dtype=torch.long)}, r"shape \[2, 0\] has no tokens"),
    ({"input_ids": None}, "exactly one of"),
    ({"attention_mask": torch.ones(2, 4)}, r"`attention_mask` has shape \[2, 4\]\. Expected \[2, 3\]"),
    ({"attention_mask": torch.zeros(2, 3)}, r"`attention_mask` of shape \[2, 3\] masks every token"),
    ({"attention_mask": torch.tensor([[1, 1, 2], [1, 2, 2]])}, r"`attention_mask` contains 2\. It must be 1"),
    ({"attention_mask": torch.ones(2, 1, 3, 4)}, r"`attention_mask` has shape \[2, 1, 3, 4\]"),
    ({"token_type_ids": torch.full((2, 3), 2)}, "`token_type_ids` contains 2. The allowed range is 0 to 1"),
    ({"position_ids": torch.full((1, 3), 40)}, "`position_ids` contains 40. The allowed range is 0 to 39"),
    ({"position_ids": torch.tensor([[0, 1, 2], [5, 0, 1]])}, "`position_ids` restart in row 1 at token 1"),
    ({"labels": torch.full((2, 3), 211)}, "`labels` contains 211. The allowed range is 0 to 210"),
    ({"labels": torch.full((2, 2), 1)}, r"`labels` has shape \[2, 2\]"),
    ({"next_sentence_label": torch.tensor([0, 2])}, "`next_sentence_label` contains 2. The allowed range is 0 to 1"),
    ({"next_sentence_label": torch.tensor([0])}, r"`next_sentence_label` has shape \[1\]"),
    ({"max_length_q": 3}, "`cu_seq_lens_q` is missing"),
]
BAD_PACKED = [
    (boundaries(1, 3, 6), "must start at 0 and end at 6, .* It starts at 1 and ends at 6"),
    (boundaries(0, 3, 5), "must start at 0 and end at 6, .* It starts at 0 and ends at 5"),
    (boundaries(0, 4, 3, 6), "decreases at index 2, from 4 to 3"),
    ({"max_length_q": 3}, "`max_length_q` is 3, but `cu_seq_lens_q` has a sequence of 4 tokens"),
    (boundaries([0, 6]), r"shape \[sequences \+ 1\]. It is torch.int64 of shape \[1, 2\]"),
    (boundaries(0.0, 6.0), "must hold integers"),
    (boundaries(0, 45) | {"input_ids": torch.ones(1, 45, dtype=torch.long)}, "A sequence has 45 tokens"),
    ({"input_ids": torch.ones(2, 3, dtype=torch.long)}, r"of shape \[1, tokens\], not \[2, 3\]"),
    (boundaries(0, 0) | {"input_ids": torch.ones(1, 0, dtype=torch.long)}, "no tokens"),
    ({"attention_mask": torch.ones(1, 6)}, "no `attention_mask`"),
    ({"labels": torch.zeros(1, 5, dtype=torch.long)}, r"`labels` has shape \[1, 5\]. Expected \[1, 6\]"),
    ({"labels": LABELS, "label_indices": torch.tensor([1, 3])}, "`label_indices` does not match the 2 labels"),
    # More than the labels: a token twice.
    ({"labels": LABELS, "label_indices": torch.tensor([1, 4, 0, 0])}, "`label_indices` does not match"),
    ({"next_sentence_label": torch.tensor([0, 1, 0])}, r"has shape \[3\]\. Expected \[2\]"),
]
CHOICES, CLASSES = "ForMultipleChoice", "ForSequenceClassification"


@pytest.mark.parametrize(
    ("head", "inputs", "message"),
    [
        *(("ForPreTraining", ROWS | inputs, message) for inputs, message in BAD_ROWS),
        *(("ForPreTraining", PACKED | inputs, message) for inputs, message in BAD_PACKED),
        (CHOICES, PACKED | boundaries(0, 2, 4, 6), r"3 sequences, not a multiple of `num_choices` \(None\)"),
        (CHOICES, PACKED | boundaries(0, 2, 4, 6) | {"num_choices": 2}, r"`num_choices` \(2\)"),
        (CHOICES, PACKED | {"labels": torch.zeros(4).long(), "num_choices": 2}, r"has shape \[4\]. Expected \[1\]"),
        (CLASSES, ROWS | {"labels": torch.zeros(3, 2)}, r"has shape \[3, 2\]. Expected \[2, 3\] for"),
        (
            CLASSES,
            ROWS | {"labels": torch.tensor([0, 3])},
            r"contains 3. The allowed range is 0 to 2 \(num_labels 3\)",
        ),
        ("Model", {"inputs_embeds": torch.ones(6, 17, 47)}, r"of shape \(batch, tokens, 48\), not \[6, 17, 47\]"),
        ("Model", ROWS | {"past_key_values": transformers.DynamicCache()}, "so it cannot use prefix tuning"),
    ],
)
def test_bad_inputs_are_named(head, inputs, message):
    ours, _ = ours_and_stock(head)
    with pytest.raises(ValueError, match=message):
        ours(**inputs)


def test_positions_and_longest_length_of_packed_inputs_are_optional():
    ours, _ = ours_and_stock("Model")
    inputs = {"input_ids": torch.arange(3, 9)[None], "cu_seq_lens_q": torch.tensor([0, 2, 2, 6])}
    full = inputs | {"position_ids": torch.tensor([[0, 1, 0, 1, 2, 3]]), "max_length_q": 4}
    assert torch.equal(ours(**inputs).last_hidden_state, ours(**full).last_hidden_state)


def test_batches_of_transformers_collator_are_packed():
    ours, _ = ours_and_stock("ForMaskedLM")
    inputs = ragged_batch("ForMaskedLM")
    real = inputs["attention_mask"].bool()
    # The collator drops the first label of each sequence, as for a causal model.
    inputs["labels"][:, 0] = -100
    examples = [
        {name: inputs[name][row, real[row]].tolist() for name in ("input_ids", "labels")} for row in range(len(real))
    ]
    batch = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)(examples)
    inputs.pop("token_type_ids")  # the collator has no segments
    torch.testing.assert_close(ours(**batch).loss, ours(**inputs).loss, atol=2e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="For several sequences in a row, pass `cu_seq_lens_q`"):
        ours(**transformers.DataCollatorWithFlattening()(examples))


RESTARTS = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]])
MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
ONE_MEANING = {
    "constant positions": {"position_ids": torch.zeros(2, 5, dtype=torch.long)},
    "equal neighbors": {"position_ids": torch.tensor([[0, 1, 1, 2, 3]])},
    "two first positions": {"position_ids": torch.tensor([[0, 0, 1, 2, 3]])},
    "zeros at padding": {"position_ids": torch.tensor([[0, 1, 2, 0, 0]])},
    "positions of left padding": {"position_ids": torch.tensor([[1, 1, 0, 1, 2]])},
    "descending positions": {"position_ids": torch.arange(5).flip(0)[None]},
    "positions without a dimension of rows": {"position_ids": torch.arange(5).flip(0)},
    "restarts with a mask of rows": {"position_ids": RESTARTS, "attention_mask": MASK},
    "one row of segments": {"token_type_ids": torch.tensor([[0, 0, 1, 1, 1]])},
    "segments without a dimension of rows": {"token_type_ids": torch.tensor([0, 0, 1, 1, 1])},
    "one mask for two rows": {"attention_mask": MASK[:1]},
}


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice"])
@pytest.mark.parametrize("form", ONE_MEANING)
def test_inputs_with_one_meaning_equal_stock_bert(form, head):
    ours, stock = ours_and_stock(head)
    inputs = {"input_ids": torch.arange(3, 13).view(2, 5), "token_type_ids": torch.zeros(2, 5, dtype=torch.long)}
    inputs |= ONE_MEANING[form]
    if head == "ForMultipleChoice":  # an example with two choices
        inputs = {name: value[None] if value.dim() == 2 else value for name, value in inputs.items()}
    logits = ours(**inputs).logits
    if form == "one mask for two rows":  # stock BERT fails
        inputs["attention_mask"] = MASK[[0, 0]].view(inputs["input_ids"].shape)
    torch.testing.assert_close(logits, stock(**inputs).logits, atol=2e-6, rtol=1e-5)

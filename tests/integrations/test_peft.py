"""PEFT: every head equals stock BERT, also with packed batches. test_examples.py trains an adapter."""

import pytest
import torch
import transformers
from family_checkpoints import write_checkpoint
from parity import HEADS, assert_same_gradients, ours_and_stock, packed, ragged_batch, scalar
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch.testing import assert_close

import snugbert

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # PEFT reads an attribute that transformers 5.23 renamed.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
HEADS_OF_MODELS = ["classifier", "qa_outputs", "cls"]


@pytest.mark.parametrize("head", HEADS)
def test_every_head_equals_stock_bert(head):
    """With adapters on all linear layers and a trained copy of the head, before and after merging."""
    config = LoraConfig(target_modules="all-linear", exclude_modules=r"(cls|classifier|qa_outputs)\b.*", r=4)
    config.init_lora_weights = False  # not zero, as after training
    config.modules_to_save = [name for name in HEADS_OF_MODELS if hasattr(ours_and_stock(head)[0], name)] or None
    models = []
    for model in ours_and_stock(head):
        torch.manual_seed(1)
        models.append(get_peft_model(model, config).train())
    ours, stock = models
    # Stock BERT's question answering and ours differ on padding.
    inputs = ragged_batch(head, ragged=head != "ForQuestionAnswering")
    scalar(ours(**inputs)).backward(), scalar(stock(**inputs)).backward()
    for name, parameter in ours.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == ("lora" in name or "to_save" in name), name
    assert_same_gradients(ours, stock)

    trained = {name: parameter for name, parameter in ours.named_parameters() if parameter.requires_grad}
    gradients = {name: parameter.grad.clone() for name, parameter in trained.items()}
    bert = ours.base_model.model
    (getattr(bert, "activation_checkpointing_enable", None) or bert.gradient_checkpointing_enable)()
    ours.enable_input_require_grads()
    for batch in [inputs] if head == "Model" else [inputs, packed(inputs)]:
        ours.zero_grad()
        scalar(ours(**batch)).backward()
        for name, parameter in trained.items():
            assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4)

    expected = ours.eval()(**inputs)
    assert_close(dict(ours.merge_and_unload()(**inputs)), dict(expected), atol=1e-5, rtol=1e-5)


def test_adapters_and_new_tokens_on_narrow_embeddings_equal_electra(tmp_path):
    write_checkpoint(tmp_path, "electra", "ForMaskedLM")
    models = []
    for model_class in (snugbert.SnugBertForMaskedLM, transformers.ElectraForMaskedLM):
        model = model_class.from_pretrained(tmp_path)
        torch.manual_seed(0)
        model.resize_token_embeddings(model.config.vocab_size + 8, mean_resizing=False)
        assert model.get_input_embeddings().weight.shape == (model.config.vocab_size, 16)
        config = LoraConfig(target_modules=["embeddings_project", "query", "value"], r=4, init_lora_weights=False)
        torch.manual_seed(1)
        models.append(get_peft_model(model, config).eval())
    ours, stock = models
    input_ids = torch.randint(ours.config.vocab_size, (3, 9), generator=torch.Generator().manual_seed(0))
    input_ids[:, 1] = ours.config.vocab_size - 1  # a new token
    labels = torch.where(input_ids % 2 == 0, input_ids, -100)
    expected, outputs = (model(input_ids=input_ids, labels=labels) for model in (stock, ours))
    assert_close(outputs.logits, ours(input_ids=input_ids).logits)
    assert_close(outputs.logits, expected.logits, atol=1e-5, rtol=0)
    expected.loss.backward(), outputs.loss.backward()
    gradients = [[p.grad for p in model.parameters() if p.requires_grad] for model in (ours, stock)]
    assert len(gradients[0]) == 2 * (1 + 2 * 2)
    assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_prompt_tuning_equals_stock_bert():
    models = []
    for model in ours_and_stock("ForTokenClassification"):
        torch.manual_seed(1)
        models.append(get_peft_model(model, PromptTuningConfig(task_type="TOKEN_CLS", num_virtual_tokens=3)).eval())
    inputs = ragged_batch("ForTokenClassification")
    ours, stock = (model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]) for model in models)
    real = torch.nn.functional.pad(inputs["attention_mask"], (3, 0), value=1).bool()
    assert_close(ours.logits[real], stock.logits[real], atol=2e-6, rtol=1e-5)

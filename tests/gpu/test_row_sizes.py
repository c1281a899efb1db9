"""Which sizes the trainers choose, and which of them fill their rows."""

import numpy as np
from synthetic import make_teacher, make_trainer
from torch.utils.data import Subset

from snugbert.gpu.row_sizes import choose_fine_tuning_multiple, choose_pretraining_multiple
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments

ON_CUDA = {"bf16": False, "tf32": False, "dataloader_num_workers": 0}


def test_multiples():
    class Examples(list):
        max_seq_length = 32

    examples = Examples([{"input_ids": range(length)} for length in (12, 32)] * 600)  # a standard deviation of 10
    assert choose_pretraining_multiple(16, examples) == 64  # 1.45 x 40 = 58, and 8 x 64 = 16 x 32
    assert choose_pretraining_multiple(1, Examples(examples[:1])) == 4
    lengths = np.tile([10, 30], 50)  # a standard deviation of 10
    assert choose_fine_tuning_multiple(16, lengths) == 40  # 0.95 x 40 = 38
    assert choose_fine_tuning_multiple(16, lengths * 0 + 7) == 4


def test_pretraining_fills_rows_on_cuda_or_on_request(tmp_path, monkeypatch, caplog):
    assert make_trainer(tmp_path).pad_to_multiple_of == 0
    for options in ({"electra": True}, {"teacher": make_teacher()}):
        caplog.clear()
        assert make_trainer(tmp_path, pad_to_multiple_of=64, **options).pad_to_multiple_of == 0
        assert "--pad_to_multiple_of has no effect: rows of this run cannot be filled." in caplog.text
    monkeypatch.setattr(PretrainingArguments, "uses_cuda", True)
    monkeypatch.setattr("snugbert.trainers.trainer.apply_tf32", lambda args: None)
    options = {"per_device_train_batch_size": 50, "gradient_accumulation_steps": 2, **ON_CUDA}
    assert make_trainer(tmp_path, **options).pad_to_multiple_of == 40  # 25 x 40 = 50 x 20
    assert make_trainer(tmp_path, pad_to_multiple_of=0, **options).pad_to_multiple_of == 0
    trainer = make_trainer(tmp_path, **options)
    (batch,) = trainer.get_eval_dataloader(Subset(trainer.phases[0].dataset, range(8)))  # as with --max_eval_samples
    assert batch["num_sequences"] == 8 and batch["input_ids"].shape[1] % 4 == 0

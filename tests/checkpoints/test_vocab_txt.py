"""`vocab.txt` holds the tokens in the order of their ids."""

from transformers import BertTokenizer

from snugbert import SnugBertTokenizer
from snugbert.checkpoints.vocab_txt import write_vocab_txt

SPECIAL = {"[PAD]": 3, "[UNK]": 1, "[CLS]": 2, "[SEP]": 0, "[MASK]": 4}


def test_a_token_is_on_the_line_of_its_id(tmp_path):
    tokenizer = SnugBertTokenizer({"café": 5, **SPECIAL})
    tokenizer.add_tokens(["added"])
    write_vocab_txt(tokenizer, tmp_path)
    assert (tmp_path / "vocab.txt").read_bytes() == "[SEP]\n[UNK]\n[CLS]\n[PAD]\n[MASK]\ncafé\n".encode()
    assert BertTokenizer(vocab=str(tmp_path / "vocab.txt")).convert_tokens_to_ids("café") == 5


def test_no_file_is_written_if_ids_have_gaps(tmp_path):
    write_vocab_txt(SnugBertTokenizer({"far": 9, **SPECIAL}), tmp_path)
    assert not (tmp_path / "vocab.txt").exists()

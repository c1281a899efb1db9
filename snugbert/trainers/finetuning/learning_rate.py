"""The default learning rate: the BERT paper's for base and large, a higher one for narrower encoders."""

import logging

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.trainers.finetuning.arguments import FineTuningArguments

logger = logging.getLogger(__name__)

# Hidden sizes of BERT-base, and of the narrowest encoder that `benchmarks/learning_rates.py` measured.
WIDEST, NARROWEST = 768, 128


def choose_learning_rate(config: SnugBertConfig, args: FineTuningArguments) -> None:
    """Sets `args.learning_rate` for the encoder, unless the user chose one, and logs the reason.

    It is the paper's rate times (768 / hidden size) squared, for hidden sizes from 128 to 768. The rule is our own.
    `benchmarks/learning_rates.py` compares it with the paper's rate.

    Args:
        config: the configuration of the encoder.
        args: `learning_rate` is None unless the user chose one. With `sweep` "paper", the grid sets the rates.
    """
    if args.learning_rate is not None or args.sweep == "paper":
        return
    paper, hidden_size = args.paper_learning_rate, config.hidden_size
    factor = (WIDEST / min(max(hidden_size, NARROWEST), WIDEST)) ** 2
    args.learning_rate = float(f"{paper * factor:.1e}")
    reason = f"the BERT paper's {paper:g}"
    if factor > 1:
        reason += f", times {factor:.3g} because the encoder is narrow (hidden size {hidden_size})"
    logger.info("learning rate: %g (%s). --learning_rate sets another.", args.learning_rate, reason)

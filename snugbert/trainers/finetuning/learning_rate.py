"""The default learning rate: the BERT paper's for base and large, a higher rate for narrower encoders."""

import logging

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments

logger = logging.getLogger(__name__)

# Hidden sizes of BERT-base, and of the narrowest encoder that `benchmarks/learning_rates.py` measured.
WIDEST, NARROWEST = 768, 128


def choose_learning_rate(config: SnugBertConfig, args: FineTuningArguments, paper: float = 3e-5) -> None:
    """Sets `args.learning_rate` for the encoder, unless the user chose one, and logs the reason.

    It is the paper's rate times (768 / hidden size) squared, for hidden sizes from 128 to 768. The rule is our own.
    `benchmarks/learning_rates.py` compares it with the paper's rate.

    Args:
        config: the configuration of the encoder.
        args: `learning_rate` is None unless the user chose one. A sweep may set the rates.
        paper: the paper's rate for BERT-base, see [`Task`].
    """
    hidden_size = config.hidden_size
    factor = (WIDEST / min(max(hidden_size, NARROWEST), WIDEST)) ** 2
    rate = float(f"{paper * factor:.1e}")
    reason = "from the BERT paper"
    if factor > 1:
        reason = f"{factor:.3g} times the BERT paper's {paper:g}, because the hidden size is {hidden_size}"
    if args.varies("learning_rate"):
        if args.sweep == "paper" and factor > 1:
            logger.warning("--sweep paper: the learning rates may be too low. The default is %g (%s).", rate, reason)
    elif args.learning_rate is None:
        args.learning_rate = rate
        logger.info("learning rate: %g (%s). Set --learning_rate to change it.", rate, reason)

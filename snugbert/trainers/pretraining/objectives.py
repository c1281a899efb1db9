"""The pretraining objectives, and their names in output."""

from typing import Literal

# What the examples of a dataset are for: masked tokens and next sentences, masked tokens and sentence order, or masked
# tokens alone.
Objective = Literal["nsp", "sop", "mlm"]

# The values of `--objective`, and the examples that they need.
OBJECTIVES: dict[str, Objective] = {"mlm+nsp": "nsp", "mlm": "mlm", "mlm+order": "sop", "electra": "mlm"}

# Weight of ELECTRA's discriminator loss next to the generator's loss (Clark et al., 2020, appendix A).
DISCRIMINATOR_WEIGHT = 50.0

# Weights of the losses of distillation, and the temperature of the soft targets. Sanh et al. (2019) give no values.
# These are from their code, in the README and the defaults of `train.py` (examples/research_projects/distillation in
# transformers 4).
SOFT_WEIGHT, LABEL_WEIGHT, COSINE_WEIGHT = 5.0, 2.0, 1.0
TEMPERATURE = 2.0

# The second task, in addition to masked tokens.
PAIR_TASKS: dict[Objective, str] = {"nsp": "next sentence", "sop": "sentence order"}

# The meaning of `next_sentence_label` 0 and 1.
PAIR_LABELS: dict[Objective, tuple[str, str]] = {
    "nsp": ("B is the next sentence", "B is random"),
    "sop": ("A and B are in order", "A and B are swapped"),
}

#!/bin/bash
# Prepares a corpus with 50 jobs, of which 8 run at a time:
#
#   sbatch examples/prepare_slurm.sh
#
# A job that is started again continues. Slurm starts jobs of lost machines again. This starts shards 7 and 9 again:
#
#   sbatch --array=7,9 examples/prepare_slurm.sh
#
#SBATCH --job-name=prepare
#SBATCH --array=1-50%8
#SBATCH --cpus-per-task=16
#SBATCH --mem=16G
#SBATCH --requeue

# Not SLURM_ARRAY_TASK_COUNT, which is 2 if two shards are started again. All jobs need the same number.
SHARDS=50

exec snugbert prepare --tokenizer_name tokenizer --train_file 's3://bucket/text/*.txt.gz' \
  --output_dir s3://bucket/prepared --shard "$SLURM_ARRAY_TASK_ID/$SHARDS" \
  --preprocessing_num_workers "$SLURM_CPUS_PER_TASK"

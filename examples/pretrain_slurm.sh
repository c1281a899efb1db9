#!/bin/bash
# Pretrains BERT base on 2 machines with 8 GPUs each, or on 1 if 2 are not free. Start it in a folder that all machines
# share:
#
#   sbatch examples/pretrain_slurm.sh
#
# If a process fails, all processes start again from the newest checkpoint, on the same machines. If a machine is lost,
# or shortly before --time ends, the job returns to the queue. It may continue on another number of machines, with the
# same examples in every step. A new job that fails three times within ten minutes ends: an argument is probably wrong.
# `scancel JOB` stops the run. The step and the checkpoint then have 30 seconds, or Slurm's KillWait.
#
#SBATCH --job-name=pretrain
#SBATCH --nodes=1-2
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append

GLOBAL_BATCH=1024 PER_GPU=64 GPUS=8
in_parallel=$((PER_GPU * GPUS * SLURM_JOB_NUM_NODES))
if ((GLOBAL_BATCH % in_parallel)); then
  echo "The global batch of $GLOBAL_BATCH is not a multiple of $in_parallel. Use another number of machines." >&2
  exit 2
fi
first_machine=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Slurm lists the machines, so the rendezvous is static. torchrun's --max-restarts does not survive a lost machine, so
# the loop restarts after all faults. After one machine has ended, the others have 120 seconds (--wait), because one of
# them may still upload a checkpoint. A machine waits 300 seconds for the others to start. After SIGTERM, processes have
# 60 seconds for the step and the checkpoint. A large model on a slow disk needs more. torch 2.11 always gives 30.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=60
for _ in 1 2 3; do
  srun --nodes "$SLURM_JOB_NUM_NODES" --ntasks "$SLURM_JOB_NUM_NODES" --cpus-per-task "$SLURM_CPUS_PER_TASK" \
    --kill-on-bad-exit=0 --wait=120 bash -c 'exec torchrun --node-rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$GPUS" --master-addr "$first_machine" --master-port 29500 \
    --rdzv-conf timeout=300 \
    -m snugbert pretrain --config examples/pretrain_base_8_gpus.yaml --resume_from_checkpoint true \
    --per_device_train_batch_size "$PER_GPU" --gradient_accumulation_steps $((GLOBAL_BATCH / in_parallel)) "$@" && exit
  time_left=$(squeue --noheader --job "$SLURM_JOB_ID" --format %L)
  [[ $time_left == [0-9]:[0-9][0-9] ]] && exec scontrol requeue "$SLURM_JOB_ID" # Slurm sent SIGTERM
done

restarts=${SLURM_RESTART_COUNT:-0}
if ((restarts == 0 && SECONDS < 600 || restarts >= 100)); then
  exit 1
fi
scontrol requeue "$SLURM_JOB_ID"

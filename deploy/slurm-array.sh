#!/usr/bin/env bash
# One array task a shard, one GPU a task; each task has a results folder of its own, and they merge by copying.
#
#   sbatch --array=1-4 deploy/slurm-array.sh [campaign run options ...]      in the checkout, with .venv and .venv-vllm there
#   sbatch --array=1-4 deploy/slurm-array.sh ...                             again, to go on after a time limit
#
#SBATCH --job-name=eager-cost
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=128G
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --output=out/slurm-%A_%a.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
shard=${SLURM_ARRAY_TASK_ID:?start it with sbatch --array=1-N}/${SLURM_ARRAY_TASK_COUNT:?}
# a shard's blocks stay on one machine type; the compile cache is the node's, since a cold start is measured on each
.venv/bin/campaign run --shard "$shard" --results "results/shard-${shard%/*}" --engine-python "${ENGINE_PYTHON:-.venv-vllm/bin/python}" \
  --models "${MODELS:-models}" --cache "${CACHE:-${SLURM_TMPDIR:-/tmp}/eager-cost-cache}" "$@" &
pid=$!
# the batch shell alone gets Slurm's warning: hand it on, so that the run in progress ends in order
trap 'kill -TERM "$pid"' TERM
status=0
wait "$pid" || status=$?
if kill -0 "$pid" 2> /dev/null; then status=0; wait "$pid" || status=$?; fi
exit "$status"

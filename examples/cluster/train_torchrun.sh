#!/bin/bash
# Trains on the GPUs of one computer with torchrun, and continues a run that was stopped:
#
#     PROCESSES=4 examples/cluster/train_torchrun.sh config.yaml RUN_DIRECTORY [--section.key value ...]
#
# `torchmdx train config.yaml --devices 4` does the same without torchrun.
set -eu

config=${1:?the configuration, a YAML file}
directory=${2:?the directory of the run}
shift 2
resume=()
if [ -f "$directory/state.safetensors" ]; then
    resume=(--resume)
fi

exec torchrun --standalone --nproc-per-node "${PROCESSES:-1}" \
    -m torchmdx.commands.cli train "${resume[@]}" "$config" --output.directory "$directory" "$@"

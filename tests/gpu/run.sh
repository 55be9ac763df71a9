#!/usr/bin/env bash
# What only a machine with GPUs can show (docs/testing.md, "On real GPUs"). Table last; ends at the first error.
#
#   tests/gpu/run.sh [--fake] [--out DIR] STAGE…     STAGE: smoke, probe, measure, settings, slowdown, endure, rl
#
# Needs what tests/gpu/pack put into .gpu/ and a Python with numpy (PYTHON), on real GPUs with torch; the stage
# rl also transformers, safetensors and msgpack.
# --fake: on the fake driver of build/debug, as a rehearsal; needs no GPU and no torch. There rl uses the CPU.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

# NVLink multicast can put the GPUs of a host out of service, so no child may use it.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export WEIGHTCAST_BIND=127.0.0.1 WEIGHTCAST_LOG_LEVEL=warning PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" "$root/tests/gpu/cases/run.py" "$@"

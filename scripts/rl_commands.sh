# The command lines of a reinforcement-learning run on several nodes: the only place that has them.
# Sourced by scripts/launch_all_nodes.sh and examples/slurm/rl.sbatch. What may be set before:
#   RANKS_PER_NODE    trainers on each trainer node (1): on its CPU cores, or with --device cuda a GPU each
#   ENGINES_PER_NODE  engines on each inference node (RANKS_PER_NODE), likewise
#   CONTROLLER_PORT   29750; QUEUE_PORT 29751; MASTER_PORT 29501
#   TRAINER_NODES, CONTROLLER_NODE, INFERENCE_NODES   who does what; without: see assign_roles
#   RL_MODULE         weightcast.rl
# shellcheck shell=bash

RANKS_PER_NODE=${RANKS_PER_NODE:-1}
ENGINES_PER_NODE=${ENGINES_PER_NODE:-$RANKS_PER_NODE}
CONTROLLER_PORT=${CONTROLLER_PORT:-29750}
QUEUE_PORT=${QUEUE_PORT:-29751}
MASTER_PORT=${MASTER_PORT:-29501}
RL_MODULE=${RL_MODULE:-weightcast.rl}

# assign_roles NODE...: of two nodes the first trains and has the controller, and the second generates; of
# more, the last generates, the one before it has the controller, and all others train.
assign_roles() {
  local nodes=("$@") count=$#
  if ((count < 2)); then
    echo "a run on several nodes needs at least two" >&2
    return 1
  fi
  if ((count == 2)); then
    TRAINER_NODES=${TRAINER_NODES:-${nodes[0]}}
    CONTROLLER_NODE=${CONTROLLER_NODE:-${nodes[0]}}
  else
    TRAINER_NODES=${TRAINER_NODES:-${nodes[*]:0:count-2}}
    CONTROLLER_NODE=${CONTROLLER_NODE:-${nodes[count - 2]}}
  fi
  INFERENCE_NODES=${INFERENCE_NODES:-${nodes[count - 1]}}
}

# What every command of weightcast.rl is told, after assign_roles. The rest are the user's options.
common_options() {
  local trainers inference
  read -ra trainers <<<"$TRAINER_NODES"
  read -ra inference <<<"$INFERENCE_NODES"
  echo "--controller $CONTROLLER_NODE:$CONTROLLER_PORT --rollout_queue ${trainers[0]}:$QUEUE_PORT" \
    "--num_training $((${#trainers[@]} * RANKS_PER_NODE))" \
    "--num_inference $((${#inference[@]} * ENGINES_PER_NODE))"
}

# quoted WORD...: as a shell reads them again.
quoted() {
  (($# == 0)) || printf ' %q' "$@"
}

controller_command() {
  local inference
  read -ra inference <<<"$INFERENCE_NODES"
  echo "weightcast controller --listen 0.0.0.0:$CONTROLLER_PORT" \
    "--min-engines $((${#inference[@]} * ENGINES_PER_NODE)) --policy each"
}

# trainer_command NODE_RANK OPTION... Without `--`, torchrun takes our --log for an abbreviation of its own.
trainer_command() {
  local trainers rank=$1
  shift
  read -ra trainers <<<"$TRAINER_NODES"
  echo "torchrun --nnodes ${#trainers[@]} --nproc_per_node $RANKS_PER_NODE --node_rank $rank" \
    "--master_addr ${trainers[0]} --master_port $MASTER_PORT" \
    "-m -- $RL_MODULE --role trainer $(common_options)$(quoted "$@")"
}

# inference_command ENGINE OPTION...
inference_command() {
  local engine=$1
  shift
  echo "python -m $RL_MODULE --role inference --engine $engine" \
    "$(common_options)$(quoted "$@")"
}

#!/usr/bin/env bash
# Starts a reinforcement-learning run on several nodes, and ends it everywhere when the trainers have ended.
#
#   NODES="n0 n1 n2 n3" scripts/launch_all_nodes.sh [--print] [--logs DIR] [OPTION OF weightcast.rl]...
#   scripts/launch_all_nodes.sh --test-mode [--nodes 2|4] [--print] [--logs DIR] [OPTION OF weightcast.rl]...
#
# NODES: by ssh, without a password, with this folder at the same place on each. --print: only the commands.
# --test-mode: the nodes are network namespaces of this machine, each with a wire to one bridge; needs root.
# Who does what, and RANKS_PER_NODE and the like: scripts/rl_commands.sh.
# Exit status: 0 if all trainers and engines ended well; the logs are DIR/<node>-<what>.log.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/rl_commands.sh
. "$root/scripts/rl_commands.sh"
export PATH="$root/.venv/bin:$root/build:$PATH"

# How long engines may take to end after the trainers, and everything after SIGTERM. Seconds.
engines_grace=${ENGINES_GRACE:-30}
stop_grace=10

test_mode='' print_only='' logs='' count=4 options=()
while (($# > 0)); do
  case $1 in
    --test-mode) test_mode=1 ;;
    --print) print_only=1 ;;
    --nodes) count=${2:?--nodes needs a number} && shift ;;
    --logs) logs=${2:?--logs needs a folder} && shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" && exit ;;
    --) shift && options+=("$@") && break ;;
    *) options+=("$1") ;;
  esac
  shift
done

fail() {
  echo "launch_all_nodes.sh: $*" >&2
  exit 2
}

# ---- Nodes: hosts by ssh, or namespaces ----

prefix=wcl$$
hub=$prefix-hub
made=()

make_namespace() {
  ip netns add "$1"
  made+=("$1")
}

# make_node NUMBER: the address 10.97.0.(NUMBER + 1), on a wire to the bridge.
make_node() {
  local node=$prefix-node$1
  make_namespace "$node"
  ip link add "p$1" netns "$hub" type veth peer name eth0 netns "$node"
  ip -n "$hub" link set "p$1" master br0 up
  ip -n "$node" addr add "10.97.0.$(($1 + 1))/24" dev eth0
  ip -n "$node" link set eth0 up
  ip -n "$node" link set lo up
}

make_network() {
  ((EUID == 0)) || fail "--test-mode makes network namespaces, which needs root"
  command -v ip >/dev/null || fail "--test-mode needs ip (iproute2)"
  make_namespace "$hub"
  ip -n "$hub" link add br0 type bridge
  ip -n "$hub" link set br0 up
  local number
  for ((number = 0; number < count; number++)); do make_node "$number"; done
}

# What the remote shells get of this one's settings. Not the token itself: others could read it there.
forwarded() {
  local name
  for name in $(compgen -e); do
    case $name in
      WEIGHTCAST_TOKEN) ;;
      WEIGHTCAST_* | NCCL_* | GLOO_* | TORCH_* | WANDB_MODE | WANDB_PROJECT | OMP_NUM_THREADS | LOCAL_RANK | \
        PYTHONPATH | PATH)
        printf '%s=%q ' "$name" "${!name}"
        ;;
    esac
  done
}

# run_on NODE COMMAND: in the foreground.
run_on() {
  if [[ -n $test_mode ]]; then
    exec ip netns exec "$prefix-node$((${1##*.} - 1))" bash -c "exec $2"
  else
    # A terminal, so that the command is hung up when ssh ends.
    # shellcheck disable=SC2086
    exec ${SSH:-ssh -tt -o BatchMode=yes} "$1" "cd $(printf %q "$root") && $(forwarded) exec $2" </dev/null
  fi
}

# ---- Processes ----

declare -A name_of=()
trainers=() engines=() controller='' status=0

# start NODE WHAT COMMAND: in the background; its number is in $!.
start() {
  echo "$1: $3"
  [[ -z $print_only ]] || return 0
  run_on "$1" "$3" >"$logs/$1-$2.log" 2>&1 &
  name_of[$!]=$1-$2
}

start_all() {
  local node rank=0 number
  start "$CONTROLLER_NODE" controller "$(controller_command)"
  controller=${print_only:-$!}
  for node in $TRAINER_NODES; do
    start "$node" trainer "$(trainer_command "$rank" "${options[@]}")"
    [[ -n $print_only ]] || trainers+=("$!")
    rank=$((rank + 1))
  done
  rank=0
  for node in $INFERENCE_NODES; do
    for ((number = 0; number < ENGINES_PER_NODE; number++)); do
      LOCAL_RANK=$number start "$node" "engine-$rank" "$(inference_command "engine-$rank" "${options[@]}")"
      [[ -n $print_only ]] || engines+=("$!")
      rank=$((rank + 1))
    done
  done
}

# report PID STATUS: says so where a process ended badly.
report() {
  (($2 == 0)) && return
  status=1
  echo "launch_all_nodes.sh: ${name_of[$1]} ended with status $2; the end of its log:" >&2
  tail -n 20 "$logs/${name_of[$1]}.log" >&2
}

wait_for_trainers() {
  local ended left=("${trainers[@]}" "$controller") one code
  while ((${#left[@]} > 1)); do
    code=0
    wait -n -p ended "${left[@]}" || code=$?
    # One trainer's failure is the end of all, and nothing works without a controller.
    if [[ $ended == "$controller" ]]; then code=$((code == 0 ? 1 : code)); fi
    report "$ended" "$code"
    ((code == 0)) || return 0
    for one in "${!left[@]}"; do [[ ${left[one]} != "$ended" ]] || unset "left[one]"; done
  done
}

wait_for_engines() {
  local deadline=$((SECONDS + engines_grace)) one code
  for one in "${engines[@]}"; do
    while kill -0 "$one" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.1; done
    if kill -0 "$one" 2>/dev/null; then
      echo "launch_all_nodes.sh: ${name_of[$one]} is still there $engines_grace s after the trainers" >&2
      status=1
      continue
    fi
    code=0
    wait "$one" || code=$?
    report "$one" "$code"
  done
}

# ---- The end: nothing that was started or made is left, however it comes ----

# signal_all NAME: to the processes of the namespaces, or to ssh, whose terminal hangs up the others.
signal_all() {
  local node
  # shellcheck disable=SC2046
  kill -s "$1" $(jobs -pr) 2>/dev/null || true
  for node in "${made[@]}"; do
    # shellcheck disable=SC2046
    kill -s "$1" $(ip netns pids "$node" 2>/dev/null) 2>/dev/null || true
  done
}

still_there() {
  local one
  [[ -z $(jobs -pr) ]] || return 0
  for one in "${made[@]}"; do
    [[ -z $(ip netns pids "$one" 2>/dev/null) ]] || return 0
  done
  return 1
}

clean_up() {
  trap '' INT TERM HUP
  local deadline=$((SECONDS + stop_grace)) node
  signal_all TERM
  while still_there && ((SECONDS < deadline)); do sleep 0.1; done
  signal_all KILL
  for node in "${made[@]}"; do ip netns del "$node" || true; done
  [[ -z ${scratch:-} ]] || rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- The run ----

if [[ -n $test_mode ]]; then
  ((count >= 2)) || fail "--nodes $count: at least 2"
  NODES=$(for ((i = 1; i <= count; i++)); do echo "10.97.0.$i"; done)
  export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  scratch=$(mktemp -d)
  if [[ -z ${WEIGHTCAST_TOKEN:-}${WEIGHTCAST_TOKEN_FILE:-} ]]; then
    export WEIGHTCAST_TOKEN_FILE=$scratch/token
    (umask 077 && head -c 32 /dev/urandom | base64 >"$WEIGHTCAST_TOKEN_FILE")
  fi
  [[ -n $print_only ]] || make_network
elif [[ -z ${NODES:-} ]]; then
  fail 'say NODES="host host ...", or --test-mode'
fi
# shellcheck disable=SC2086
assign_roles $NODES || exit 2
if [[ -z ${WEIGHTCAST_TOKEN_FILE:-}$test_mode$print_only ]]; then
  fail "set WEIGHTCAST_TOKEN_FILE to a file with the job's token, the same on each node (openssl rand -base64 32)"
fi
logs=${logs:-${scratch:-$PWD/logs}}
mkdir -p "$logs"
start_all
[[ -z $print_only ]] || exit 0
wait_for_trainers
((status != 0)) || wait_for_engines
((status != 0)) || echo "launch_all_nodes.sh: done"
exit "$status"

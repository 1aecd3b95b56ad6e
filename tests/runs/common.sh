# Sourced by the run tests. Sets bin to the executables' folder ($1 of the script), enters a scratch folder that is removed at
# the end, and defines a tiny GPT that has everything a mesh could affect: dropout, tied embeddings, 5 layers, vocabulary 257.
set -euo pipefail
bin=$(cd "$1" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/anymesh-run.XXXXXX")
trap 'jobs -p | xargs -r kill 2>/dev/null || true; rm -rf "$scratch"' EXIT
cd "$scratch"
export OMP_NUM_THREADS=1  # as in mpirun.sh: threads may change the order of sums

fail() { echo "FAIL: $*" >&2; exit 1; }

model=(--num-layers 5 --hidden-size 24 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16
       --attention-dropout 0.1 --hidden-dropout 0.1 --make-vocab-size-divisible-by 8 --mock-data --vocab-size 257
       --micro-batch-size 1 --global-batch-size 12 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine
       --lr-warmup-iters 5 --clip-grad 1.0 --eval-iters 0 --log-interval 10)

# write_documents: makes text_text_document, of short documents whose ends are tokens.
write_documents() {
  local i
  for i in $(seq 1 200); do
    printf '{"text": "%s"}\n' "$(head -c $((i * 7 % 23 + 1)) <<<"document $i says $((i * i))")"
  done >text.jsonl
  "$bin/preprocess_data" --input text.jsonl --output-prefix text --tokenizer-type ByteLevelTokenizer \
      --append-eod --count-eod >preprocess.log || fail "$(cat preprocess.log)"
}

# launch RANKS FLAGS...: runs the trainer with its ranks as threads. Tests that need processes set mpi=yes, for processes of
# mpirun.
trainer=("$bin/pretrain_gpt")
launch() {
  if [[ ${mpi:-} ]]; then
    "$here/../../tools/mpirun.sh" "$1" "$bin/pretrain_gpt" "${@:2}"
  else
    "${trainer[@]}" --local-ranks "$@"
  fi
}
# Starts the trainer once for all runs on threads that follow (tests/support/warm_start.h).
warm_start() {
  "$bin/warm_trainer" "$scratch/warm" &
  trainer=("$bin/warm_run" "$scratch/warm")
}

# train MESH CSV FLAGS...: MESH is tp,pp,dp,zero. Later flags come last.
train() {
  local tp pp dp zero csv=$2
  IFS=, read -r tp pp dp zero <<<"$1"
  shift 2
  launch $((tp * pp * dp)) "${model[@]}" --tensor-model-parallel-size "$tp" \
      --pipeline-model-parallel-size "$pp" --zero-stage "$zero" --loss-csv "$csv" "$@"
}

# run MESH CSV FLAGS...: train(), which must succeed, with its output in log.
run() { train "$@" >log || fail "$*: $(tail -5 log)"; }

# losses CSV [FIRST]: iteration, samples, loss, rate and norm of each row from iteration FIRST on, as printed (%.9g).
losses() { awk -F, -v first="${2:-1}" 'NR > 1 && $1 >= first {print $1 "," $2 "," $3 "," $4 "," $5}' "$1"; }

# same A B WHAT [FIRST]: the rows are equal as text, and there is at least one.
same() {
  local a b
  a=$(losses "$1" "${4:-1}") b=$(losses "$2" "${4:-1}")
  [[ -n $a ]] || fail "$3: no rows"
  [[ $a == "$b" ]] || fail "$3: $(diff <(echo "$a") <(echo "$b") | head -4)"
  echo "ok: $3: bit-identical"
}

# close A B TOLERANCE FIRST WHAT: every loss from iteration FIRST on agrees within the relative TOLERANCE.
close() {
  paste -d, <(losses "$1" "$4") <(losses "$2" "$4") | awk -F, -v tol="$3" -v what="$5" '
    {d = ($3 - $8) / $3; d = d < 0 ? -d : d; if (d > max) max = d; if ($1 != $6) bad = 1; ++n}
    END {printf "%s: %s: max relative difference %.2e over %d iterations\n", (n && !bad && max <= tol) ? "ok" : "FAIL", what, max, n
         exit !(n && !bad && max <= tol)}' || fail "$5"
}

# refused WORDS COMMAND...: the command fails, and says the words. Tests of other refusals define their own.
refused() {
  local words=$1
  shift
  if "$@" >refused.log 2>&1; then fail "accepted: $*"; fi
  grep -q -e "$words" refused.log || fail "expected '$words': $(tail -3 refused.log)"
  echo "ok: refused: $words"
}

# mpirun_of JOB: the mpirun that a job in the background runs, which Open MPI 5 renames to prterun. A job on threads has none.
mpirun_of() { pgrep -P "$1" -x 'mpirun|prterun'; }
# process_of JOB: its mpirun, or the one process of its threads; the job itself before that starts.
process_of() { pgrep -P "$1" -x 'mpirun|prterun|pretrain_gpt' || echo "$1"; }
# ranks_of JOB: the processes of its ranks.
ranks_of() { pgrep -P "$(mpirun_of "$1" || echo "$1")" -x pretrain_gpt; }

# without_prterun FILE: removes the five lines that Open MPI 5's mpirun ends with after an error of the program (docs/mpi.md). All
# else that mpirun says stays.
without_prterun() {
  local line='-{74}' number='[0-9]+'
  local words="$line
prterun has exited due to process rank $number with PID $number on node [^ ]+ calling
\"abort\"\\. This may have caused other processes in the application to be
terminated by signals sent by prterun \\(as reported here\\)\\.
$line"
  if [[ $(tail -5 "$1") =~ ^$words$ ]]; then head -n -5 "$1" >"$1.program" && mv "$1.program" "$1"; fi
}

# convert FOLDER TAG
convert() { "$bin/ds_to_universal" --input_folder "$1/$2" --output_folder "$1/$2_universal" >convert.log 2>&1 || fail "$(cat convert.log)"; }

# back_to FOLDER TAG LATER...: as if the run had been stopped when it had saved TAG.
back_to() { (cd "$1" && rm -r "${@:3}" && echo -n "$2" >latest); }

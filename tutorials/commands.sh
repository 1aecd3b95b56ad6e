# Sourced by lesson.sh. Shows a lesson's commands as a reader can paste them into bash at the repository's root. The executables'
# folder is in PATH, runs/NN_name is $out, and the flags that all runs share are $model, $data and $recipe.

# say LINE...: prints lines for the README and keeps them for tests/tutorials.
say() { printf '%s\n' "$@" | tee -a "$out/output.txt"; }

# wrapped WORD...: prints "$ WORD ...", in lines of at most 110 characters. A flag stays with its value.
wrapped() {
  local word unit units=() line='$' flag='(^|")--[^ ]*$'
  for word; do
    if [[ $word != --* && ${unit:-} =~ $flag ]]; then units[-1]+=" $word"; else units+=("$word"); fi
    unit=${units[-1]}
  done
  for unit in "${units[@]}"; do
    ((${#line} + ${#unit} <= 107)) || { echo "$line \\"; line='   '; }
    line+=" $unit"
  done
  echo "$line"
}

# quoted COMMAND...: sets `words` to the command's words as bash reads them.
quoted() {
  local word
  words=()
  for word; do
    [[ $word =~ ^[A-Za-z0-9_./,:=+\$-]+$ ]] || word="\"$word\""
    words+=("$word")
  done
}

# show COMMAND...: shows a command that the lesson runs. The same one twice in a row is shown once.
show() {
  local words line
  quoted "${@//"$out"/'$out'}"
  line=$(wrapped "${words[@]#"$bin/"}")
  [[ $line == "${last_shown:-}" ]] || say "$line"
  last_shown=$line
}

# show_header: shows what the commands need: PATH and the folder of the results.
show_header() {
  local folder=$bin
  [[ $folder == /* ]] || folder='$PWD'/$folder
  say "\$ export PATH=$folder:\$PATH OMP_NUM_THREADS=$OMP_NUM_THREADS" "\$ out=$out; mkdir -p \$out"
}

# show_settings: shows those of the shared flags that are new.
declare -A settings=()
show_settings() {
  local name new old text
  for name in model data recipe; do
    local -n flags=$name
    new=${flags[*]} old=${settings[$name]:-}
    [[ $new != "$old" ]] || continue
    settings[$name]=$new
    text=${new//"$out"/'$out'}
    [[ -z $old || $new != "$old "* ]] || text="\$$name${new#"$old"}"
    # shellcheck disable=SC2086
    say "$(wrapped $name=\"${text}\")"
  done
}

# command_of MESH RUN FLAGS...: shows the run on MESH = tp,pp,dp,zero that writes $out/RUN.csv, and sets `command` to it.
command_of() {
  local tp pp dp zero more start own=()
  IFS=, read -r tp pp dp zero <<<"$1"
  read -ra more <<<"${FLAGS:-}"
  start_of $((tp * pp * dp)) "$program"
  ((tp == 1)) || own+=(--tensor-model-parallel-size "$tp")
  ((pp == 1)) || own+=(--pipeline-model-parallel-size "$pp")
  ((zero == 0)) || own+=(--zero-stage "$zero")
  own+=("${@:3}" --loss-csv "$out/$2.csv" "${more[@]}")
  command=("${start[@]}" "${model[@]}" "${data[@]}" "${recipe[@]}" "${own[@]}")
  show_settings
  show "${start[@]}" '$model' ${data:+'$data'} '$recipe' "${own[@]}"
}

# launch: replaces this process by `command`, whose full text begins its output.
launch() {
  local words
  quoted "OMP_NUM_THREADS=$OMP_NUM_THREADS" "${command[@]}"
  wrapped "${words[@]}"
  exec "${command[@]}" </dev/null
}

# working MESH: prints on a terminal that a run has begun. worked: that it has ended.
working() {
  local tp pp dp zero size mesh=
  IFS=, read -r tp pp dp zero <<<"$1"
  for size in tp pp dp; do ((${!size} == 1)) || mesh+="${mesh:+ x }$size ${!size}"; done
  began=$SECONDS
  [[ ! -t 2 ]] || printf 'running %s ... ' "${mesh:-one process}" >&2
}
worked() { [[ ! -t 2 ]] || printf '%d s\n' $((SECONDS - began)) >&2; }

# Sourced by lesson.sh. "Predict first": a lesson asks for numbers before its runs, and takes the right ones from their files.
#
#   ask 5% "How many bytes does a rank all-reduce in a step?" 'moved dp4 dp all_reduce'
#
# With --predict, the script reads the reader's numbers from standard input, and compares when it ends. Otherwise it asks nothing.
# The right numbers go to $out/predictions.txt, for the page (predictions.py).

# ask TOLERANCE QUESTION COMMAND: COMMAND prints a number, or a shape like 64 x 128, after the runs. TOLERANCE is 0, 0.05 or 5%.
asked=()
ask() {
  local question=$2 said=
  [[ $1 == 0 ]] || question+=" (to ${1/\%/ %})"
  if [[ -n $predicting ]]; then
    printf '%s\n> ' "$question"
    read -r said || true
    [[ -t 0 ]] || printf '%s\n' "$said"
  fi
  asked+=("$3" "$1" "$question" "${said//$'\t'/ }")
}

# answer: writes the answers, and shows them to a reader who was asked.
answer() {
  local i right
  for ((i = 0; i < ${#asked[@]}; i += 4)); do
    right=$(eval "${asked[i]}") && [[ -n $right ]] || fail "no answer to: ${asked[i + 2]}"
    printf '%s\t' "$right" "${asked[@]:i + 1:2}"
    printf '%s\n' "${asked[i + 3]}"
  done >"$out/predictions.txt"
  [[ -z $predicting ]] || tutorials/predictions.py --told "$tutorial"
}
trap 'status=$?; ((status)) || answer; write_report $status' EXIT

# SPDX-License-Identifier: Apache-2.0
# Names the cases with a step that trains and ends well: awk -f tests/cli/trains.awk tests/cli/*.case
# A step trains that calls sft, rl, reward or synth, or a demo, in earnest: not for help, a plan or a refusal.
function step_ends() {
    if (trains && !refused) found = 1
    trains = refused = 0
}
function case_ends() {
    step_ends()
    if (found) print file
    found = 0
}
FNR == 1 && NR > 1 { case_ends() }
{ file = FILENAME }
/^---/ { section = $2; if (section == "run") step_ends(); if (section == "exit" && $3 != 0) refused = 1; next }
section == "run" && (/\$TUNE (sft|rl|reward|data synth) / || /demo\.sh/) && !/--dry-run|--help| check / { trains = 1 }
END { case_ends() }

#!/usr/bin/env bash
# Tries an installed command in an empty folder: what is there, a sweep of two steps, its report.
#   tests/try_installation.sh COMMAND
set -euo pipefail
advsweep=$1
cd "$(mktemp -d)"
export ADVSWEEP_CACHE=$PWD/cache
"$advsweep" version
"$advsweep" --help > help.txt
"$advsweep" list estimators > estimators.txt
"$advsweep" doctor
"$advsweep" sweep +experiment=demo --dry-run > plan.txt
"$advsweep" sweep estimator=grpo,psr seed=0,1 steps=2 evaluation.n=2 'evaluation.k=[1]' \
  model.pretraining_steps=50 --name first
"$advsweep" report first
"$advsweep" report first --format html > report.html
grep -q "</html>" report.html
"$advsweep" schema report > schema.json
test -f "$("$advsweep" doctor --skill)"

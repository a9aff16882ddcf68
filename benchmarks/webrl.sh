#!/bin/sh
# The results in docs/webrl.md: three methods from the same SFT start, as many seeds as asked for.
#
#     benchmarks/webrl.sh [folder] [seeds]       default: runs/webrl "1 2 3"
#
# Runs one after the other; what is finished already is not run again. Prints the table, draws the plots.
set -eu
cd "$(dirname "$0")/.."
out=${1:-runs/webrl}
seeds=${2:-1 2 3}
python=.venv/bin/python

run() { # arm, seed, flags
    arm=$1 seed=$2
    shift 2
    if ls "$out"/*__"$arm"__"$seed"__*/plots/results.md >/dev/null 2>&1; then
        echo "$arm, seed $seed: there"
    else
        $python webrl.py --exp-name "$arm" --seed "$seed" --runs-dir "$out" "$@"
    fi
}

for seed in $seeds; do
    run webrl "$seed"
    run filtered-bc "$seed" --loss sft --no-curriculum
    run true-verdict "$seed" --judge env
done
# only whole runs: the last file a run writes is its table
$python tools/plot.py $(for file in "$out"/*/plots/results.md; do dirname "$(dirname "$file")"; done) --out "$out/plots"
cat "$out/plots/results.md"

#!/bin/sh
# All of WebRL's comparisons: the paper's Tables 1 to 3, Figures 3 to 7, 9, 10, 12 to 16, in our numbers.
#
#     benchmarks/webrl.sh --quick       a look at 12 arms, in some 15 minutes
#     benchmarks/webrl.sh [seeds]       all of it, 5 seeds by default: some 20 hours on two cores (docs/webrl.md)
#
# Every run is a line of benchmarks/results/webrl.jsonl; what is there is not run again: stop it and go on at any time.
# What needs a served model (Table 1's prompted rows, Table 7) is not run here:
#     python tools/eval.py --env-id webarena-lite --policy URL
#     python webrl.py --generator URL --generator-prompt 2
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x $python ] || { echo "error: no .venv here: make setup makes it" >&2; exit 2; }
[ "${1:-}" = --quick ] && exec $python benchmarks/webrl.py shop --quick
seeds=${1:-5}

$python benchmarks/webrl.py shop --seeds "$seeds" --arms all
$python benchmarks/webrl.py two-sites --seeds "$seeds" --arms main
$python benchmarks/webrl.py arena --seeds "$seeds" --arms filtered-bc no-curriculum webrl
$python benchmarks/webrl.py miniwob --seeds "$seeds" --arms filtered-bc no-curriculum webrl

# three sizes of base model, each pretrained alike
for size in "small 64 2 176" "middle 96 3 256" "large 128 4 344"; do
    set -- $size
    base=runs/bases/$1
    [ -e "$base/README.md" ] ||
        $python tools/pretrain_tiny.py --out "$base" --hidden-size "$2" --num-heads "$3" --ff-size "$4" --steps 6000
    $python benchmarks/webrl.py shop --seeds "$seeds" --arms webrl --flags="--model-id $base"
done
for setting in shop two-sites arena miniwob; do
    $python benchmarks/webrl.py $setting --report --write-docs
done

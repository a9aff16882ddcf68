#!/bin/sh
# What docs/gpu.md still lacks, on a GPU that is at hand for a quarter of an hour: at most eight minutes, the largest
# first. Prints a table; the parts' output is in OUT (runs/gpu). What is not there is left out, and said.
#
#     benchmarks/gpu.sh                  # everything, in this order
#     benchmarks/gpu.sh generate real    # some parts
#
# SECONDS_IN_ALL=480 is when it ends. PYTHON=.. another interpreter than .venv/bin/python. Without a GPU the shapes are small: it shows that the parts run.
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
out=${OUT:-runs/gpu}
mkdir -p "$out"
ends=$(($(date +%s) + ${SECONDS_IN_ALL:-480}))
parts=${*:-update-4k update-16k compiled-4k generate real grpo distrl 4bit fsdp}
model=models/smollm2-135m
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())') || exit 2
card=$("$python" -c 'import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")')
shape="--shape llama-8b --lora-rank 64 --repeats 2" long=16384 short=4096 share="0.3"
[ "$gpus" = 0 ] && shape="--shape small --lora-rank 8 --repeats 1" long=512 short=256 share=0
table="$out/table.md"
printf '%s, `benchmarks/gpu.sh`:\n\n| part | seconds | what it says |\n|---|---|---|\n' "$card" > "$table"

row() { printf '| %s | %s | %s |\n' "$1" "$2" "$3" | tee -a "$table"; }

has() { "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

# part NAME SECONDS WHAT COMMAND..: WHAT is a pattern of the lines that are its result
part() {
    name=$1 limit=$2 what=$3
    shift 3
    begun=$(date +%s)
    [ $limit -lt $((ends - begun)) ] || limit=$((ends - begun))
    if [ $limit -lt 10 ]; then row "$name" 0 "left out: the time was over (SECONDS_IN_ALL)"; return; fi
    timeout -k 5 "$limit" "$@" > "$out/$name.log" 2>&1
    code=$?
    said=$(grep -E "$what" "$out/$name.log" | sed 's/|/;/g' | tr -s ' ' | paste -sd, -)
    [ $code = 0 ] || said="exit $code$([ $code = 124 ] && echo ", $limit s were too few"): $(tail -n 1 "$out/$name.log") $said"
    row "$name" $(($(date +%s) - begun)) "$said"
}

for name in $parts; do
    case $name in
    update-4k) part $name 60 "update|log-prob" "$python" benchmarks/once/gpu_webrl.py $shape --context $short --sequences 8 ;;
    update-16k) part $name 70 "update|log-prob" "$python" benchmarks/once/gpu_webrl.py $shape --context $long --sequences 2 ;;
    compiled-4k) part $name 80 "update|log-prob" \
        "$python" benchmarks/once/gpu_webrl.py $shape --context $short --sequences 8 --compile-layers ;;
    generate) part $name 60 "generation" \
        "$python" benchmarks/once/gpu_webrl.py $shape --context $long --sequences 8 --shared $((long * 3 / 4)) ;;
    real)
        if [ ! -d $model ] || ! has miniwob; then row $name 0 "left out: make $model .venv/miniwob"; continue; fi
        part $name 240 "start  |reinforcement  |control  |paired|Took" \
            "$python" webrl.py --runs-dir "$out" --model-id $model --env-id miniwob/small --judge env \
            --prompt-format plain --num-demos 36 --num-envs 48 ;;
    grpo) part $name 90 "start  |reinforcement  |paired|Took" \
        "$python" grpo_async.py --preset smoke --runs-dir "$out" --gpus-per-server $share ;;
    distrl) part $name 90 "start  |reinforcement  |paired|Took" \
        "$python" distrl.py --preset smoke --runs-dir "$out" --gpus-per-worker $share ;;
    4bit)
        if [ "$gpus" = 0 ] || [ ! -d $model ] || ! has bitsandbytes; then row $name 0 "left out: no GPU, model or bitsandbytes"; continue; fi
        part $name 60 "SFT|Took|start  " "$python" webrl.py --runs-dir "$out" --model-id $model --load-in-4bit \
            --env-id arena-v1/shop --judge env --num-demos 16 --num-phases 0 --start-episodes 8 --test-tasks 8 ;;
    fsdp)
        if [ "$gpus" -lt 2 ]; then row $name 0 "left out: FSDP splits over two GPUs and more, here are $gpus"; continue; fi
        part $name 90 "start  |reinforcement  |paired|Took|processes" "$python" -m accelerate.commands.launch --use_fsdp \
            --fsdp_version 2 --mixed_precision no --num_processes "$gpus" webrl.py --preset smoke --runs-dir "$out" ;;
    *) echo "benchmarks/gpu.sh: $name is none of its parts" >&2; exit 2 ;;
    esac
done
echo "table $table"

# What slurm.sh and launcher.yaml set on every machine. Edit the first three; what is exported already wins.
clone=${RAYFED_KD_CLONE:-$HOME/rayfed-kd}                           # with a .venv in it, as `make install` makes it
export RAYFED_KD_DATA="${RAYFED_KD_DATA:-/shared/data}"             # data sets, where all machines see them
export RAYFED_KD_CACHE="${RAYFED_KD_CACHE:-/shared/rayfed-kd-cache}" # decoded data, likewise

. "$clone/.venv/bin/activate"
export RAY_AUTH_MODE=token # unset, some of Ray's commands would ask for a token and others send none
export RAY_USAGE_STATS_ENABLED=0
export RAY_JOB_STOP_WAIT_TIME_S=120 # for `ray job stop`: after Ray's own 3 s no checkpoint would be written
export RAY_object_manager_pull_timeout_ms=120000 # after Ray's own 10 s a large vector would cross a slow link again
unset RAY_ADDRESS # of another cluster

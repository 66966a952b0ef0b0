#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Tells gpumeter-exporter which job has which GPU. Slurm runs it as root on the node; name it twice in slurm.conf:
#
#   Prolog=/etc/slurm/gpumeter-jobs.sh
#   Epilog=/etc/slurm/gpumeter-jobs.sh
#
# or link it into prolog.d and epilog.d. It needs ConstrainDevices=yes in cgroup.conf to be worth something: only then has a
# job the GPUs that Slurm gave it, and no others. It never fails: a job must not wait for its bill.
#
# In JOBS (default /run/gpumeter-jobs), which is the exporter's --hpc-job-mapping-dir, a file for each GPU, named by its
# index, has a job on each line: its id, and account= and user= where Slurm says so. Several jobs share a GPU (MPS, shards).
# SLURM_JOB_GPUS has the indexes, 0,1 or 0-3. For MIG, MIG_MAP says which device of Slurm's is which instance, in lines such as
# "0 0.7": the index that Slurm uses, and <GPU>.<GPU instance>.
#
# Older versions of Slurm tell the account to slurmctld's prolog alone. ASK_SLURM=yes has scontrol asked for it then, which costs the
# controller a request for each job; without, such jobs are under the namespace "hpc".
set -u
# Slurm sets none.
PATH=/usr/local/bin:/usr/bin:/bin${PATH:+:$PATH}

folder=${JOBS:-/run/gpumeter-jobs}
map=${MIG_MAP:-/etc/gpumeter/slurm-mig.map}
ask=${ASK_SLURM:-no}
job=${SLURM_JOB_ID:-}

say() { logger -t gpumeter-jobs -- "$*" 2> /dev/null || echo "gpumeter-jobs: $*" >&2; }

# devices prints the names of the job's files.
devices() {
	local part first last i name
	local -a parts
	IFS=, read -ra parts <<< "${SLURM_JOB_GPUS:-${GPU_DEVICE_ORDINAL:-}}"
	for part in "${parts[@]}"; do
		if ! [[ $part =~ ^[0-9]{1,4}(-[0-9]{1,4})?$ ]]; then
			say "job $job: SLURM_JOB_GPUS has $part, which is no index of a GPU"
			continue
		fi
		first=$((10#${part%-*})) last=$((10#${part#*-}))
		for ((i = first; i <= last; i++)); do
			name=
			if [ -r "$map" ]; then
				name=$(awk -v index_="$i" '$1 == index_ { print $2; exit }' "$map")
			fi
			echo "${name:-$i}"
		done
	done
}

# keep FILE [LINE]: the lines of other jobs, and LINE, in place of FILE; the exporter sees the old file or the new one, and no others.
keep() {
	local file=$1 line=${2:-} new
	new=$(mktemp "$folder.new.XXXXXX") || return 1
	if [ -e "$file" ]; then
		awk -v job="$job" '$1 != job' "$file" > "$new" || { rm -f "$new"; return 1; }
	fi
	if [ -n "$line" ]; then
		echo "$line" >> "$new"
	fi
	if [ -s "$new" ]; then
		chmod 0644 "$new" && mv -f "$new" "$file"
	else
		rm -f "$new" "$file"
	fi
}

begin() {
	local line=$job account=${SLURM_JOB_ACCOUNT:-} name
	if [ -z "$account" ] && [ "$ask" = yes ]; then
		account=$(timeout 5 scontrol --oneliner show job "$job" | grep -o ' Account=[^ ]*' | cut -d= -f2)
	fi
	# A blank would begin another word.
	[ -z "$account" ] || line+=" account=${account//[[:space:]]/_}"
	[ -z "${SLURM_JOB_USER:-}" ] || line+=" user=${SLURM_JOB_USER//[[:space:]]/_}"
	for name in $(devices); do
		keep "$folder/$name" "$line" || say "job $job: cannot write $folder/$name"
	done
}

# end looks into all files: the epilog of some versions is not told the GPUs.
end() {
	local file
	for file in "$folder"/[0-9]*; do
		[ -e "$file" ] || continue
		keep "$file" || say "job $job: cannot write $file"
	done
}

[ -n "$job" ] || exit 0
if ! mkdir -p "$folder" || ! chmod 0755 "$folder"; then
	say "job $job: cannot make $folder"
	exit 0
fi
# Jobs begin and end at the same time.
if ! { exec 9> "$folder.lock"; } 2> /dev/null || ! flock -w 10 9; then
	say "job $job: goes on without the lock of $folder"
fi
case ${SLURM_SCRIPT_CONTEXT:-${1:-}} in
prolog_slurmd | begin) begin ;;
epilog_slurmd | end) end ;;
*) say "job $job: neither prolog nor epilog: SLURM_SCRIPT_CONTEXT is ${SLURM_SCRIPT_CONTEXT:-not set}; say begin or end" ;;
esac
exit 0

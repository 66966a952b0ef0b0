#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: check.sh VERSION PROGRAM...
#
# Fails for each program that asks for a glibc newer than VERSION, such as 2.31.
set -eu

limit=$1
shift
failed=0
for program; do
	newest=$(LC_ALL=C readelf -VW "$program" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
	if [ -z "$newest" ]; then
		echo "$program: static, or not an ELF program that uses glibc"
	elif [ "$(printf '%s\n%s\n' "$newest" "$limit" | sort -V | tail -n 1)" != "$limit" ]; then
		echo "$program asks for glibc $newest, newer than $limit:" >&2
		LC_ALL=C readelf --dyn-syms -W "$program" | grep "@GLIBC_$newest" >&2 || true
		echo "add the functions to deployment/glibc/stubs.sh" >&2
		failed=1
	else
		echo "$program needs glibc $newest or newer"
	fi
done
exit $failed

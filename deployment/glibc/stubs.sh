#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: stubs.sh DIR
#
# A program linked on a system with a newer glibc asks for that glibc's versions of
# functions that did not change, and then does not start on an older system. The linker
# takes a symbol's version from the first library that defines it, so this writes stubs of
# glibc's libraries into DIR that define those functions in the versions of glibc 2.31 and
# before, to be linked ahead of the real ones. They are empty: only names and versions
# count, and at run time the real libraries answer, in which glibc keeps old versions.
set -eu

dir=$1
# The compiler's machine, which need not be this one.
case $("${CC:-gcc}" -dumpmachine) in
x86_64-*) base=GLIBC_2.2.5 dlinfo=GLIBC_2.3.3 ;;
aarch64-*) base=GLIBC_2.17 dlinfo=GLIBC_2.17 ;;
*)
	echo "stubs.sh: no symbol versions are known for $("${CC:-gcc}" -dumpmachine): build on the oldest system that is to run the program" >&2
	exit 1
	;;
esac

# stub SONAME VERSION:FUNCTION...
stub() {
	soname=$1
	shift
	for pair; do
		echo "${pair%%:*} ${pair#*:}"
	done | sort | awk -v source="$dir/$soname.c" -v map="$dir/$soname.map" '
		{ print "void " $2 "(void) {}" > source }
		$1 != version { if (version) print "};" > map; version = $1; print version " { global:" > map }
		{ print $2 ";" > map }
		END { print "};" > map }'
	"${CC:-gcc}" -shared -fPIC -nostdlib -fno-builtin -w \
		-Wl,-soname,"$soname" -Wl,--version-script,"$dir/$soname.map" -o "$dir/$soname" "$dir/$soname.c"
}

of() {
	version=$1
	shift
	for name; do echo "$version:$name"; done
}

mkdir -p "$dir"
# shellcheck disable=SC2046 # names without blanks
stub libpthread.so.0 $(of $base \
	pthread_create pthread_join pthread_detach pthread_sigmask pthread_once \
	pthread_key_create pthread_key_delete pthread_getspecific pthread_setspecific \
	pthread_attr_getstack pthread_attr_getstacksize pthread_getattr_np)
# shellcheck disable=SC2046
stub libdl.so.2 $(of $base dlopen dlsym dlclose dlerror dladdr) $dlinfo:dlinfo
stub libc.so.6 $base:__libc_start_main
